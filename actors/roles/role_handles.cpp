#include "actors/roles/role_handles.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/roles/batch_pack.hpp"
#include "actors/roles/select_present.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/task/failure.hpp"

#include <numeric>
#include <utility>
#include <vector>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using runtime::value_or_throw;

namespace {

/// Rows in an order that `split(ranks)` shares out evenly.
RowOrder row_order(const Batch& batch, int ranks, bool balance) {
  if (balance) return value_or_throw(balanced_order(batch, ranks));
  RowOrder identity;
  identity.order.resize(static_cast<std::size_t>(batch.rows()));
  std::iota(identity.order.begin(), identity.order.end(), 0);
  identity.inverse = identity.order;
  return identity;
}

/// The rows of `batch` so that `split(ranks)` shares them out evenly.
Batch shared_out(const Batch& batch, int ranks, bool balance) {
  return value_or_throw(batch.reorder(row_order(batch, ranks, balance).order));
}

/// The batch with a `sequence_id` column: the row's place in it, counted from `first_id`.
Batch with_sequence_ids(Batch batch, std::int64_t first_id) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(batch.rows()));
  std::iota(ids.begin(), ids.end(), first_id);
  value_or_throw(batch.set(std::string(column::kSequenceId), Column::dense(std::move(ids))));
  return batch;
}

/// The columns that a value update reads.
Batch value_columns(const Batch& batch) {
  return select_present(batch, {column::kPrompts, column::kResponses, column::kResponseMask,
                                column::kGroup, column::kValues, column::kReturns});
}

/// The mini-batches of epoch `epoch` of update number `update`, rows balanced for `ranks`.
std::vector<Batch> planned_minibatches(const Batch& batch, const MinibatchPlan& plan,
                                       std::int64_t update, std::int64_t epoch, int ranks) {
  const auto stream = static_cast<std::uint64_t>(update * plan.epochs + epoch);
  std::vector<Batch> parts = batch.minibatches({.rows = plan.rows,
                                                .shuffle = plan.shuffle,
                                                .seed = mix_seed(plan.seed, stream),
                                                .drop_last = false});
  for (Batch& part : parts) part = shared_out(part, ranks, plan.balance);
  return parts;
}

}  // namespace

task<Batch> GroupReference::log_probs(Batch batch) {
  Batch needed =
      request_.compare
          ? select_present(batch, {column::kPrompts, column::kResponses, column::kGroup,
                                   column::kResponseMask, column::kRolloutLogProbs})
          : select_present(batch, {column::kPrompts, column::kResponses, column::kGroup});
  const RowOrder rows = row_order(needed, group_.mesh().data_parts(), balance_);
  needed = value_or_throw(needed.reorder(rows.order));
  Batch found = co_await group_.call<&PolicyWorker::log_probs>(std::move(needed), request_);
  co_return value_or_throw(found.reorder(rows.inverse));
}

Batch GroupPolicy::update_columns(const Batch& batch, std::int64_t first_id) const {
  Batch needed = select_present(batch, {column::kPrompts, column::kResponses, column::kResponseMask,
                                        column::kGroup, column::kOldLogProbs, column::kAdvantages,
                                        column::kReferenceLogProbs, column::kRolloutWeights});
  const auto add = [&](std::string_view name) {
    value_or_throw(needed.set(std::string(name), value_or_throw(batch.require(name))));
  };
  if (settings_.correction.reads_rollout) add(column::kRolloutLogProbs);
  if (settings_.correction.interpolates) add(column::kVersions);
  return with_sequence_ids(std::move(needed), first_id);
}

PolicyUpdateSettings GroupPolicy::update_settings(std::int64_t epoch, double progress) const {
  PolicyUpdateSettings settings = settings_;
  settings.objective.loss.seed = mix_seed(
      settings_.objective.loss.seed, static_cast<std::uint64_t>(updates_ * plan_.epochs + epoch));
  settings.correction.version_proximal = updates_;
  settings.correction.version_policy = static_cast<double>(updates_) + progress;
  return settings;
}

task<Metrics> GroupPolicy::update(Batch batch) {
  Batch needed = update_columns(batch);
  Metrics metrics;
  double done = 0;
  for (std::int64_t epoch = 0; epoch < plan_.epochs; ++epoch) {
    const std::vector<Batch> parts =
        planned_minibatches(needed, plan_, updates_, epoch, group_.mesh().data_parts());
    const double total = static_cast<double>(plan_.epochs) * static_cast<double>(parts.size());
    for (const Batch& part : parts) {
      PolicyUpdateSettings settings = update_settings(epoch, done / total);
      Metrics step = co_await group_.call<&PolicyWorker::update>(part, std::move(settings));
      value_or_throw(metrics.merge(step));
      done += 1;
    }
  }
  ++updates_;
  co_return metrics;
}

task<Metrics> GroupPolicy::accumulate(Batch part) {
  Batch needed =
      shared_out(update_columns(part, rows_streamed_), group_.mesh().data_parts(), plan_.balance);
  PolicyUpdateSettings settings = update_settings(0, 0.0);
  Metrics metrics =
      co_await group_.call<&PolicyWorker::accumulate>(std::move(needed), std::move(settings));
  rows_streamed_ += part.rows();
  co_return metrics;
}

task<Metrics> GroupPolicy::finish_step() {
  Metrics metrics = co_await group_.call<&PolicyWorker::finish_step>();
  rows_streamed_ = 0;
  ++updates_;
  co_return metrics;
}

task<void> GroupPolicy::abandon_step() {
  rows_streamed_ = 0;
  co_await group_.call<&PolicyWorker::abandon_step>();
}

task<Batch> GroupCritic::values(Batch batch) {
  Batch needed = select_present(batch, {column::kPrompts, column::kResponses, column::kGroup});
  const RowOrder rows = row_order(needed, group_.mesh().data_parts(), plan_.balance);
  needed = value_or_throw(needed.reorder(rows.order));
  Batch found = co_await group_.call<&CriticWorker::values>(std::move(needed));
  co_return value_or_throw(found.reorder(rows.inverse));
}

task<Metrics> GroupCritic::update(Batch batch) {
  const Batch needed = value_columns(batch);
  Metrics metrics;
  for (std::int64_t epoch = 0; epoch < plan_.epochs; ++epoch) {
    const std::vector<Batch> parts =
        planned_minibatches(needed, plan_, updates_, epoch, group_.mesh().data_parts());
    for (const Batch& part : parts) {
      Metrics step = co_await group_.call<&CriticWorker::update>(part, settings_);
      value_or_throw(metrics.merge(step));
    }
  }
  ++updates_;
  co_return metrics;
}

task<Metrics> GroupCritic::accumulate(Batch part) {
  Batch needed = shared_out(value_columns(part), group_.mesh().data_parts(), plan_.balance);
  Metrics metrics = co_await group_.call<&CriticWorker::accumulate>(std::move(needed), settings_);
  co_return metrics;
}

task<Metrics> GroupCritic::finish_step() {
  Metrics metrics = co_await group_.call<&CriticWorker::finish_step>();
  ++updates_;
  co_return metrics;
}

task<void> GroupCritic::abandon_step() { co_await group_.call<&CriticWorker::abandon_step>(); }

}  // namespace troupe::actors
