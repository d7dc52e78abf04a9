#pragma once

// The synchronous loop: generate, score, evaluate, learn, publish; every role takes its turn.
//
// Reads like the mathematics, and knows neither ranks nor shards nor clocks. GRPO and its kin run
// without a critic; PPO is the same program with one.
// **Threads:** controller's thread.
// **Invariants:** the policy that generated equals the policy that is updated (bound 0): weights
// are published before the step ends.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/cast.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/sample_numbering.hpp"
#include "actors/loops/step_report.hpp"
#include "runtime/base/rng.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace troupe::actors {

/// The sampling seed of a step: every step draws anew, also for a prompt that comes again.
inline std::uint64_t step_seed(std::uint64_t run_seed, std::int64_t step) {
  return mix_seed(run_seed, static_cast<std::uint64_t>(step));
}

/// Scores of one greedy sample per prompt, repeated over the group: ReMax's baseline.
template <World W>
runtime::task<runtime::Column> greedy_baseline(Cast<W>& cast, runtime::Batch prompts) {
  SamplingOptions greedy = cast.sampling;
  greedy.temperature = 0;
  runtime::Batch numbered = runtime::value_or_throw(number_samples(prompts, 1));
  runtime::Batch batch = co_await cast.rollout.generate(std::move(numbered), std::move(greedy));
  runtime::Batch scored = co_await cast.reward.score(std::move(batch));
  runtime::Batch one = runtime::value_or_throw(scored.select({std::string(column::kScores)}));
  co_return one.repeat(cast.group_size).column(column::kScores);
}

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
  const bool learns = step > cast.critic_warmup_steps;
  co_await timer.timed("sleep", cast.rollout.sleep(learns));  // its memory is the trainer's now
  runtime::Batch old = co_await timer.timed("old_log_prob", cast.policy.log_probs(batch));
  runtime::value_or_throw(batch.merge(old));  // under the trainer: keeps the ratio self-consistent
  if (cast.reference != nullptr) {
    runtime::Batch reference = co_await timer.timed("ref", cast.reference->log_probs(batch));
    runtime::value_or_throw(batch.merge(reference));
  }
  if (cast.critic != nullptr) {
    runtime::Batch values = co_await timer.timed("values", cast.critic->values(batch));
    runtime::value_or_throw(batch.merge(values));
  }

  const TimePoint advantage_begin = cast.world.clock().now();
  runtime::Batch advantages = runtime::value_or_throw(cast.advantage(batch, cast.meter));
  runtime::value_or_throw(batch.merge(advantages));
  runtime::Metrics lengths = runtime::value_or_throw(length_metrics(batch, cast.meter));
  timer.add("adv", advantage_begin);
  // What this step made the controller hold to know where columns are; the data set's own tables,
  // which `prompts` shares with every step, were there before.
  const std::int64_t held =
      runtime::held_bytes(batch).metadata - runtime::held_bytes(prompts).metadata;
  report.metrics.add(
      "perf/controller_metadata_bytes_per_row",
      static_cast<double>(held) / static_cast<double>(std::max<std::int64_t>(batch.rows(), 1)),
      runtime::Reduction::kLast);

  if (cast.critic != nullptr) {
    runtime::Metrics learned = co_await timer.timed("update_critic", cast.critic->update(batch));
    runtime::value_or_throw(report.metrics.merge(learned));
  }
  if (learns) {
    runtime::Metrics learned = co_await timer.timed("update_actor", cast.policy.update(batch));
    runtime::value_or_throw(report.metrics.merge(learned));
    // reshard: training layout -> rollout layout; wakes weights before and the KV cache after
    runtime::Metrics moved = co_await timer.timed("update_weights", cast.weights.publish());
    runtime::value_or_throw(report.metrics.merge(moved));
  }
  timer.add("step", begin);
  runtime::value_or_throw(report.metrics.merge(batch.metrics()));
  runtime::value_or_throw(report.metrics.merge(lengths));
  co_return report;
}

}  // namespace troupe::actors
