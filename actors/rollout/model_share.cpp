#include "actors/rollout/model_share.hpp"

#include "reshard/stages.hpp"

#include <numeric>

namespace troupe::actors {

std::int64_t vocab_multiple(std::int64_t size) { return std::lcm(std::int64_t{64}, size); }

ModelShare whole_model(const ModelConfig& config) {
  ModelShare share;
  share.vocab_size = config.vocab_size;
  share.local = config;
  return share;
}

result<ModelShare> share_of(const ModelConfig& config, std::int64_t rank, std::int64_t size) {
  ModelShare share = whole_model(config);
  if (size == 1) return share;
  const auto refuse = [&](std::string_view what, std::int64_t count) {
    return fail(ErrorCode::kInvalidArgument,
                "rollout engine: {} {} cannot be cut over {} tensor-parallel ranks", count, what,
                size);
  };
  if (config.head_count % size != 0) return refuse("query heads", config.head_count);
  if (config.kv_head_count % size != 0 && size % config.kv_head_count != 0)
    return refuse("kv heads", config.kv_head_count);
  if (config.intermediate_size < size) return refuse("mlp columns", config.intermediate_size);
  const std::int64_t multiple = vocab_multiple(size);
  const std::int64_t vocab = (config.vocab_size + multiple - 1) / multiple * multiple;
  const reshard::Range mlp = reshard::even_part(config.intermediate_size, size, rank);
  share.rank = rank;
  share.size = size;
  share.local.head_count = config.head_count / size;
  share.local.kv_head_count = std::max<std::int64_t>(1, config.kv_head_count / size);
  share.local.intermediate_size = mlp.size();
  share.local.vocab_size = vocab / size;
  share.q_head_begin = rank * share.local.head_count;
  share.kv_head_begin = rank * config.kv_head_count / size;  // size / K neighbours share one
  share.mlp_begin = mlp.begin;
  return share;
}

reshard::ModelShape shape_of(const ModelConfig& config) {
  reshard::ModelShape shape;
  shape.vocab = config.vocab_size;
  shape.hidden = config.hidden_size;
  shape.intermediate = config.intermediate_size;
  shape.layers = config.layer_count;
  shape.heads = config.head_count;
  shape.kv_heads = config.kv_head_count;
  shape.head_dim = config.head_dim;
  shape.tied = config.tie_embeddings;
  shape.qkv_bias = config.qkv_bias;
  shape.o_bias = config.o_bias;
  shape.mlp_bias = config.mlp_bias;
  shape.qk_norm = config.qk_norm;
  return shape;
}

}  // namespace troupe::actors
