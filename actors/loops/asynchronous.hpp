#pragma once

// Loops whose rollout runs beside training: one step off, asynchronous, pipelined.
//
// They differ in when weights reach the rollout and in how the trainer takes its groups; how far
// rollout may run ahead is the service's bound η. With η = 0 all of them do what the synchronous
// loop does, bit for bit.
// **Threads:** controller's thread.
// **Invariants:** a version counts trained steps: every step publishes, also one that only warms
// the critic up; a group counts as trained before the weights that it made are published.

#include "actors/loops/learn.hpp"
#include "actors/loops/rollout_service.hpp"

#include <cstdint>
#include <optional>
#include <utility>

namespace troupe::actors {

/// Weights to the rollout, which generates on: between two engine steps it has the new ones.
template <World W>
runtime::task<void> publish(Cast<W>& cast, RolloutService<W>& rollout, StepReport& report,
                            StepTimer& timer) {
  runtime::Metrics moved = co_await timer.timed("update_weights", cast.weights.publish());
  runtime::value_or_throw(report.metrics.merge(moved));
  rollout.published(cast.weights.version());
}

/// What samples under way do when new weights come.
enum class AtPublication {
  kGoOn,      ///< and have the new weights between two engine steps
  kEndFirst,  ///< each sample is of one version
};

/// One step on the next groups that are finished, while others generate.
template <World W>
runtime::task<std::optional<StepReport>> step_beside(Cast<W>& cast, RolloutService<W>& rollout,
                                                     std::int64_t step, AtPublication samples) {
  StepReport report{.step = step, .metrics = {}};
  StepTimer timer(cast.world.clock(), report.metrics);
  const TimePoint begin = cast.world.clock().now();
  StepGroups taken = co_await timer.timed("wait_for_batch", rollout.take_step());
  if (taken.groups.empty()) co_return std::nullopt;
  co_await learn(cast, std::move(taken.batch), taken.prompts, step, report, timer);
  runtime::value_or_throw(report.metrics.merge(rollout.end_step()));
  if (samples == AtPublication::kEndFirst)
    co_await timer.timed("wait_for_samples", rollout.quiesce());
  co_await publish(cast, rollout, report, timer);
  timer.add("step", begin);
  co_return report;
}

/// Weights are updated in flight. `step` counts from 1. Empty: the data is over. Throws `Failure`.
template <World W>
runtime::task<std::optional<StepReport>> asynchronous_step(Cast<W>& cast,
                                                           RolloutService<W>& rollout,
                                                           std::int64_t step) {
  return step_beside(cast, rollout, step, AtPublication::kGoOn);
}

/// The same, but samples under way end before weights are published. With η = 1 the next batch
/// generates while this one trains.
template <World W>
runtime::task<std::optional<StepReport>> one_step_off_step(Cast<W>& cast,
                                                           RolloutService<W>& rollout,
                                                           std::int64_t step) {
  return step_beside(cast, rollout, step, AtPublication::kEndFirst);
}

/// What a pipelined step cannot do part by part. kUnsupported names it.
template <World W>
result<void> check_pipelined(const Cast<W>& cast) {
  if (cast.critic != nullptr)
    return fail(ErrorCode::kUnsupported, "pipelined: a critic learns from whole batches");
  if (cast.advantage.options().kl_in_reward)
    return fail(ErrorCode::kUnsupported,
                "pipelined: the coefficient of KL in rewards follows whole batches");
  return {};
}

/// One step whose groups are learned from part by part, `groups_per_part` at a time, while the rest
/// still generates. Weights change only at its end, so all parts have the same proximal policy, and
/// the gradient is divided by what all parts had together. Parts follow the service's order: with
/// `TakeOrder::kIssue` they do not depend on arrival.
template <World W>
requires AccumulatingPolicyRole<typename W::Policy> runtime::task<std::optional<StepReport>>
pipelined_step(Cast<W>& cast, RolloutService<W>& rollout, std::int64_t step,
               std::int64_t groups_per_part) {
  runtime::value_or_throw(check_pipelined(cast));
  StepReport report{.step = step, .metrics = {}};
  StepTimer timer(cast.world.clock(), report.metrics);
  const TimePoint begin = cast.world.clock().now();
  bool any = false;
  while (rollout.wanted() > 0) {
    StepGroups part =
        co_await timer.timed("wait_for_batch", rollout.take_some(groups_per_part, groups_per_part));
    if (part.groups.empty()) break;
    any = true;
    runtime::Batch batch =
        co_await evaluate(cast, std::move(part.batch), part.prompts, report, timer);
    runtime::Metrics learned =
        co_await timer.timed("update_actor", cast.policy.accumulate(std::move(batch)));
    runtime::value_or_throw(report.metrics.merge(learned));
  }
  if (!any) co_return std::nullopt;
  runtime::Metrics learned = co_await timer.timed("update_actor", cast.policy.finish_step());
  runtime::value_or_throw(report.metrics.merge(learned));
  finish_correction(report.metrics);
  runtime::value_or_throw(report.metrics.merge(rollout.end_step()));
  co_await publish(cast, rollout, report, timer);
  timer.add("step", begin);
  co_return report;
}

}  // namespace troupe::actors
