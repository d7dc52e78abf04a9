#pragma once

// The synchronous loop: generate, score, evaluate, learn, publish; every role takes its turn.
//
// Reads like the mathematics, and knows neither ranks nor shards nor clocks. GRPO and its kin run
// without a critic; PPO is the same program with one.
// **Threads:** controller's thread.
// **Invariants:** the policy that generated equals the policy that is updated (bound 0): weights
// are published before the step ends.

#include "actors/loops/greedy_baseline.hpp"
#include "actors/loops/learn.hpp"

#include <cstdint>
#include <string>
#include <utility>

namespace troupe::actors {

/// One step on `prompts` [B/G rows of a prompt batch]. `step` counts from 1. Throws `Failure`.
template <World W>
runtime::task<StepReport> synchronous_step(Cast<W>& cast, runtime::Batch prompts,
                                           std::int64_t step) {
  StepReport report{.step = step, .metrics = {}};
  StepTimer timer(cast.world.clock(), report.metrics);
  const TimePoint begin = cast.world.clock().now();
  SamplingOptions sampling = cast.sampling;
  sampling.seed = step_seed(cast.sampling.seed, step);

  runtime::Batch samples = runtime::value_or_throw(number_samples(prompts, cast.group_size));
  runtime::Batch batch = co_await timer.timed("gen", cast.rollout.generate(samples, sampling));
  runtime::Batch scores = co_await timer.timed("reward", cast.reward.score(batch));
  runtime::value_or_throw(batch.merge(scores));
  if (cast.advantage.options().greedy_baseline) {
    runtime::Column baseline = co_await timer.timed("gen", greedy_baseline(cast, prompts));
    runtime::value_or_throw(batch.set(std::string(column::kBaselineScores), baseline));
  }
  const bool publishes = learns(cast, step);
  co_await timer.timed("sleep", cast.rollout.sleep(publishes));  // its memory is the trainer's now
  co_await learn(cast, std::move(batch), prompts, step, report, timer);
  if (publishes) {
    // reshard: training layout -> rollout layout; wakes weights before and the KV cache after
    runtime::Metrics moved = co_await timer.timed("update_weights", cast.weights.publish());
    runtime::value_or_throw(report.metrics.merge(moved));
  }
  timer.add("step", begin);
  co_return report;
}

}  // namespace troupe::actors
