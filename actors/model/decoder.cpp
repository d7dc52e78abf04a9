#include "actors/model/decoder.hpp"

#include "actors/model/rope.hpp"
#include "actors/model/row_ops_torch.hpp"
#include "runtime/base/check.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace troupe::actors {
namespace {

constexpr const char* kLanguageHead = "lm_head.weight";
constexpr const char* kValueHead = "value_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kFinalNorm = "model.norm.weight";
constexpr std::size_t kEmbeddingUnit = 0;

/// Collects the leaves in the order in which `Decoder` takes them again.
class UnitBuilder {
 public:
  explicit UnitBuilder(std::span<const TensorShape> canonical) {
    for (const TensorShape& tensor : canonical) shapes_.emplace(tensor.name, tensor);
  }

  void begin_unit() { units_.emplace_back(); }
  /// One leaf of all these tensors; the model either has all of them or none.
  void add(const std::vector<std::string>& names) {
    ParameterGroup group;
    for (const std::string& name : names)
      if (const auto found = shapes_.find(name); found != shapes_.end())
        group.push_back(LocalTensor::of(found->second));
    if (group.empty()) return;
    TROUPE_CHECK(group.size() == names.size(), "decoder: only {} of {} tensors beside {}",
                 group.size(), names.size(), names.front());
    units_.back().push_back(std::move(group));
  }
  std::vector<ParameterUnit> take() { return std::move(units_); }

