#include "actors/loops/rollout_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace troupe::actors {

using runtime::Metrics;
using runtime::Reduction;

namespace {

constexpr std::int64_t kAgeBuckets = 17;  // the last also counts everything older

void add_staleness(const StepAccount& account, Metrics& metrics) {
  for (std::int64_t bucket = 0; bucket <= kAgeBuckets; ++bucket) {
    std::int64_t groups = 0;
    for (const auto& [age, count] : account.ages)
      if (std::min(age, kAgeBuckets) == bucket) groups += count;
    const std::string name =
        bucket == kAgeBuckets ? fmt::format("{}_up", bucket) : fmt::format("{}", bucket);
    metrics.add(fmt::format("staleness/age_{}/groups", name), static_cast<double>(groups),
                Reduction::kSum);
  }
  for (const auto& [age, count] : account.ages) {
    const auto value = static_cast<double>(age);
    metrics.add("staleness/min", value, Reduction::kMin);
    metrics.add("staleness/mean", value, Reduction::kMean, static_cast<double>(count));
    metrics.add("staleness/max", value, Reduction::kMax);
  }
  for (const auto& [span, count] : account.spans) {
    const auto value = static_cast<double>(span);
    metrics.add("staleness/span/mean", value, Reduction::kMean, static_cast<double>(count));
    metrics.add("staleness/span/max", value, Reduction::kMax);
  }
  metrics.add("staleness/publish_lag", static_cast<double>(account.publish_lag), Reduction::kLast);
}

}  // namespace

RolloutMark mark_of(const RolloutBook& book) {
  return {.counts = book.counts(),
          .tokens = book.dispatcher().tokens(),
          .issued = static_cast<std::int64_t>(book.ledger().issued())};
}

Metrics step_metrics(const RolloutBook& book, const StepAccount& account,
                     const RolloutMark& before) {
  Metrics metrics;
  add_staleness(account, metrics);
  const auto add = [&](const std::string& name, std::int64_t value, Reduction reduction) {
    metrics.add("async/" + name, static_cast<double>(value), reduction);
  };
  const StalenessLedger& ledger = book.ledger();
  add("queue_depth", ledger.finished(), Reduction::kLast);
  add("groups_open", static_cast<std::int64_t>(ledger.open_groups().size()), Reduction::kLast);
  add("in_flight", book.dispatcher().counts().attempts, Reduction::kLast);
  for (std::size_t i = 0; i < kCancelReasons; ++i)
    add(fmt::format("dropped_{}", cancel_reason_name(static_cast<CancelReason>(i))),
        account.cancelled[i], Reduction::kSum);
  const RolloutMark now = mark_of(book);
  add("aborted", now.counts.stops - before.counts.stops, Reduction::kSum);
  add("requeued", now.counts.interrupted - before.counts.interrupted, Reduction::kSum);
  add("failed_attempts", now.counts.failed - before.counts.failed, Reduction::kSum);
  add("replicas_lost", now.counts.replicas_lost - before.counts.replicas_lost, Reduction::kSum);
  add("reward_failures", now.counts.score_failures - before.counts.score_failures, Reduction::kSum);
  add("environment_turns", now.counts.turns - before.counts.turns, Reduction::kSum);
  add("resumed", now.tokens.resumed - before.tokens.resumed, Reduction::kSum);
  add("recomputed_tokens", now.tokens.recomputed - before.tokens.recomputed, Reduction::kSum);
  add("wasted_tokens", now.tokens.wasted_total() - before.tokens.wasted_total(), Reduction::kSum);
  for (std::size_t i = 0; i < kWasteReasons; ++i)
    add(fmt::format("wasted_{}_tokens", waste_reason_name(static_cast<WasteReason>(i))),
        now.tokens.wasted[i] - before.tokens.wasted[i], Reduction::kSum);
  metrics.add("async/oversample_ratio",
              static_cast<double>(now.issued - before.issued) /
                  static_cast<double>(std::max<std::int64_t>(account.groups, 1)),
              Reduction::kLast);
  metrics.add("async/length_bias", book.dispatcher().length_bias().ratio(), Reduction::kLast);
  return metrics;
}

}  // namespace troupe::actors
