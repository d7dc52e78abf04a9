#include "actors/model/decoder.hpp"

#include "actors/model/rope.hpp"
#include "actors/model/row_ops_torch.hpp"
#include "actors/model/token_log_prob_parallel.hpp"
#include "runtime/base/check.hpp"

#include <torch/types.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace troupe::actors {
namespace {

at::Tensor watched(const UnitLease& lease, at::Tensor output) {
  at::Tensor* const outputs[] = {&output};
  lease.watch(outputs);
  return output;
}

at::Tensor index_tensor(std::span<const std::int64_t> values) {
  const at::Tensor out = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), out.data_ptr<std::int64_t>());
  return out;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const DecoderOptions& options)
    : config_(config),
      options_(options),
      units_(part_units(config, options.value_head, options.part)),
      parameters_(units_.units, part_tensors(config, options.value_head, options.part),
                  options.trainable, options.shards),
      frequencies_(rope_inverse_frequencies(config)) {
  const TensorPlace place = options.part.place();
  context_ = {.shape = {.heads = part_of(config.head_count, place).size(),
                        .kv_heads = kv_heads_of(config, place).size(),
                        .head_dim = config.head_dim},
              .parts = {.qkv_bias = config.qkv_bias,
                        .qk_norm = config.qk_norm,
                        .o_bias = config.o_bias,
                        .mlp_bias = config.mlp_bias},
              .eps = config.rms_norm_eps,
              .rotary = &rotary_,
              .tensor = options.part.tensor};
}

result<std::unique_ptr<Decoder>> Decoder::create(const ModelConfig& config,
                                                 std::span<const NamedTensor> weights,
                                                 const DecoderOptions& options) {
  TROUPE_TRY_VOID(config.validate());
  std::unique_ptr<Decoder> decoder(new Decoder(config, options));
  const std::vector<float> zero(static_cast<std::size_t>(config.hidden_size), 0.0F);
  std::vector<NamedTensor> all(weights.begin(), weights.end());
  const bool has_value_head =
      std::ranges::any_of(all, [](const NamedTensor& t) { return t.name == kValueHead; });
  if (options.value_head && !has_value_head)
    all.push_back({std::string(kValueHead), {1, config.hidden_size}, zero});
  TROUPE_TRY_VOID(decoder->set_weights(all));
  return decoder;
}

result<void> Decoder::set_weights(std::span<const NamedTensor> weights) {
  return parameters_.set_weights(weights);
}

at::Tensor Decoder::hidden(const DecoderInput& input) {
  TROUPE_CHECK(options_.part.first && options_.part.last && units_.run_begins.size() == 2,
               "decoder: hidden states of a part with {} runs", units_.run_begins.size() - 1);
  return run(0, input, at::Tensor());
}

at::Tensor Decoder::embed(const DecoderInput& input) {
  const std::vector<std::int64_t> ids(input.tokens.begin(), input.tokens.end());
  const UnitLease lease = parameters_.lease(units_.embedding);
  // Backward adds to the gradient without reading the weights: nothing to watch.
  const at::Tensor index = index_tensor(ids);
  return context_.tensor == nullptr
             ? select_rows(lease[0], index)
             : vocabulary_parallel_rows(*context_.tensor, vocabulary(), lease[0], index);
}

at::Tensor Decoder::run(std::size_t index, const DecoderInput& input, const at::Tensor& x) {
  TROUPE_CHECK(!input.offsets.empty() && input.offsets.front() == 0 &&
                   input.offsets.back() == static_cast<std::int64_t>(input.tokens.size()),
               "decoder: offsets do not span the {} tokens", input.tokens.size());
  TROUPE_CHECK(index + 1 < units_.run_begins.size(), "decoder: run {} of {}", index,
               units_.run_begins.size() - 1);
  TROUPE_CHECK(input.prefixes.empty() || input.prefixes.size() + 1 == input.offsets.size(),
               "decoder: {} prefixes for {} sequences", input.prefixes.size(),
               input.offsets.size() - 1);
  extend_rotary(rotary_, frequencies_, longest_sequence(input.offsets, input.prefixes));

  const SequenceLayout sequences{
      .offsets = index_tensor(input.offsets),
      .prefixes = input.prefixes.empty() ? at::Tensor() : index_tensor(input.prefixes)};
  const bool first = options_.part.first && index == 0;
  const bool last = options_.part.last && index + 2 == units_.run_begins.size();
  Residual residual{.x = first ? embed(input) : x, .delta = {}};
  const bool recompute = options_.recompute && at::GradMode::is_enabled();
  const std::size_t end = units_.run_begins[index + 1];
  for (std::size_t unit = units_.run_begins[index]; unit < end; ++unit) {
    const LayerSource source{.parameters = &parameters_, .unit = unit};
    const LayerInput layer_input{
        .sequences = sequences,
        .rows = last && unit + 1 == end ? index_tensor(input.rows) : at::Tensor()};
    if (recompute)
      residual.x = decoder_layer_recomputed(source, context_, layer_input, residual.x);
    else
      residual = decoder_layer(source, context_, layer_input, residual);
  }
  if (!last) return residual.delta.defined() ? residual.x + residual.delta : residual.x;
  const UnitLease lease = parameters_.lease(units_.final_norm);
  return watched(lease,
                 add_rms_norm(residual.x, residual.delta, lease[0], config_.rms_norm_eps).normed);
}

IndexRange Decoder::vocabulary() const {
  return part_of(config_.vocab_size, options_.part.place());
}

at::Tensor Decoder::logits(const at::Tensor& hidden) {
  TROUPE_CHECK(!options_.value_head, "decoder: a critic has no logits");
  TROUPE_CHECK(context_.tensor == nullptr, "decoder: the logits are cut over {} ranks",
               context_.tensor->place.size);
  const UnitLease lease = parameters_.lease(units_.head);
  return watched(lease, linear(hidden, lease[0], at::Tensor()));
}

TokenLogProb Decoder::log_probs(const at::Tensor& hidden, const at::Tensor& targets,
                                const TokenLogProbOptions& options,
                                const SamplingTransform* processed) {
  TROUPE_CHECK(!options_.value_head, "decoder: a critic has no log-probs");
  const UnitLease lease = parameters_.lease(units_.head);
  TokenLogProb out = context_.tensor == nullptr
                         ? token_log_prob(hidden, lease[0], targets, options)
                         : token_log_prob_parallel(*context_.tensor, vocabulary(), hidden, lease[0],
                                                   targets, options);
  if (processed != nullptr)
    out.log_prob = processed_log_prob(hidden, lease[0], targets, options, *processed,
                                      {.group = context_.tensor, .rows = vocabulary()});
  at::Tensor* const outputs[] = {&out.log_prob, &out.entropy};
  lease.watch(outputs);
  return out;
}

at::Tensor Decoder::values(const at::Tensor& hidden) {
  TROUPE_CHECK(options_.value_head, "decoder: a language model has no values");
  const UnitLease lease = parameters_.lease(units_.head);
  return watched(lease, linear(hidden, lease[0], at::Tensor()).squeeze(1));
}

}  // namespace troupe::actors
