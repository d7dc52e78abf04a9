#include "actors/train/train_engine.hpp"

#include "actors/train/train_engine_impl.hpp"
#include "runtime/base/check.hpp"

#include <torch/types.h>

#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

Bytes bytes_of(std::size_t floats) {
  return Bytes{static_cast<std::int64_t>(floats * sizeof(float))};
}

DecoderPart decoder_part(const ModelConfig& config, const ParallelOptions& parallel,
                         const TrainGroups& groups) {
  const MeshPlace& place = groups.place();
  DecoderPart part{
      .tensor = groups.tensor(), .first = place.pp == 0, .last = place.pp + 1 == place.pp_size};
  const std::vector<LayerRun> runs = layer_runs(config, parallel);
  for (std::size_t r = static_cast<std::size_t>(place.pp); r < runs.size();
       r += static_cast<std::size_t>(place.pp_size))
    part.runs.push_back({.begin = runs[r].begin, .end = runs[r].end});
  return part;
}

}  // namespace

TrainEngine::TrainEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainEngine::~TrainEngine() = default;

result<std::unique_ptr<TrainEngine>> TrainEngine::create(const ModelConfig& config,
                                                         std::span<const NamedTensor> weights,
                                                         TrainEngineOptions options,
                                                         runtime::Collective* collective) {
  TROUPE_TRY_VOID(check_options(options));
  TROUPE_TRY_VOID(config.validate());
  TROUPE_TRY_VOID(
      check_parallel(config, options.parallel, collective == nullptr ? 1 : collective->size()));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->groups = std::make_unique<TrainGroups>(collective, config, options.parallel,
                                               options.collective_timeout);
  impl->use_threads();
  const MeshPlace& place = impl->groups->place();
  impl->shards = std::make_unique<ShardGroups>(options.parallel, place.dp, place.dp_size,
                                               options.collective_timeout);
  result<std::unique_ptr<Decoder>> decoder =
      Decoder::create(config, weights,
                      {.trainable = options.trainable,
                       .value_head = options.head == ModelHead::kValue,
                       .recompute = options.recompute,
                       .part = decoder_part(config, options.parallel, *impl->groups),
                       .shards = impl->shards->shards()});
  // The groups are cut together, so a rank that cannot take part must say so first.
  if (place.cut()) {
    TROUPE_TRY_VOID(impl->agree(error_of(decoder), {}));
    TROUPE_TRY_VOID(impl->begin());
  }
  TROUPE_TRY(impl->decoder, std::move(decoder));
  FlatParameters& parameters = impl->decoder->parameters();
  impl->weight_buffer = parameters.weights();
  if (options.trainable) {
    const auto floats = static_cast<std::size_t>(parameters.shard_elements());
    impl->first_moment.assign(floats, 0.0F);
    impl->second_moment.assign(floats, 0.0F);
  }
  return std::unique_ptr<TrainEngine>(new TrainEngine(std::move(impl)));
}

void TrainEngine::Impl::use_threads() const {
  if (at::get_num_threads() != options.threads) at::set_num_threads(options.threads);
}

result<TokenLogProbs> TrainEngine::log_probs(const PackedSequences& sequences,
                                             const SamplingTransform& transform,
                                             bool want_entropy) {
  TROUPE_TRY_VOID(impl_->begin());
  const auto checked = [&]() -> result<Shard> {
    if (impl_->critic())
      return fail(ErrorCode::kInvalidArgument, "log_probs: this engine has a value head");
    if (!(transform.temperature > 0) || !std::isfinite(transform.temperature))
      return fail(ErrorCode::kInvalidArgument, "log_probs: temperature {} is not positive",
                  transform.temperature);
    if (transform.has_truncation()) TROUPE_TRY_VOID(transform.check());
    return impl_->make_shard(sequences, {}, impl_->forward_tokens_max());
  };
  result<Shard> shard = checked();
  TROUPE_TRY_VOID(impl_->agree_replica(error_of(shard)));
  TROUPE_TRY(ShardOutput out, impl_->forward_all(*shard, transform));
  if (!want_entropy) out.entropy.clear();
  return TokenLogProbs{.log_probs = std::move(out.primary), .entropy = std::move(out.entropy)};
}

result<std::vector<float>> TrainEngine::values(const PackedSequences& sequences) {
  TROUPE_TRY_VOID(impl_->begin());
  const auto checked = [&]() -> result<Shard> {
    if (!impl_->critic())
      return fail(ErrorCode::kInvalidArgument, "values: this engine has a language-model head");
    return impl_->make_shard(sequences, {}, impl_->forward_tokens_max());
  };
  result<Shard> shard = checked();
  TROUPE_TRY_VOID(impl_->agree_replica(error_of(shard)));
  TROUPE_TRY(ShardOutput out, impl_->forward_all(*shard, {}));
  return std::move(out.primary);
}

std::span<const NamedTensor> TrainEngine::weights() const {
  TROUPE_CHECK(!impl_->groups->place().cut() && !impl_->decoder->parameters().weights_are_cut(),
               "train engine: weights() of an engine that holds a part of the model only; its "
               "layout() and buffers() say what");
  return impl_->decoder->parameters().tensors();
}

result<void> TrainEngine::set_weights(std::span<const NamedTensor> source) {
  TROUPE_TRY_VOID(impl_->check_not_streaming("set_weights"));
  return impl_->decoder->set_weights(source);
}

std::int64_t TrainEngine::optimizer_steps() const { return impl_->steps; }

std::int64_t TrainEngine::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSegment& segment : impl_->decoder->parameters().segments())
    count += segment.count;
  return count;
}

const ModelConfig& TrainEngine::config() const { return impl_->decoder->config(); }
const TrainEngineOptions& TrainEngine::options() const { return impl_->options; }

TrainMemory TrainEngine::memory() const {
  FlatParameters& parameters = impl_->decoder->parameters();
  return {.weights = bytes_of(parameters.weights().size()),
          .gradients = bytes_of(parameters.gradient_elements()),
          .optimizer = bytes_of(impl_->first_moment.size() + impl_->second_moment.size()),
          .activations_peak = Bytes{impl_->activations_peak},
          .micro_batches_peak = impl_->micro_batches_peak,
          .gathered = Bytes{parameters.gathered_bytes()},
          .gathered_peak = Bytes{parameters.gathered_bytes_peak()}};
}

Bytes TrainEngine::offload() {
  FlatParameters& parameters = impl_->decoder->parameters();
  const auto bytes = [&parameters] {
    return bytes_of(parameters.gradient_elements()) + Bytes{parameters.gathered_bytes()};
  };
  const Bytes held = bytes();
  if (!step_is_open()) parameters.release_gradients();
  parameters.trim();
  return held - bytes();
}

void TrainEngine::onload() {
  if (impl_->options.trainable && !step_is_open()) impl_->decoder->parameters().zero_gradients();
}

}  // namespace troupe::actors
