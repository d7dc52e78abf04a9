// What a step does with gradients that are cut over ranks: level the work before, sum, clip,
// update.
#include "actors/train/adamw.hpp"
#include "actors/train/train_engine_impl.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

/// One token that nothing is learnt from, for ranks that have run out of work.
MicroBatch idle_batch() {
  MicroBatch batch;
  batch.tokens = {0};
  batch.offsets = {0, 1};
  batch.rows = {0};
  batch.targets = {0};
  batch.response_offsets = {0};
  return batch;
}

template <class T>
std::span<T> part(std::span<T> buffer, std::int64_t offset, std::int64_t count) {
  return buffer.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
}

}  // namespace

result<void> TrainEngine::Impl::level(Shard& shard) {
  if (!decoder->parameters().weights_are_cut()) return {};
  for (std::size_t b = shard.batches.size(); b-- > 0;) {
    if (!shard.batches[b].rows.empty()) continue;
    const auto at = static_cast<std::ptrdiff_t>(b);
    shard.batches.erase(shard.batches.begin() + at);
    shard.masks.erase(shard.masks.begin() + at);
  }
  TROUPE_TRY(const std::int64_t most,
             told(runtime::all_reduce_value(*shards->shard(),
                                            static_cast<std::int64_t>(shard.batches.size()),
                                            runtime::ReduceOp::kMax, deadline())));
  while (static_cast<std::int64_t>(shard.batches.size()) < most) {
    shard.batches.push_back(idle_batch());
    shard.masks.emplace_back();
  }
  return {};
}

result<void> TrainEngine::Impl::sum_gradients() {
  FlatParameters& parameters = decoder->parameters();
  // Stages cut their updates differently, so ends meet while both still have all gradients.
  const bool ends_first = parameters.updates_are_cut() && !parameters.weights_are_cut();
  if (ends_first) TROUPE_TRY_VOID(sum_tied_embedding());
  TROUPE_TRY_VOID(parameters.reduce_gradients());
  if (shards->replicas() != nullptr)
    TROUPE_TRY_VOID(shards->replicas()->all_reduce(parameters.shard_gradients(),
                                                   runtime::ReduceOp::kSum, deadline()));
  return ends_first ? result<void>() : sum_tied_embedding();
}

result<void> TrainEngine::Impl::sum_tied_embedding() {
  if (groups->ends() == nullptr || critic()) return {};
  FlatParameters& parameters = decoder->parameters();
  TROUPE_CHECK(parameters.find(kEmbedding) != nullptr,
               "train engine: an end of the pipeline has no embedding");
  // Both ends cut this unit alike: it holds nothing else.
  for (const ParameterRun& run : parameters.weight_runs())
    if (parameters.segments()[run.segment].name == kEmbedding)
      return groups->ends()->all_reduce(part(parameters.gradients(), run.weight_offset, run.count),
                                        runtime::ReduceOp::kSum, deadline());
  return {};  // this rank's share of it is padding, on both ends
}

result<double> TrainEngine::Impl::global_gradient_norm() {
  FlatParameters& parameters = decoder->parameters();
  if (is_whole()) return gradient_norm(parameters.gradients());
  double squares = 0;
  for (const ParameterRun& run : parameters.runs()) {
    if (!parameters.segments()[run.segment].tensor.owned) continue;
    const double norm =
        gradient_norm(part(parameters.shard_gradients(), run.shard_offset, run.count));
    squares += norm * norm;
  }
  for (runtime::Collective* group : {shards->shard(), groups->replica()})
    if (group != nullptr) {
      TROUPE_TRY(squares,
                 runtime::all_reduce_value(*group, squares, runtime::ReduceOp::kSum, deadline()));
    }
  return std::sqrt(squares);
}

result<StepReport> TrainEngine::Impl::apply_gradients(bool nothing_to_learn, double scale) {
  FlatParameters& parameters = decoder->parameters();
  TROUPE_TRY(const double norm, global_gradient_norm());
  StepReport report{.gradient_norm = scale * norm,
                    .lr = learning_rate(options.optimizer, steps),
                    .skipped = false};
  report.skipped = nothing_to_learn || !std::isfinite(report.gradient_norm);
  if (report.skipped) return report;  // equal on all ranks: the norm has the same bits
  ++steps;
  const double factor = scale * clip_factor(report.gradient_norm, options.optimizer.grad_norm_max);
  for (const ParameterRun& run : parameters.runs()) {
    const bool decay = parameters.segments()[run.segment].is_matrix();
    adamw(options.optimizer,
          {.lr = report.lr, .gradient_scale = factor, .step = steps, .decay = decay},
          part(parameters.weights(), run.weight_offset, run.count),
          part(parameters.shard_gradients(), run.shard_offset, run.count),
          part(std::span(first_moment), run.shard_offset, run.count),
          part(std::span(second_moment), run.shard_offset, run.count));
  }
  TROUPE_TRY_VOID(parameters.gather_weights());
  return report;
}

}  // namespace troupe::actors
