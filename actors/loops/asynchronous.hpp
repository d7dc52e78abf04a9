#pragma once

// Loops whose rollout runs beside training: one step off, asynchronous, pipelined.
//
// They differ in when weights reach the rollout and in how the trainer takes its groups; how far
// rollout may run ahead is the service's bound η. With η = 0 all of them do what the synchronous
// loop does, bit for bit.
// **Threads:** controller's thread.
// **Invariants:** a version counts trained steps: every step publishes, also one that only warms
// the critic up; a group counts as trained before the weights that it made are published.

#include "actors/loops/greedy_baseline.hpp"
#include "actors/loops/learn.hpp"
#include "actors/loops/rollout_service.hpp"
#include "runtime/base/log.hpp"

#include <cstdint>
#include <optional>
#include <string>
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
  if (cast.advantage.options().greedy_baseline) {
    // Of the policy that serves now: a baseline need not be of the samples' own to be unbiased.
    runtime::Column baseline = co_await timer.timed("gen", greedy_baseline(cast, taken.prompts));
    runtime::value_or_throw(taken.batch.set(std::string(column::kBaselineScores), baseline));
  }
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

struct PipelinedOptions {
  std::int64_t groups_per_part = 1;  ///< learned from at a time
  /// Times that one step may be begun when its gradients are lost on the way.
  std::int32_t tries_max = 3;
};

/// What a pipelined step cannot do part by part. kUnsupported names it.
template <World W>
result<void> check_pipelined(const Cast<W>& cast) {
  if constexpr (!AccumulatingRole<typename W::Critic>) {
    if (cast.critic != nullptr)
      return fail(ErrorCode::kUnsupported,
                  "pipelined: this world's critic learns from whole steps");
  }
  return {};
}

/// Whether what failed may go well when it is done again: a call, a collective, a place that was
/// full; not what was wrong with the question.
inline bool may_go_again(const Error& error) {
  switch (error.root_cause().code) {
    case ErrorCode::kAborted:
    case ErrorCode::kDeadline:
    case ErrorCode::kInternal:
    case ErrorCode::kIo:
    case ErrorCode::kRankDead:
    case ErrorCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

/// Adds the gradients of some groups. Weights stay as they are.
template <World W>
runtime::task<void> learn_part(Cast<W>& cast, StepGroups part, std::int64_t step,
                               StepReport& report, StepTimer& timer) {
  runtime::Batch batch =
      co_await evaluate(cast, std::move(part.batch), part.prompts, report, timer);
  if constexpr (AccumulatingRole<typename W::Critic>) {
    if (cast.critic != nullptr) {
      runtime::Metrics learned =
          co_await timer.timed("update_critic", cast.critic->accumulate(batch));
      runtime::value_or_throw(report.metrics.merge(learned));
    }
  }
  if (!learns(cast, step)) co_return;
  runtime::Metrics learned =
      co_await timer.timed("update_actor", cast.policy.accumulate(std::move(batch)));
  runtime::value_or_throw(report.metrics.merge(learned));
}

/// What came of the parts of a step.
struct LearnedParts {
  bool any = false;             ///< false: there were no groups, the data is over
  std::optional<Error> lost{};  ///< why learning from a part failed
};

/// Part by part until the step has all its groups. Throws what rollout failed by.
template <World W>
runtime::task<LearnedParts> learn_parts(Cast<W>& cast, RolloutService<W>& rollout,
                                        std::int64_t step, std::int64_t groups_per_part,
                                        StepReport& report, StepTimer& timer) {
  LearnedParts parts;
  while (rollout.wanted() > 0) {
    StepGroups part =
        co_await timer.timed("wait_for_batch", rollout.take_some(groups_per_part, groups_per_part));
    if (part.groups.empty()) break;
    parts.any = true;
    auto learning = runtime::as_result(learn_part(cast, std::move(part), step, report, timer));
    const result<void> learned = co_await std::move(learning);
    if (learned) continue;
    parts.lost = learned.error();
    break;
  }
  co_return parts;
}

/// As before the step: gradients are dropped, its groups may be taken again, in the same order.
template <World W>
runtime::task<void> take_back_step(Cast<W>& cast, RolloutService<W>& rollout) {
  rollout.abandon_step();
  cast.advantage.abandon_step();
  co_await cast.policy.abandon_step();
  if constexpr (AccumulatingRole<typename W::Critic>) {
    if (cast.critic != nullptr) co_await cast.critic->abandon_step();
  }
}

/// The optimizer steps that end a pipelined step. One that fails is not tried again: some ranks may
/// have taken it.
template <World W>
runtime::task<void> finish_parts(Cast<W>& cast, std::int64_t step, StepReport& report,
                                 StepTimer& timer) {
  if constexpr (AccumulatingRole<typename W::Critic>) {
    if (cast.critic != nullptr) {
      runtime::Metrics learned = co_await timer.timed("update_critic", cast.critic->finish_step());
      runtime::value_or_throw(report.metrics.merge(learned));
    }
  }
  if (learns(cast, step)) {
    runtime::Metrics learned = co_await timer.timed("update_actor", cast.policy.finish_step());
    runtime::value_or_throw(report.metrics.merge(learned));
  }
  cast.advantage.end_step();
  finish_correction(report.metrics);
}

/// One step whose groups are learned from part by part, `groups_per_part` at a time, while the rest
/// still generates. Weights change only at its end, so all parts have the same proximal policy and
/// the same values, and gradients are divided by what all parts had together. Parts follow the
/// service's order: with `TakeOrder::kIssue` they do not depend on arrival. A step whose gradients
/// are lost on the way (a call or a collective failed, no rank died for good) begins again with the
/// same groups.
template <World W>
requires AccumulatingRole<typename W::Policy> runtime::task<std::optional<StepReport>>
pipelined_step(Cast<W>& cast, RolloutService<W>& rollout, std::int64_t step,
               PipelinedOptions options) {
  runtime::value_or_throw(check_pipelined(cast));
  const TimePoint begin = cast.world.clock().now();
  for (std::int32_t tries = 1;; ++tries) {
    StepReport report{.step = step, .metrics = {}};
    StepTimer timer(cast.world.clock(), report.metrics);
    auto parts = runtime::as_result(
        learn_parts(cast, rollout, step, options.groups_per_part, report, timer));
    const result<LearnedParts> learned = co_await std::move(parts);
    if (learned && !learned->lost) {
      if (!learned->any) co_return std::nullopt;
      co_await finish_parts(cast, step, report, timer);
      runtime::value_or_throw(report.metrics.merge(rollout.end_step()));
      report.metrics.add("training/steps_begun_again", tries - 1, runtime::Reduction::kSum);
      co_await publish(cast, rollout, report, timer);
      timer.add("step", begin);
      co_return report;
    }
    const Error error = learned ? *learned->lost : learned.error();
    auto taking_back = runtime::as_result(take_back_step(cast, rollout));
    const result<void> taken_back = co_await std::move(taking_back);
    if (!learned || !taken_back || !may_go_again(error) || tries >= options.tries_max)
      throw runtime::Failure(error);
    log::warn("step {} begins again, its gradients were lost: {}", step, error.to_string());
  }
}

}  // namespace troupe::actors
