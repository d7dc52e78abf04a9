#pragma once

// Keys of the loops whose rollout runs ahead of training: which loop, how far ahead, on which
// devices, and the straggler tools. Declaration, rules, reading.
//
// With `trainer.mode = sync` all of them are checked and otherwise ignored, so that one file serves
// all loops and one override chooses.
// **Threads:** pure functions.
// **Invariants:** a combination that cannot work is a kConfig error that names a key and both
// values, before anything starts.

#include "actors/pacing/rollout_dispatcher.hpp"
#include "actors/pacing/staleness_ledger.hpp"
#include "actors/rollout/sampling_options.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/schema.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::apps {

enum class LoopMode : std::uint8_t { kSync, kOneStepOff, kAsync, kPipelined };

/// Declares the keys and their rules.
void declare_async(runtime::Schema& schema);

/// `trainer.mode`.
LoopMode loop_mode(const runtime::Config& config);
/// True for all loops but the synchronous one: they stream samples from replicas of their own.
bool streams(const runtime::Config& config);
/// Samples come from the rollout service: in all modes but `sync`, and there when they have turns.
bool uses_service(const runtime::Config& config);

/// Devices of the rollout ranks alone; 0: they share the trainer's.
int rollout_devices(const runtime::Config& config);
/// Devices of replicas that only evaluate; 0: evaluation waits for its turn between steps.
int evaluation_devices(const runtime::Config& config);
/// Devices of the whole run: the trainer's and those two.
int all_devices(const runtime::Config& config);

/// η that the mode implies or `async.staleness` says.
std::int64_t staleness(const runtime::Config& config);
/// `steps` of the whole run.
actors::LedgerOptions ledger_options(const runtime::Config& config, std::int64_t steps);
actors::DispatchOptions dispatch_options(const runtime::Config& config,
                                         const actors::SamplingOptions& sampling);

/// Keys that were given for other loops and do nothing in this one, `key = value` each.
std::vector<std::string> ignored_keys(const runtime::Config& config);

}  // namespace troupe::apps
