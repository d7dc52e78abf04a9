#include "reshard/model_shape.hpp"

#include "reshard/model_tensors.hpp"

#include <string>
#include <utility>

namespace troupe::reshard {
namespace {

/// Appends tensors of one layer after the other and keeps their indices.
class TensorList {
 public:
  TensorList(const ModelShape& shape, ModelTensors& out) : shape_(shape), out_(out) {}

  void start(std::string prefix, std::int64_t layer) {
    prefix_ = std::move(prefix);
    layer_ = static_cast<std::int32_t>(layer);
  }
  std::int32_t add(std::string_view name, std::int64_t rows, std::int64_t cols, DType dtype) {
    out_.tensors.push_back({.name = fmt::format("{}{}", prefix_, name),
                            .dtype = dtype,
                            .rows = rows,
                            .cols = cols,
                            .layer = layer_});
    return static_cast<std::int32_t>(out_.tensors.size()) - 1;
  }
  std::int32_t add(std::string_view name, std::int64_t rows, std::int64_t cols = 1) {
    return add(name, rows, cols, shape_.dtype);
  }
  /// A matrix [out, in] and, where the model has one, its bias.
  void linear(const std::string& name, std::int64_t out, std::int64_t in, bool has_bias,
              std::int32_t& weight, std::int32_t& bias) {
    weight = add(name + ".weight", out, in);
    if (has_bias) bias = add(name + ".bias", out);
  }

