#pragma once

// A run that simulates in a millisecond, as YAML of a real run's keys, for tests of the scenario
// and of what is made of it.
// **Threads:** any; values alone.

#include "apps/training/simulated_run.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace troupe::testing {

inline constexpr std::string_view kSmallRun = R"(
data: {train_batch_size: 16, max_prompt_length: 256, max_response_length: 1024}
actor_rollout_ref:
  model: {enable_gradient_checkpointing: true}
  actor: {megatron: {tensor_model_parallel_size: 2, use_distributed_optimizer: true}}
  rollout: {n: 4}
algorithm: {adv_estimator: grpo}
trainer: {n_gpus_per_node: 8}
simulation:
  device: h100
  model: qwen2.5-7b
  steps: 2
  samples: 3
  lengths: {response: {shape: lognormal, median: 200, sigma: 0.8}}
)";

inline result<sim::Scenario> small_scenario(std::vector<std::string> overrides = {}) {
  TROUPE_TRY(const auto config,
             runtime::Config::parse(apps::simulate_schema(), kSmallRun, "small.yaml", overrides));
  return apps::simulated_scenario(config);
}

}  // namespace troupe::testing
