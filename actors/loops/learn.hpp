#pragma once

// What every loop does with scored samples: evaluate, advantages, updates.
//
// `learn` is the whole of it for a batch that is there at once; `evaluate` is its first half, for
// loops that update part by part.
// **Threads:** controller's thread.
// **Invariants:** metrics of the batch are in the report once; nothing is published here.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/cast.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/sample_numbering.hpp"
#include "actors/loops/step_report.hpp"
#include "runtime/task/when.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Whether this step updates the policy, or warms the critic up only.
template <World W>
bool learns(const Cast<W>& cast, std::int64_t step) {
  return step > cast.critic_warmup_steps;
}

/// `batch` with the columns of forward passes: log-probs under the trainer, the reference's, the
/// critic's values; one after the other, or all at once. Throws `Failure`.
template <World W>
runtime::task<runtime::Batch> passes(Cast<W>& cast, runtime::Batch batch, StepTimer& timer) {
  const bool old = !batch.has(column::kOldLogProbs);
  if (cast.side_by_side) {
    std::vector<runtime::task<runtime::Batch>> calls;
    if (old) calls.push_back(timer.timed("old_log_prob", cast.policy.log_probs(batch)));
    if (cast.reference != nullptr)
      calls.push_back(timer.timed("ref", cast.reference->log_probs(batch)));
    if (cast.critic != nullptr) calls.push_back(timer.timed("values", cast.critic->values(batch)));
    const std::vector<runtime::Batch> columns = co_await runtime::when_all(std::move(calls));
    for (const runtime::Batch& each : columns) runtime::value_or_throw(batch.merge(each));
    co_return batch;
  }
  if (old) {
    runtime::Batch own = co_await timer.timed("old_log_prob", cast.policy.log_probs(batch));
    runtime::value_or_throw(batch.merge(own));  // under the trainer: keeps the ratio consistent
  }
  if (cast.reference != nullptr) {
    runtime::Batch reference = co_await timer.timed("ref", cast.reference->log_probs(batch));
    runtime::value_or_throw(batch.merge(reference));
  }
  if (cast.critic != nullptr) {
    runtime::Batch values = co_await timer.timed("values", cast.critic->values(batch));
    runtime::value_or_throw(batch.merge(values));
  }
  co_return batch;
}

/// `batch` [B·G rows: prompts, responses, scores] with what the updates need besides: log-probs
/// under the trainer, the reference's and the critic's columns, advantages. `prompts` is what the
/// controller held before. Throws `Failure`.
template <World W>
runtime::task<runtime::Batch> evaluate(Cast<W>& cast, runtime::Batch batch,
                                       const runtime::Batch& prompts, StepReport& report,
                                       StepTimer& timer) {
  if (cast.correction != nullptr) runtime::value_or_throw(cast.correction->begin(batch));
  batch = co_await passes(cast, std::move(batch), timer);

  const TimePoint advantage_begin = cast.world.clock().now();
  runtime::Batch advantages = runtime::value_or_throw(cast.advantage(batch, cast.meter));
  runtime::value_or_throw(batch.merge(advantages));
  if (cast.correction != nullptr) {
    runtime::Batch weights = runtime::value_or_throw(cast.correction->weights(batch, cast.meter));
    runtime::value_or_throw(batch.merge(weights));
  }
  runtime::Metrics lengths = runtime::value_or_throw(length_metrics(batch, cast.meter));
  timer.add("adv", advantage_begin);
  runtime::value_or_throw(report.metrics.merge(batch.metrics()));
  runtime::value_or_throw(report.metrics.merge(lengths));
  // What this step made the controller hold to know where columns are; the data set's own tables,
  // which `prompts` shares with every step, were there before.
  const std::int64_t held =
      runtime::held_bytes(batch).metadata - runtime::held_bytes(prompts).metadata;
  report.metrics.add(
      "perf/controller_metadata_bytes_per_row",
      static_cast<double>(held) / static_cast<double>(std::max<std::int64_t>(batch.rows(), 1)),
      runtime::Reduction::kLast);
  co_return batch;
}

/// Evaluates and updates critic and policy. Throws `Failure`.
template <World W>
runtime::task<void> learn(Cast<W>& cast, runtime::Batch batch, const runtime::Batch& prompts,
                          std::int64_t step, StepReport& report, StepTimer& timer) {
  batch = co_await evaluate(cast, std::move(batch), prompts, report, timer);
  std::vector<runtime::task<runtime::Metrics>> updates;
  if (cast.critic != nullptr)
    updates.push_back(timer.timed("update_critic", cast.critic->update(batch)));
  if (learns(cast, step)) updates.push_back(timer.timed("update_actor", cast.policy.update(batch)));
  if (cast.side_by_side) {
    const std::vector<runtime::Metrics> learned = co_await runtime::when_all(std::move(updates));
    for (const runtime::Metrics& each : learned)
      runtime::value_or_throw(report.metrics.merge(each));
  } else {
    for (runtime::task<runtime::Metrics>& update : updates) {
      runtime::Metrics learned = co_await std::move(update);
      runtime::value_or_throw(report.metrics.merge(learned));
    }
  }
  cast.advantage.end_step();
  finish_correction(report.metrics);
}

}  // namespace troupe::actors
