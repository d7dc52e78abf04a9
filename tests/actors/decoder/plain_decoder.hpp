#pragma once

// The decoder written the plain way: LibTorch operations in double precision, one sequence at a
// time, kv heads expanded, full logits. Its autograd is the oracle for gradients; its values are
// checked against ReferenceModel. Include only from sources with LibTorch.
//
// **Ownership:** owns double copies of the weights, as leaves. **Threads:** one.

#include "actors/model/model_config.hpp"
#include "actors/model/rope.hpp"
#include "actors/model/weight_set.hpp"

#include <torch/types.h>

#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe::testing {

class PlainDecoder {
 public:
  PlainDecoder(const actors::ModelConfig& config, std::span<const actors::NamedTensor> tensors)
      : config_(config) {
    for (const actors::NamedTensor& t : tensors) {
      const at::Tensor values =
          torch::from_blob(const_cast<float*>(t.data.data()), t.shape, torch::kFloat32);
      weights_[t.name] = values.to(torch::kFloat64).clone().set_requires_grad(true);
    }
  }

  /// One sequence → final hidden states [T, H] f64.
  at::Tensor hidden(std::span<const std::int32_t> ids) {
    const std::vector<std::int64_t> wide(ids.begin(), ids.end());
    at::Tensor x =
        weight("model.embed_tokens.weight").index_select(0, torch::tensor(wide, torch::kInt64));
    for (std::int64_t l = 0; l < config_.layer_count; ++l) {
      const std::string layer = "model.layers." + std::to_string(l) + ".";
      x = x + attention(norm(x, layer + "input_layernorm.weight"), layer + "self_attn.");
      const at::Tensor y = norm(x, layer + "post_attention_layernorm.weight");
      const at::Tensor gate = project(y, layer + "mlp.gate_proj");
      x = x +
          project(torch::silu(gate) * project(y, layer + "mlp.up_proj"), layer + "mlp.down_proj");
    }
    return norm(x, "model.norm.weight");
  }

  /// One sequence → logits [T, V] f64.
  at::Tensor logits(std::span<const std::int32_t> ids) {
    return hidden(ids).matmul(
        weight(config_.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight").t());
  }

  at::Tensor& weight(const std::string& name) { return weights_.at(name); }
  bool has(const std::string& name) const { return weights_.contains(name); }

 private:
  at::Tensor norm(const at::Tensor& x, const std::string& name) {
    return weight(name) * x * (x.pow(2).mean(-1, true) + config_.rms_norm_eps).rsqrt();
  }

  at::Tensor project(const at::Tensor& x, const std::string& name) {
    const at::Tensor y = x.matmul(weight(name + ".weight").t());
    return has(name + ".bias") ? y + weight(name + ".bias") : y;
  }

  /// x [T, heads, D], each head turned by its row's position.
  at::Tensor rotate(const at::Tensor& x) const {
    const std::vector<double> frequencies = actors::rope_inverse_frequencies(config_);
    const at::Tensor angles = torch::arange(x.size(0), torch::kFloat64)
                                  .unsqueeze(1)
                                  .matmul(torch::tensor(frequencies, torch::kFloat64).unsqueeze(0))
                                  .unsqueeze(1);
    const auto halves = x.chunk(2, -1);
    const at::Tensor c = angles.cos();
    const at::Tensor s = angles.sin();
    return torch::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1);
  }

  at::Tensor attention(const at::Tensor& x, const std::string& prefix) {
    const std::int64_t t = x.size(0);
    const std::int64_t d = config_.head_dim;
    at::Tensor q = project(x, prefix + "q_proj").view({t, config_.head_count, d});
    at::Tensor k = project(x, prefix + "k_proj").view({t, config_.kv_head_count, d});
    at::Tensor v = project(x, prefix + "v_proj").view({t, config_.kv_head_count, d});
    if (config_.qk_norm) {
      q = norm(q, prefix + "q_norm.weight");
      k = norm(k, prefix + "k_norm.weight");
    }
    const std::int64_t group = config_.head_count / config_.kv_head_count;
    q = rotate(q).transpose(0, 1);
    k = rotate(k).repeat_interleave(group, 1).transpose(0, 1);
    v = v.repeat_interleave(group, 1).transpose(0, 1);
    const at::Tensor future = torch::ones({t, t}, torch::kBool).triu(1);
    const at::Tensor scores = (q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(d)))
                                  .masked_fill(future, -INFINITY);
    const at::Tensor mixed = scores.softmax(-1).matmul(v).transpose(0, 1).reshape({t, -1});
    return project(mixed, prefix + "o_proj");
  }

  actors::ModelConfig config_;
  std::map<std::string, at::Tensor> weights_;
};

}  // namespace troupe::testing
