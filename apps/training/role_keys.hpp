#pragma once

// Which roles a run has, on how many devices, the mini-batches they learn from and the order they
// take them in; what both a real run and a simulated one read.
//
// **Threads:** pure functions of the configuration.

#include "actors/loops/rollout_book.hpp"
#include "runtime/config/config.hpp"

#include <cstdint>
#include <string>

namespace troupe::apps {

/// Devices of the run: hosts × devices a host.
int run_devices(const runtime::Config& config);

bool wants_critic(const runtime::Config& config);
/// A KL term in the loss or in the reward needs a reference policy.
bool wants_reference(const runtime::Config& config);

/// Prompts of one optimizer step of `actor_rollout_ref.actor` or `critic` (`section`).
std::int64_t minibatch_prompts(const runtime::Config& config, const std::string& section);

/// `async.order`; issue order where nothing else is said of a pipelined run.
actors::TakeOrder take_order(const runtime::Config& config);

}  // namespace troupe::apps
