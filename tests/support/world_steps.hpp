#pragma once

// Steps of the synchronous loop over a world of real ranks, and what they say that does not depend
// on where the ranks are.
// **Threads:** one.

#include "actors/loops/synchronous.hpp"
#include "actors/roles/group_world.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

/// A reward that random tokens earn in different amounts, as rule `odd`.
inline actors::RewardRegistry odd_rewards() {
  actors::RewardRegistry rewards = actors::default_rewards();
  runtime::value_or_throw(rewards.add("odd", [](const actors::RewardInput& input) {
    double score = 0;
    for (const char c : input.solution) score += (c & 1) != 0 ? 0.25 : 0;
    return score;
  }));
  return rewards;
}

/// How bytes went differs between threads and processes; how many there were does not.
inline bool is_of_the_place(const std::string& name) {
  for (const char* way : {"local_bytes", "wire_bytes", "staging_bytes"})
    if (name == std::string("update_weights/") + way) return true;
  return name.starts_with("timing_s/") || name.starts_with("perf/") || name.ends_with("_s");
}

/// Metrics of steps `first` to `last`, without times: GRPO, or PPO when the world has a critic.
inline runtime::task<std::vector<std::map<std::string, double>>> run_steps(
    actors::GroupWorld& world, runtime::Batch prompts, std::int64_t first, std::int64_t last) {
  actors::AdvantageStepOptions estimator;
  estimator.estimator =
      *actors::default_advantages().find(world.critic() == nullptr ? "grpo" : "gae");
  estimator.keep_returns = world.critic() != nullptr;
  actors::AdvantageStep advantage(std::move(estimator));
  actors::Cast<actors::GroupWorld> cast{.world = world,
                                        .rollout = world.rollout(),
                                        .reward = world.reward(),
                                        .policy = world.policy(),
                                        .reference = world.reference(),
                                        .critic = world.critic(),
                                        .weights = world.weights(),
                                        .advantage = advantage,
                                        .sampling = {},
                                        .group_size = 4};
  cast.sampling.max_new_tokens = 12;
  cast.sampling.seed = 77;
  std::vector<std::map<std::string, double>> metrics;
  co_await world.weights().publish_present();
  for (std::int64_t step = first; step <= last; ++step) {
    const actors::StepReport report = co_await actors::synchronous_step(cast, prompts, step);
    std::map<std::string, double> values;
    for (const auto& [name, entry] : report.metrics) {
      if (!is_of_the_place(name)) values[name] = entry.value().value_or(-1);
    }
    metrics.push_back(std::move(values));
  }
  co_return metrics;
}

}  // namespace troupe::testing