 private:
  std::unordered_map<std::string, TensorShape> shapes_;
  std::vector<ParameterUnit> units_;
};

/// The embedding, each layer, the final norm, and the head unless it is the embedding.
std::vector<ParameterUnit> units_of(const ModelConfig& config,
                                    std::span<const TensorShape> canonical) {
  UnitBuilder builder(canonical);
  builder.begin_unit();
  builder.add({kEmbedding});
  for (std::int64_t l = 0; l < config.layer_count; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    const std::string attention = layer + "self_attn.";
    const std::string mlp = layer + "mlp.";
    builder.begin_unit();
    builder.add({layer + "input_layernorm.weight"});
    for (const char* kind : {".weight", ".bias"})
      builder.add(
          {attention + "q_proj" + kind, attention + "k_proj" + kind, attention + "v_proj" + kind});
    builder.add({attention + "q_norm.weight"});
    builder.add({attention + "k_norm.weight"});
    for (const char* kind : {".weight", ".bias"}) builder.add({attention + "o_proj" + kind});
    builder.add({layer + "post_attention_layernorm.weight"});
    for (const char* kind : {".weight", ".bias"})
      builder.add({mlp + "gate_proj" + kind, mlp + "up_proj" + kind});
    for (const char* kind : {".weight", ".bias"}) builder.add({mlp + "down_proj" + kind});
  }
  builder.begin_unit();
  builder.add({kFinalNorm});
  if (canonical.back().name != kFinalNorm) builder.begin_unit();
  builder.add({kLanguageHead});
  builder.add({kValueHead});
  return builder.take();
}

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

std::vector<TensorShape> decoder_tensors(const ModelConfig& config, bool value_head) {
  std::vector<TensorShape> tensors = expected_tensors(config);
  if (!value_head) return tensors;
  std::erase_if(tensors, [](const TensorShape& tensor) { return tensor.name == kLanguageHead; });
  tensors.push_back({kValueHead, {1, config.hidden_size}});
  return tensors;
}

Decoder::Decoder(const ModelConfig& config, const DecoderOptions& options)
    : config_(config),
      options_(options),
      parameters_(units_of(config, decoder_tensors(config, options.value_head)),
                  decoder_tensors(config, options.value_head), options.trainable),
      final_norm_unit_(static_cast<std::size_t>(config.layer_count) + 1),
      head_unit_(config.tie_embeddings && !options.value_head ? kEmbeddingUnit
                                                              : final_norm_unit_ + 1),
      frequencies_(rope_inverse_frequencies(config)) {
  context_ = {.shape = {.heads = config.head_count,
                        .kv_heads = config.kv_head_count,
                        .head_dim = config.head_dim},
              .parts = {.qkv_bias = config.qkv_bias,
                        .qk_norm = config.qk_norm,
                        .o_bias = config.o_bias,
                        .mlp_bias = config.mlp_bias},
              .eps = config.rms_norm_eps,
              .rotary = &rotary_};
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
    all.push_back({kValueHead, {1, config.hidden_size}, zero});
  TROUPE_TRY_VOID(decoder->set_weights(all));
  return decoder;
}

result<void> Decoder::set_weights(std::span<const NamedTensor> weights) {
  std::unordered_map<std::string_view, const NamedTensor*> by_name;
  for (const NamedTensor& tensor : weights)
    if (!by_name.emplace(tensor.name, &tensor).second)
      return fail(ErrorCode::kInvalidArgument, "weights: tensor {} is there twice", tensor.name);
  for (const ParameterSegment& segment : parameters_.segments()) {
    const auto found = by_name.find(segment.name);
    if (found == by_name.end())
      return fail(ErrorCode::kNotFound, "weights: tensor {} {} is missing", segment.name,
                  shape_text(segment.shape));
    const NamedTensor& tensor = *found->second;
    if (tensor.shape != segment.shape)
      return fail(ErrorCode::kInvalidArgument, "weights: tensor {} has shape {}, wanted {}",
                  segment.name, shape_text(tensor.shape), shape_text(segment.shape));
    if (static_cast<std::int64_t>(tensor.data.size()) != segment.count)
      return fail(ErrorCode::kInvalidArgument, "weights: tensor {} holds {} numbers, wanted {}",
                  segment.name, tensor.data.size(), segment.count);
  }
  const std::span<float> target = parameters_.weights();
  for (const ParameterSegment& segment : parameters_.segments()) {
    const NamedTensor& tensor = *by_name.at(segment.name);
    std::ranges::copy(tensor.data, target.begin() + segment.offset);
  }
  return {};
}

at::Tensor Decoder::hidden(const DecoderInput& input) {
  TROUPE_CHECK(!input.offsets.empty() && input.offsets.front() == 0 &&
                   input.offsets.back() == static_cast<std::int64_t>(input.tokens.size()),
               "decoder: offsets do not span the {} tokens", input.tokens.size());
  std::int64_t longest = 0;
  for (std::size_t s = 0; s + 1 < input.offsets.size(); ++s)
    longest = std::max(longest, input.offsets[s + 1] - input.offsets[s]);
  extend_rotary(rotary_, frequencies_, longest);

  const at::Tensor offsets = index_tensor(input.offsets);
  const std::vector<std::int64_t> ids(input.tokens.begin(), input.tokens.end());
  Residual residual;
  {
    const UnitLease lease = parameters_.lease(kEmbeddingUnit);
    residual.x = watched(lease, select_rows(lease[0], index_tensor(ids)));
  }
  const bool recompute = options_.recompute && at::GradMode::is_enabled();
  for (std::size_t unit = kEmbeddingUnit + 1; unit < final_norm_unit_; ++unit) {
    const bool last = unit + 1 == final_norm_unit_;
    const LayerSource source{.parameters = &parameters_, .unit = unit};
    const LayerInput layer_input{.offsets = offsets,
                                 .rows = last ? index_tensor(input.rows) : at::Tensor()};
    if (recompute)
      residual.x = decoder_layer_recomputed(source, context_, layer_input, residual.x);
    else
      residual = decoder_layer(source, context_, layer_input, residual);
  }
  const UnitLease lease = parameters_.lease(final_norm_unit_);
  return watched(lease,
                 add_rms_norm(residual.x, residual.delta, lease[0], config_.rms_norm_eps).normed);
}

at::Tensor Decoder::logits(const at::Tensor& hidden) {
  TROUPE_CHECK(!options_.value_head, "decoder: a critic has no logits");
  const UnitLease lease = parameters_.lease(head_unit_);
  return watched(lease, linear(hidden, lease[0], at::Tensor()));
}

TokenLogProb Decoder::log_probs(const at::Tensor& hidden, const at::Tensor& targets,
                                const TokenLogProbOptions& options) {
  TROUPE_CHECK(!options_.value_head, "decoder: a critic has no log-probs");
  const UnitLease lease = parameters_.lease(head_unit_);
  TokenLogProb out = token_log_prob(hidden, lease[0], targets, options);
  at::Tensor* const outputs[] = {&out.log_prob, &out.entropy};
  lease.watch(outputs);
  return out;
}

at::Tensor Decoder::values(const at::Tensor& hidden) {
  TROUPE_CHECK(options_.value_head, "decoder: a language model has no values");
  const UnitLease lease = parameters_.lease(head_unit_);
  return watched(lease, linear(hidden, lease[0], at::Tensor()).squeeze(1));
}

}  // namespace troupe::actors
