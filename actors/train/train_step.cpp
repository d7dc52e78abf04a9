// What every update does between its checks and its metrics: agree, accumulate, sum, clip, step.
#include "actors/train/adamw.hpp"
#include "actors/train/allocation_meter.hpp"
#include "actors/train/train_engine_impl.hpp"
#include "runtime/base/check.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

std::span<const float> floats_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// A tensor over the vector's memory, which must outlive it; undefined when empty.
at::Tensor wrap(std::vector<float>& values) {
  if (values.empty()) return {};
  return torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())},
                          torch::kFloat32);
}

void backward(const ModelOutput& out, OutputGradient& gradient) {
  torch::autograd::variable_list outputs;
  torch::autograd::variable_list gradients;
  if (!gradient.primary.empty()) {
    outputs.push_back(out.primary);
    gradients.push_back(wrap(gradient.primary));
  }
  if (!gradient.entropy.empty()) {
    outputs.push_back(out.entropy);
    gradients.push_back(wrap(gradient.entropy));
  }
  if (!outputs.empty()) torch::autograd::backward(outputs, gradients);
}

}  // namespace

result<void> check_size(std::span<const float> values, std::int64_t tokens, std::string_view name,
                        bool optional) {
  if (static_cast<std::int64_t>(values.size()) == tokens) return {};
  if (optional && values.empty()) return {};
  return fail(ErrorCode::kInvalidArgument, "update: {} has {} entries for {} response tokens", name,
              values.size(), tokens);
}

void add_metrics(const WeightedSums& sums, runtime::Metrics& metrics) {
  for (const auto& [name, sum] : sums.entries())
    if (sum.weight > 0)
      metrics.add(name, sum.sum / sum.weight, runtime::Reduction::kMean, sum.weight);
}

void add_step_metrics(const StepReport& report, std::string_view prefix,
                      runtime::Metrics& metrics) {
  const std::string start(prefix);
  metrics.add(start + "/grad_norm", report.gradient_norm, runtime::Reduction::kMean);
  metrics.add(start + "/lr", report.lr, runtime::Reduction::kMean);
  metrics.add(start + "/step_skipped", report.skipped ? 1.0 : 0.0, runtime::Reduction::kMean);
}

result<Shard> TrainEngine::Impl::make_shard(const PackedSequences& sequences,
                                            std::span<const std::uint8_t> mask,
                                            std::int64_t tokens_max) const {
  TROUPE_TRY_VOID(
      check_sequences(sequences, decoder->config().vocab_size,
                      std::min(tokens_max, decoder->config().positions_max)));
  Shard shard;
  const auto tokens = static_cast<std::size_t>(sequences.response_tokens());
  if (mask.empty())
    shard.mask.assign(tokens, 1);
  else
    shard.mask.assign(mask.begin(), mask.end());
  if (shard.mask.size() != tokens)
    return fail(ErrorCode::kInvalidArgument, "update: mask has {} entries for {} response tokens",
                shard.mask.size(), tokens);
  TROUPE_TRY(shard.batches, make_micro_batches(sequences, tokens_max));
  for (std::size_t b = 0; b < shard.batches.size(); ++b) {
    shard.masks.push_back(shard.batches[b].part(std::span<const std::uint8_t>(shard.mask)));
    shard.counts += count_tokens(shard.view(b));
  }
  return shard;
}

result<TokenCounts> TrainEngine::Impl::agree(const std::optional<Error>& mine, TokenCounts counts) {
  if (collective == nullptr) {
    if (mine) return fail(*mine);
    return counts;
  }
  constexpr std::size_t kWords = 3;
  const std::vector<std::int64_t> word = {counts.tokens, counts.sequences, mine ? 1 : 0};
  std::vector<std::int64_t> all(kWords * static_cast<std::size_t>(collective->size()));
  TROUPE_TRY_VOID(collective->all_gather(word, all, deadline()));
  if (mine) return fail(*mine);
  TokenCounts sum;
  for (std::size_t r = 0; r * kWords < all.size(); ++r) {
    if (all[r * kWords + 2] != 0)
      return fail(ErrorCode::kAborted, "{}: rank {} refused its share of the update",
                  collective->name(), r);
    sum += TokenCounts{.tokens = all[r * kWords], .sequences = all[r * kWords + 1]};
  }
  return sum;
}

result<void> TrainEngine::Impl::accumulate(const Shard& shard, double temperature,
                                           const BatchLoss& loss) {
  decoder->parameters().zero_gradients();
  for (std::size_t b = 0; b < shard.batches.size(); ++b) {
    const MicroBatch& batch = shard.batches[b];
    if (batch.rows.empty()) continue;
    // Only a larger micro-batch than any before can hold more; the others are not slowed down.
    const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
    std::optional<AllocationMeter> meter;
    if (tokens > metered_tokens) meter.emplace();
    {
      const ModelOutput out = forward(batch, temperature);
      TROUPE_TRY(OutputGradient gradient,
                 loss(b, {.primary = floats_of(out.primary), .entropy = floats_of(out.entropy)}));
      backward(out, gradient);
    }
    if (meter) {
      metered_tokens = tokens;
      activations_peak = std::max(activations_peak, meter->peak_bytes());
    }
  }
  return {};
}

result<StepReport> TrainEngine::Impl::optimize(const Shard& shard, double temperature,
                                               TokenCounts global, const BatchLoss& loss) {
  const result<void> done = accumulate(shard, temperature, loss);
  TROUPE_TRY_VOID(agree(done ? std::nullopt : std::optional<Error>(done.error()), {}));
  if (collective != nullptr)
    TROUPE_TRY_VOID(collective->all_reduce(decoder->parameters().gradients(),
                                           runtime::ReduceOp::kSum, deadline()));
  return apply_gradients(global.tokens == 0);
}

StepReport TrainEngine::Impl::apply_gradients(bool nothing_to_learn) {
  FlatParameters& parameters = decoder->parameters();
  StepReport report{.gradient_norm = gradient_norm(parameters.gradients()),
                    .lr = learning_rate(options.optimizer, steps),
                    .skipped = false};
  report.skipped = nothing_to_learn || !std::isfinite(report.gradient_norm);
  if (report.skipped) return report;  // equal on all ranks: the gradients have the same bits
  ++steps;
  const double scale = clip_factor(report.gradient_norm, options.optimizer.grad_norm_max);
  for (const ParameterSegment& segment : parameters.segments()) {
    const auto at = static_cast<std::size_t>(segment.offset);
    const auto count = static_cast<std::size_t>(segment.count);
    adamw(options.optimizer,
          {.lr = report.lr, .gradient_scale = scale, .step = steps, .decay = segment.is_matrix()},
          parameters.weights().subspan(at, count), parameters.gradients().subspan(at, count),
          std::span(first_moment).subspan(at, count), std::span(second_moment).subspan(at, count));
  }
  return report;
}

}  // namespace troupe::actors
