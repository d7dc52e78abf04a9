#include "sim/cost/model_spec.hpp"

namespace troupe::sim {
namespace {

/// Matrices of attention in one layer.
std::int64_t attention_matrices(const reshard::ModelShape& s) {
  const reshard::LatentShape& latent = s.latent;
  if (latent.kv_rank == 0) return s.hidden * (2 * s.q_rows() + 2 * s.kv_rows());
  const std::int64_t q_rows = s.heads * (latent.nope_dim + latent.rope_dim);
  const std::int64_t q =
      latent.q_rank > 0 ? latent.q_rank * (s.hidden + q_rows) : s.hidden * q_rows;
  return q + s.hidden * (latent.kv_rank + latent.rope_dim) +
         latent.kv_rank * s.heads * (latent.nope_dim + latent.v_dim) +
         s.hidden * s.heads * latent.v_dim;
}

/// Norms and biases: vectors of one layer's attention.
std::int64_t attention_vectors(const reshard::ModelShape& s) {
  if (s.latent.kv_rank > 0) return s.latent.kv_rank + s.latent.q_rank + (s.o_bias ? s.hidden : 0);
  std::int64_t sum = 0;
  if (s.qkv_bias) sum += s.q_rows() + 2 * s.kv_rows();
  if (s.o_bias) sum += s.hidden;
  if (s.qk_norm) sum += 2 * s.head_dim;
  return sum;
}

}  // namespace

result<void> ModelSpec::validate() const {
  TROUPE_TRY_VOID(shape.validate());
  const std::int64_t experts = shape.expert.experts;
  const bool fits = experts == 0 ? experts_per_token == 0
                                 : experts_per_token >= 1 && experts_per_token <= experts;
  if (!fits)
    return fail(ErrorCode::kInvalidArgument, "model {}: {} experts per token, it has {} experts",
                name, experts_per_token, experts);
  return {};
}

std::int64_t ModelSize::active() const {
  return layers * attention + dense_layers() * dense_mlp +
         expert_layers * (router + shared_expert + experts_per_token * expert) + head;
}

ModelSize size_of(const ModelSpec& spec) {
  const reshard::ModelShape& s = spec.shape;
  ModelSize size;
  size.layers = s.layers;
  size.experts = s.expert.experts;
  size.experts_per_token = spec.experts_per_token;
  size.expert_layers = s.expert.experts > 0 ? s.layers - s.expert.dense_layers : 0;
  size.embedding = s.vocab * s.hidden;
  size.head = s.value_head ? s.hidden : s.vocab * s.hidden;
  size.attention = attention_matrices(s);
  size.dense_mlp = 3 * s.hidden * s.intermediate;
  size.expert = 3 * s.hidden * s.expert.intermediate;
  size.shared_expert = 3 * s.hidden * s.expert.shared_intermediate;
  size.router = s.expert.experts * s.hidden;
  size.other = s.layers * (2 * s.hidden + attention_vectors(s)) + s.hidden;
  if (s.mlp_bias) size.other += size.dense_layers() * (2 * s.intermediate + s.hidden);
  if (s.expert.router_bias) size.other += size.expert_layers * s.expert.experts;
  const bool stores_head = s.value_head || !s.tied;
  size.parameters =
      size.embedding + (stores_head ? size.head : 0) + size.layers * size.attention +
      size.dense_layers() * size.dense_mlp +
      size.expert_layers * (size.router + size.shared_expert + size.experts * size.expert) +
      size.other;
  return size;
}

std::int64_t kv_elements_per_token(const ModelSpec& spec) {
  const reshard::ModelShape& s = spec.shape;
  if (s.latent.kv_rank > 0) return s.layers * (s.latent.kv_rank + s.latent.rope_dim);
  return 2 * s.layers * s.kv_rows();
}

double attention_flops_per_square(const ModelSpec& spec) {
  const reshard::ModelShape& s = spec.shape;
  const std::int64_t widths = s.latent.kv_rank > 0
                                  ? s.latent.nope_dim + s.latent.rope_dim + s.latent.v_dim
                                  : 2 * s.head_dim;
  return static_cast<double>(s.layers * s.heads * widths);
}

double forward_flops(const ModelSpec& spec, double tokens, double square_sum) {
  return 2 * static_cast<double>(size_of(spec).active()) * tokens +
         attention_flops_per_square(spec) * square_sum;
}

}  // namespace troupe::sim