 private:
  const ModelShape& shape_;
  ModelTensors& out_;
  std::string prefix_;
  std::int32_t layer_ = 0;
};

void add_attention(const ModelShape& s, TensorList& list, LayerTensors& layer) {
  list.linear("self_attn.q_proj", s.q_rows(), s.hidden, s.qkv_bias, layer.q, layer.q_bias);
  list.linear("self_attn.k_proj", s.kv_rows(), s.hidden, s.qkv_bias, layer.k, layer.k_bias);
  list.linear("self_attn.v_proj", s.kv_rows(), s.hidden, s.qkv_bias, layer.v, layer.v_bias);
  list.linear("self_attn.o_proj", s.hidden, s.q_rows(), s.o_bias, layer.o, layer.o_bias);
  if (!s.qk_norm) return;
  layer.q_norm = list.add("self_attn.q_norm.weight", s.head_dim);
  layer.k_norm = list.add("self_attn.k_norm.weight", s.head_dim);
}

void add_latent_attention(const ModelShape& s, TensorList& list, LayerTensors& layer) {
  const LatentShape& latent = s.latent;
  const std::int64_t q_rows = s.heads * (latent.nope_dim + latent.rope_dim);
  if (latent.q_rank > 0) {
    layer.q_a = list.add("self_attn.q_a_proj.weight", latent.q_rank, s.hidden);
    layer.q_a_norm = list.add("self_attn.q_a_layernorm.weight", latent.q_rank);
    layer.q_b = list.add("self_attn.q_b_proj.weight", q_rows, latent.q_rank);
  } else {
    layer.q_b = list.add("self_attn.q_proj.weight", q_rows, s.hidden);
  }
  layer.kv_a =
      list.add("self_attn.kv_a_proj_with_mqa.weight", latent.kv_rank + latent.rope_dim, s.hidden);
  layer.kv_a_norm = list.add("self_attn.kv_a_layernorm.weight", latent.kv_rank);
  layer.kv_b = list.add("self_attn.kv_b_proj.weight", s.heads * (latent.nope_dim + latent.v_dim),
                        latent.kv_rank);
  list.linear("self_attn.o_proj", s.hidden, s.heads * latent.v_dim, s.o_bias, layer.o,
              layer.o_bias);
}

void add_mlp(const ModelShape& s, const std::string& name, std::int64_t width, bool has_bias,
             TensorList& list, LayerTensors& layer) {
  list.linear(name + "gate_proj", width, s.hidden, has_bias, layer.gate, layer.gate_bias);
  list.linear(name + "up_proj", width, s.hidden, has_bias, layer.up, layer.up_bias);
  list.linear(name + "down_proj", s.hidden, width, has_bias, layer.down, layer.down_bias);
}

void add_experts(const ModelShape& s, TensorList& list, LayerTensors& layer) {
  const ExpertShape& e = s.expert;
  layer.router = list.add("mlp.gate.weight", e.experts, s.hidden);
  if (e.router_bias)
    layer.router_bias = list.add("mlp.gate.e_score_correction_bias", e.experts, 1, DType::kF32);
  if (e.shared_intermediate > 0)
    add_mlp(s, "mlp.shared_experts.", e.shared_intermediate, false, list, layer);
  for (std::int64_t i = 0; i < e.experts; ++i) {
    const std::string name = fmt::format("mlp.experts.{}.", i);
    const std::int32_t gate = list.add(name + "gate_proj.weight", e.intermediate, s.hidden);
    list.add(name + "up_proj.weight", e.intermediate, s.hidden);
    list.add(name + "down_proj.weight", s.hidden, e.intermediate);
    if (i == 0) layer.experts = gate;
  }
}

result<void> require(std::string_view field, std::int64_t value, std::int64_t least) {
  if (value >= least) return {};
  return fail(ErrorCode::kInvalidArgument, "model shape: {} is {}, wanted at least {}", field,
              value, least);
}

result<void> validate_experts(const ModelShape& shape) {
  const ExpertShape& expert = shape.expert;
  TROUPE_TRY_VOID(require("expert.experts", expert.experts, 0));
  if (expert.experts == 0) return {};
  TROUPE_TRY_VOID(require("expert.intermediate", expert.intermediate, 1));
  TROUPE_TRY_VOID(require("expert.shared_intermediate", expert.shared_intermediate, 0));
  TROUPE_TRY_VOID(require("expert.dense_layers", expert.dense_layers, 0));
  if (expert.dense_layers > 0) TROUPE_TRY_VOID(require("intermediate", shape.intermediate, 1));
  return {};
}

result<void> validate_latent(const LatentShape& latent) {
  TROUPE_TRY_VOID(require("latent.q_rank", latent.q_rank, 0));
  TROUPE_TRY_VOID(require("latent.nope_dim", latent.nope_dim, 1));
  TROUPE_TRY_VOID(require("latent.rope_dim", latent.rope_dim, 1));
  return require("latent.v_dim", latent.v_dim, 1);
}

}  // namespace

result<void> ModelShape::validate() const {
  TROUPE_TRY_VOID(require("vocab", vocab, 1));
  TROUPE_TRY_VOID(require("hidden", hidden, 1));
  TROUPE_TRY_VOID(require("layers", layers, 1));
  TROUPE_TRY_VOID(require("heads", heads, 1));
  TROUPE_TRY_VOID(validate_experts(*this));
  if (expert.experts == 0) TROUPE_TRY_VOID(require("intermediate", intermediate, 1));
  if (latent.kv_rank > 0) return validate_latent(latent);
  TROUPE_TRY_VOID(require("latent.kv_rank", latent.kv_rank, 0));
  TROUPE_TRY_VOID(require("kv_heads", kv_heads, 1));
  TROUPE_TRY_VOID(require("head_dim", head_dim, 1));
  if (heads % kv_heads != 0)
    return fail(ErrorCode::kInvalidArgument, "model shape: {} heads do not divide by {} kv heads",
                heads, kv_heads);
  return {};
}

ModelTensors model_tensors(const ModelShape& shape) {
  ModelTensors out;
  TensorList list(shape, out);
  list.start("", -1);
  out.embedding = list.add("model.embed_tokens.weight", shape.vocab, shape.hidden);
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    LayerTensors layer;
    list.start(fmt::format("model.layers.{}.", i), i);
    layer.input_norm = list.add("input_layernorm.weight", shape.hidden);
    if (shape.latent.kv_rank > 0)
      add_latent_attention(shape, list, layer);
    else
      add_attention(shape, list, layer);
    layer.mlp_norm = list.add("post_attention_layernorm.weight", shape.hidden);
    if (shape.is_expert_layer(i))
      add_experts(shape, list, layer);
    else
      add_mlp(shape, "mlp.", shape.intermediate, shape.mlp_bias, list, layer);
    out.layers.push_back(layer);
  }
  list.start("", shape.layers);
  out.final_norm = list.add("model.norm.weight", shape.hidden);
  if (shape.value_head)
    out.value_head = list.add("value_head.weight", 1, shape.hidden);
  else if (!shape.tied)
    out.head = list.add("lm_head.weight", shape.vocab, shape.hidden);
  return out;
}

std::vector<TensorInfo> canonical_tensors(const ModelShape& shape) {
  return std::move(model_tensors(shape).tensors);
}

}  // namespace troupe::reshard
