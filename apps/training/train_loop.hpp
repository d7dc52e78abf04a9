#pragma once

// The loops of `troupe train` behind one interface, so that one trainer drives them all.
//
// **Ownership:** borrows the cast and the prompts, which outlive it.
// **Threads:** controller's thread.
// **Invariants:** when `step` returns, the step was trained and its weights are published; `cursor`
// counts prompts that were trained, not those that rollout began.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/cast.hpp"
#include "actors/loops/rollout_service.hpp"
#include "actors/loops/step_report.hpp"
#include "actors/roles/group_world.hpp"
#include "apps/training/async_keys.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/task/task.hpp"

#include <cstdint>
#include <memory>
#include <optional>

namespace troupe::apps {

class TrainLoop {
 public:
  virtual ~TrainLoop() = default;
  /// Where the data begins, and how many steps were trained before. Once, before all else.
  virtual void begin(const actors::DataCursor& cursor, std::int64_t steps_done) = 0;
  /// Takes up what `save` wrote, behind `begin`. Throws `Failure`.
  virtual void load(const runtime::Checkpoint& checkpoint) = 0;
  /// Weights are published: rollout may begin.
  virtual runtime::task<void> start() = 0;
  /// One step, from 1. Empty: the data has ended, or `interrupted`. Throws `Failure`.
  virtual runtime::task<std::optional<actors::StepReport>> step(std::int64_t step) = 0;
  /// The last `step` came to nothing since the run was told to stop: all that it had is there
  /// again, and in the checkpoint that follows.
  virtual bool interrupted() const = 0;
  /// Takes in what rollout has under way, so that the checkpoint that follows has it; rollout rests
  /// until `stop`.
  virtual runtime::task<void> drain() = 0;
  /// Adds what a resumed run needs besides engines and counters.
  virtual runtime::task<void> save(runtime::CheckpointWriter& writer) = 0;
  /// Ends what runs in the background. Nothing may follow but the destructor.
  virtual runtime::task<void> stop() = 0;
  virtual const actors::DataCursor& cursor() const = 0;
};

struct StreamingLoopOptions {
  LoopMode mode = LoopMode::kAsync;  ///< not `kSync`
  actors::ServiceOptions service{};
  std::int64_t groups_per_part = 1;      ///< pipelined: learned from at a time
  std::optional<std::int64_t> epochs{};  ///< of the data; empty: it begins anew without end
};

/// Generate, score, learn, publish, one after the other.
std::unique_ptr<TrainLoop> make_sync_loop(actors::Cast<actors::GroupWorld>& cast,
                                          const actors::PromptLoader& prompts);

/// Rollout by the rollout service, beside training. The checkpoint holds the service's ledger and
/// trajectories; one that a synchronous run wrote has none, and the data goes on behind it.
std::unique_ptr<TrainLoop> make_streaming_loop(actors::Cast<actors::GroupWorld>& cast,
                                               const actors::PromptLoader& prompts,
                                               StreamingLoopOptions options);

}  // namespace troupe::apps
