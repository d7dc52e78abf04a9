#include "actors/rollout/model_share.hpp"

namespace troupe::actors {
namespace {

/// Vocabulary rows are padded to this before they are cut, whatever the number of ranks.
constexpr std::int64_t kVocabMultiple = 64;

}  // namespace

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
  const std::int64_t vocab =
      (config.vocab_size + kVocabMultiple - 1) / kVocabMultiple * kVocabMultiple;
  if (config.head_count % size != 0) return refuse("query heads", config.head_count);
  if (config.kv_head_count % size != 0 && size % config.kv_head_count != 0)
    return refuse("kv heads", config.kv_head_count);
  if (config.intermediate_size % size != 0) return refuse("mlp columns", config.intermediate_size);
  if (vocab % size != 0) return refuse("padded vocabulary rows", vocab);
  share.rank = rank;
  share.size = size;
  share.local.head_count = config.head_count / size;
  share.local.kv_head_count = std::max<std::int64_t>(1, config.kv_head_count / size);
  share.local.intermediate_size = config.intermediate_size / size;
  share.local.vocab_size = vocab / size;
  share.q_head_begin = rank * share.local.head_count;
  share.kv_head_begin = rank * config.kv_head_count / size;  // size / K neighbours share one
  share.mlp_begin = rank * share.local.intermediate_size;
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
