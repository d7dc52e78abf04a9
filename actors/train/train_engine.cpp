#include "actors/train/train_engine.hpp"

#include "actors/train/train_engine_impl.hpp"
#include "runtime/base/check.hpp"

#include <torch/torch.h>

#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

Bytes bytes_of(std::size_t floats) {
  return Bytes{static_cast<std::int64_t>(floats * sizeof(float))};
}

std::span<const float> floats_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

TrainEngine::TrainEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainEngine::~TrainEngine() = default;

result<std::unique_ptr<TrainEngine>> TrainEngine::create(const ModelConfig& config,
                                                         std::span<const NamedTensor> weights,
                                                         TrainEngineOptions options,
                                                         runtime::Collective* collective) {
  TROUPE_TRY_VOID(check_options(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->collective = collective;
  impl->use_threads();
  TROUPE_TRY(impl->decoder, Decoder::create(config, weights,
                                            {.trainable = options.trainable,
                                             .value_head = options.head == ModelHead::kValue,
                                             .recompute = options.recompute}));
  if (options.trainable) {
    const std::size_t floats = impl->decoder->parameters().weights().size();
    impl->first_moment.assign(floats, 0.0F);
    impl->second_moment.assign(floats, 0.0F);
  }
  return std::unique_ptr<TrainEngine>(new TrainEngine(std::move(impl)));
}

void TrainEngine::Impl::use_threads() const {
  if (at::get_num_threads() != options.threads) at::set_num_threads(options.threads);
}

ModelOutput TrainEngine::Impl::forward(const MicroBatch& batch, double temperature) {
  const at::Tensor hidden =
      decoder->hidden({.tokens = batch.tokens, .offsets = batch.offsets, .rows = batch.rows});
  if (critic()) return {.primary = decoder->values(hidden), .entropy = {}};
  const at::Tensor targets =
      torch::tensor(at::ArrayRef<std::int64_t>(batch.targets), torch::kInt64);
  const TokenLogProb out = decoder->log_probs(
      hidden, targets, {.temperature = temperature, .chunk_tokens = options.logit_chunk_tokens});
  return {.primary = out.log_prob, .entropy = out.entropy};
}

result<TokenLogProbs> TrainEngine::log_probs(const PackedSequences& sequences, float temperature,
                                             bool want_entropy) {
  if (impl_->critic())
    return fail(ErrorCode::kInvalidArgument, "log_probs: this engine has a value head");
  if (!(temperature > 0) || !std::isfinite(temperature))
    return fail(ErrorCode::kInvalidArgument, "log_probs: temperature {} is not positive",
                temperature);
  impl_->use_threads();
  TROUPE_TRY(const Shard shard, impl_->make_shard(sequences, {}, impl_->forward_tokens_max()));
  const at::NoGradGuard no_gradient;
  TokenLogProbs out;
  out.log_probs.resize(shard.mask.size());
  if (want_entropy) out.entropy.resize(shard.mask.size());
  for (const MicroBatch& batch : shard.batches) {
    if (batch.rows.empty()) continue;
    const ModelOutput model = impl_->forward(batch, static_cast<double>(temperature));
    batch.put(floats_of(model.primary), out.log_probs);
    if (want_entropy) batch.put(floats_of(model.entropy), out.entropy);
  }
  return out;
}

result<std::vector<float>> TrainEngine::values(const PackedSequences& sequences) {
  if (!impl_->critic())
    return fail(ErrorCode::kInvalidArgument, "values: this engine has a language-model head");
  impl_->use_threads();
  TROUPE_TRY(const Shard shard, impl_->make_shard(sequences, {}, impl_->forward_tokens_max()));
  const at::NoGradGuard no_gradient;
  std::vector<float> out(shard.mask.size());
  for (const MicroBatch& batch : shard.batches)
    if (!batch.rows.empty()) batch.put(floats_of(impl_->forward(batch, 1.0).primary), out);
  return out;
}

std::span<const NamedTensor> TrainEngine::weights() const {
  return impl_->decoder->parameters().tensors();
}

result<void> TrainEngine::set_weights(std::span<const NamedTensor> source) {
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
          .gradients = bytes_of(parameters.gradients().size()),
          .optimizer = bytes_of(impl_->first_moment.size() + impl_->second_moment.size()),
          .activations_peak = Bytes{impl_->activations_peak}};
}

Bytes TrainEngine::offload() {
  const Bytes freed = bytes_of(impl_->decoder->parameters().gradients().size());
  impl_->decoder->parameters().release_gradients();
  return freed;
}

void TrainEngine::onload() {
  if (impl_->options.trainable) impl_->decoder->parameters().zero_gradients();
}

}  // namespace troupe::actors
