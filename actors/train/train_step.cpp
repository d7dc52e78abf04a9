// What every update does between its checks and its metrics: agree, accumulate, sum, clip, step.
#include "actors/train/allocation_meter.hpp"
#include "actors/train/train_engine_impl.hpp"
#include "runtime/base/check.hpp"
#include "runtime/task/failure.hpp"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
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
  TROUPE_TRY_VOID(check_sequences(sequences, decoder->config().vocab_size,
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
  TROUPE_TRY(shard.batches, make_micro_batches(sequences, tokens_max, options.share_prompts));
  for (std::size_t b = 0; b < shard.batches.size(); ++b) {
    shard.masks.push_back(shard.batches[b].part(std::span<const std::uint8_t>(shard.mask)));
    shard.counts += count_tokens(shard.view(b));
  }
  return shard;
}

result<void> TrainEngine::Impl::check_trainable(ModelHead head, std::string_view call) const {
  if (!options.trainable)
    return fail(ErrorCode::kInvalidArgument, "{}: this engine was created with trainable = false",
                call);
  if (options.head != head)
    return fail(ErrorCode::kInvalidArgument, "{}: this engine has the other head ({})", call,
                options.head == ModelHead::kValue ? "value" : "language model");
  return {};
}

result<void> TrainEngine::Impl::check_not_streaming(std::string_view call) const {
  if (!streamed) return {};
  return fail(ErrorCode::kConflict,
              "{}: a streamed step of {} parts is open; finish or abandon it first", call,
              streamed->parts);
}

result<void> TrainEngine::Impl::check_update(ModelHead head, std::string_view call) const {
  TROUPE_TRY_VOID(check_trainable(head, call));
  return check_not_streaming(call);
}

result<void> TrainEngine::Impl::begin() {
  use_threads();
  TROUPE_TRY_VOID(groups->refresh());
  if (groups->dp() == nullptr) return {};
  return told(shards->refresh(groups->dp(), groups->world()->epoch()));
}

result<TokenCounts> TrainEngine::Impl::agree(const std::optional<Error>& mine, TokenCounts counts) {
  runtime::Collective* world = groups->world();
  if (world == nullptr) {
    if (mine) return fail(*mine);
    return counts;
  }
  constexpr std::size_t kWords = 3;
  const std::vector<std::int64_t> word = {counts.tokens, counts.sequences, mine ? 1 : 0};
  std::vector<std::int64_t> all(kWords * static_cast<std::size_t>(world->size()));
  TROUPE_TRY_VOID(world->all_gather(word, all, deadline()));
  if (mine) return fail(*mine);
  for (std::size_t r = 0; r * kWords < all.size(); ++r)
    if (all[r * kWords + 2] != 0)
      return fail(ErrorCode::kAborted, "{}: rank {} refused its share of the update", world->name(),
                  r);
  TokenCounts sum;
  for (int r = 0; r < world->size(); ++r) {
    const MeshPlace place = mesh_place(options.parallel, r, world->size());
    const auto at = [&all](int rank) { return kWords * static_cast<std::size_t>(rank); };
    const int speaker = place.dp * place.tp_size;
    if (r == speaker)
      sum += TokenCounts{.tokens = all[at(r)], .sequences = all[at(r) + 1]};
    else if (all[at(r)] != all[at(speaker)] || all[at(r) + 1] != all[at(speaker) + 1])
      return fail(ErrorCode::kConflict,
                  "{}: rank {} got {} tokens in {} sequences, rank {} of the same data-parallel "
                  "part {} in {}",
                  world->name(), r, all[at(r)], all[at(r) + 1], speaker, all[at(speaker)],
                  all[at(speaker) + 1]);
  }
  return sum;
}

result<void> TrainEngine::Impl::agree_replica(const std::optional<Error>& mine) {
  if (decoder->parameters().weights_are_cut()) {
    TROUPE_TRY_VOID(agree(mine, {}));
    return {};
  }
  runtime::Collective* peers = groups->replica();
  if (peers == nullptr) {
    if (mine) return fail(*mine);
    return {};
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(peers->size()));
  const std::vector<std::int64_t> word = {mine ? 1 : 0};
  TROUPE_TRY_VOID(told(peers->all_gather(word, all, deadline())));
  if (mine) return fail(*mine);
  const auto refused = std::ranges::find(all, 1);
  if (refused == all.end()) return {};
  return fail(ErrorCode::kAborted, "{}: rank {} refused its sequences", peers->name(),
              refused - all.begin());
}

result<void> TrainEngine::Impl::guarded(const std::function<result<void>()>& work) {
  try {
    const result<void> done = work();
    TROUPE_TRY_VOID(told(decoder->parameters().take_failure()));
    return done;
  } catch (const runtime::Failure& failure) {
    groups->abort(failure.error());
    return fail(failure.error());
  }
}

void backward(const ModelOutput& out, OutputGradient& gradient) {
  // Peers meet in backward, so it runs even where there is nothing to learn.
  const auto size = static_cast<std::size_t>(out.primary.numel());
  if (gradient.primary.empty()) gradient.primary.assign(size, 0.0F);
  torch::autograd::variable_list outputs = {out.primary};
  torch::autograd::variable_list gradients = {wrap(gradient.primary)};
  if (!gradient.entropy.empty()) {
    outputs.push_back(out.entropy);
    gradients.push_back(wrap(gradient.entropy));
  }
  torch::autograd::backward(outputs, gradients);
}

OutputGradient loss_gradient(const BatchLoss& loss, std::size_t batch, const ModelOutput& out,
                             std::optional<Error>& error) {
  if (error) return {};
  result<OutputGradient> gradient =
      loss(batch, {.primary = floats_of(out.primary), .entropy = floats_of(out.entropy)});
  if (gradient) return std::move(*gradient);
  error = gradient.error();
  return {};
}

void put_output(const MicroBatch& batch, const ModelOutput& model, ShardOutput& out) {
  batch.put(floats_of(model.primary), out.primary);
  if (model.entropy.defined()) batch.put(floats_of(model.entropy), out.entropy);
}

ModelOutput TrainEngine::Impl::head(const MicroBatch& batch, const at::Tensor& hidden,
                                    const SamplingTransform& transform) {
  if (critic()) return {.primary = decoder->values(hidden), .entropy = {}};
  const at::Tensor targets =
      torch::tensor(at::ArrayRef<std::int64_t>(batch.targets), torch::kInt64);
  const TokenLogProb out = decoder->log_probs(
      hidden, targets,
      {.temperature = transform.temperature, .chunk_tokens = options.logit_chunk_tokens},
      transform.has_truncation() ? &transform : nullptr);
  return {.primary = out.log_prob, .entropy = out.entropy};
}

void TrainEngine::Impl::forward_whole(const Shard& shard, const SamplingTransform& transform,
                                      ShardOutput& out) {
  for (const MicroBatch& batch : shard.batches)
    if (!batch.rows.empty())
      put_output(batch, head(batch, decoder->hidden(input_of(batch)), transform), out);
}

result<ShardOutput> TrainEngine::Impl::forward_all(Shard& shard,
                                                   const SamplingTransform& transform) {
  TROUPE_TRY_VOID(level(shard));
  ShardOutput out;
  out.primary.resize(shard.mask.size());
  if (!critic()) out.entropy.resize(shard.mask.size());
  TROUPE_TRY_VOID(guarded([&]() -> result<void> {
    const at::NoGradGuard no_gradient;
    if (groups->pp() == nullptr)
      forward_whole(shard, transform, out);
    else
      forward_pipeline(shard, transform, out);
    return {};
  }));
  return out;
}

result<void> TrainEngine::Impl::accumulate_whole(const Shard& shard,
                                                 const SamplingTransform& transform,
                                                 const BatchLoss& loss) {
  std::optional<Error> error;
  for (std::size_t b = 0; b < shard.batches.size(); ++b) {
    const MicroBatch& batch = shard.batches[b];
    if (batch.rows.empty()) continue;
    // Only a larger micro-batch than any before can hold more; the others are not slowed down.
    const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
    std::optional<AllocationMeter> meter;
    if (tokens > metered_tokens) meter.emplace();
    {
      const ModelOutput out = head(batch, decoder->hidden(input_of(batch)), transform);
      OutputGradient gradient = loss_gradient(loss, b, out, error);
      backward(out, gradient);
    }
    if (meter) {
      metered_tokens = tokens;
      activations_peak = std::max(activations_peak, meter->peak_bytes());
    }
    micro_batches_peak = std::max<std::int64_t>(micro_batches_peak, 1);
  }
  if (error) return fail(*error);
  return {};
}

result<void> TrainEngine::Impl::accumulate(Shard& shard, const SamplingTransform& transform,
                                           const BatchLoss& loss) {
  decoder->parameters().zero_gradients();
  return add_gradients(shard, transform, loss);
}

result<void> TrainEngine::Impl::add_gradients(Shard& shard, const SamplingTransform& transform,
                                              const BatchLoss& loss) {
  TROUPE_TRY_VOID(level(shard));
  const BatchLoss of_work = [&](std::size_t b, ModelValues values) -> result<OutputGradient> {
    if (shard.batches[b].origin.empty()) return OutputGradient{};
    return loss(b, values);
  };
  return guarded([&] {
    return groups->pp() == nullptr ? accumulate_whole(shard, transform, of_work)
                                   : accumulate_pipeline(shard, transform, of_work);
  });
}

result<StepReport> TrainEngine::Impl::optimize(Shard& shard, const SamplingTransform& transform,
                                               TokenCounts global, const BatchLoss& loss,
                                               WeightedSums& sums) {
  const result<void> done = accumulate(shard, transform, loss);
  TROUPE_TRY_VOID(agree(done ? std::nullopt : std::optional<Error>(done.error()), shard.counts));
  const auto finish = [&]() -> result<StepReport> {
    TROUPE_TRY_VOID(share_sums(sums));
    TROUPE_TRY_VOID(sum_gradients());
    return apply_gradients(global.tokens == 0);
  };
  return told(finish());  // only a collective can fail there
}

}  // namespace troupe::actors
