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

/// Collects the leaves in the order in which `Decoder` takes them again.
class GroupBuilder {
 public:
  explicit GroupBuilder(std::span<const TensorShape> canonical) {
    for (const TensorShape& tensor : canonical) shapes_.emplace(tensor.name, tensor);
  }

  /// One leaf of all these tensors; the model either has all of them or none.
  void add(const std::vector<std::string>& names) {
    ParameterGroup group;
    for (const std::string& name : names)
      if (const auto found = shapes_.find(name); found != shapes_.end())
        group.push_back(found->second);
    if (group.empty()) return;
    TROUPE_CHECK(group.size() == names.size(), "decoder: only {} of {} tensors beside {}",
                 group.size(), names.size(), names.front());
    groups_.push_back(std::move(group));
  }
  std::vector<ParameterGroup> take() { return std::move(groups_); }

 private:
  std::unordered_map<std::string, TensorShape> shapes_;
  std::vector<ParameterGroup> groups_;
};

std::vector<ParameterGroup> groups_of(const ModelConfig& config,
                                      std::span<const TensorShape> canonical) {
  GroupBuilder builder(canonical);
  builder.add({kEmbedding});
  for (std::int64_t l = 0; l < config.layer_count; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    const std::string attention = layer + "self_attn.";
    const std::string mlp = layer + "mlp.";
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
  builder.add({kFinalNorm});
  builder.add({kLanguageHead});
  builder.add({kValueHead});
  return builder.take();
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
      parameters_(groups_of(config, decoder_tensors(config, options.value_head)),
                  decoder_tensors(config, options.value_head), options.trainable),
      layers_(static_cast<std::size_t>(config.layer_count)),
      frequencies_(rope_inverse_frequencies(config)) {
  // Takes leaves in the order of groups_of.
  std::size_t next = 0;
  const auto leaf = [this, &next] { return parameters_.leaf(next++); };
  const auto leaf_if = [&leaf](bool there) { return there ? leaf() : at::Tensor(); };
  embedding_ = leaf();
  for (LayerWeights& layer : layers_) {
    layer.input_norm = leaf();
    layer.qkv = leaf();
    layer.qkv_bias = leaf_if(config.qkv_bias);
    layer.q_norm = leaf_if(config.qk_norm);
    layer.k_norm = leaf_if(config.qk_norm);
    layer.o = leaf();
    layer.o_bias = leaf_if(config.o_bias);
    layer.mlp_norm = leaf();
    layer.gate_up = leaf();
    layer.gate_up_bias = leaf_if(config.mlp_bias);
    layer.down = leaf();
    layer.down_bias = leaf_if(config.mlp_bias);
  }
  final_norm_ = leaf();
  head_ = config.tie_embeddings && !options.value_head ? embedding_ : leaf();
  context_ = {.shape = {.heads = config.head_count,
                        .kv_heads = config.kv_head_count,
                        .head_dim = config.head_dim},
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
  Residual residual{.x = select_rows(embedding_, index_tensor(ids)), .delta = {}};
  const bool recompute = options_.recompute && at::GradMode::is_enabled();
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const bool last = l + 1 == layers_.size();
    const LayerInput layer_input{.offsets = offsets,
                                 .rows = last ? index_tensor(input.rows) : at::Tensor()};
    if (recompute)
      residual.x = decoder_layer_recomputed(layers_[l], context_, layer_input, residual.x);
    else
      residual = decoder_layer(layers_[l], context_, layer_input, residual);
  }
  return add_rms_norm(residual.x, residual.delta, final_norm_, config_.rms_norm_eps).normed;
}

at::Tensor Decoder::logits(const at::Tensor& hidden) const {
  TROUPE_CHECK(!options_.value_head, "decoder: a critic has no logits");
  return linear(hidden, head_, at::Tensor());
}

TokenLogProb Decoder::log_probs(const at::Tensor& hidden, const at::Tensor& targets,
                                const TokenLogProbOptions& options) const {
  TROUPE_CHECK(!options_.value_head, "decoder: a critic has no log-probs");
  return token_log_prob(hidden, head_, targets, options);
}

at::Tensor Decoder::values(const at::Tensor& hidden) const {
  TROUPE_CHECK(options_.value_head, "decoder: a language model has no values");
  return linear(hidden, head_, at::Tensor()).squeeze(1);
}

}  // namespace troupe::actors
