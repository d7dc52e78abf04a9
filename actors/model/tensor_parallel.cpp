#include "actors/model/tensor_parallel.hpp"

#include "reshard/stages.hpp"
#include "runtime/base/check.hpp"

#include <string_view>

namespace troupe::actors {
namespace {

bool contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

void take_rows(LocalTensor& tensor, IndexRange rows) {
  tensor.row_begin = rows.begin;
  tensor.shape[0] = rows.size();
}

IndexRange scaled(IndexRange heads, std::int64_t head_dim) {
  return {.begin = heads.begin * head_dim, .end = heads.end * head_dim};
}

}  // namespace

IndexRange part_of(std::int64_t count, TensorPlace place) {
  const reshard::Range part = reshard::even_part(count, place.size, place.rank);
  return {.begin = part.begin, .end = part.end};
}

int kv_copies(const ModelConfig& config, TensorPlace place) {
  return place.size > config.kv_head_count ? place.size / static_cast<int>(config.kv_head_count)
                                           : 1;
}

IndexRange kv_heads_of(const ModelConfig& config, TensorPlace place) {
  const int copies = kv_copies(config, place);
  return part_of(config.kv_head_count, {.rank = place.rank / copies, .size = place.size / copies});
}

LocalTensor local_tensor(const ModelConfig& config, const TensorShape& tensor, TensorPlace place) {
  LocalTensor local = LocalTensor::of(tensor);
  if (place.size == 1) return local;
  const std::string_view name = tensor.name;
  const bool is_weight = name.ends_with(".weight");
  if (contains(name, ".q_proj.")) {
    take_rows(local, scaled(part_of(config.head_count, place), config.head_dim));
  } else if (contains(name, ".k_proj.") || contains(name, ".v_proj.")) {
    take_rows(local, scaled(kv_heads_of(config, place), config.head_dim));
    local.owned = place.rank % kv_copies(config, place) == 0;
  } else if (contains(name, ".gate_proj.") || contains(name, ".up_proj.")) {
    take_rows(local, part_of(config.intermediate_size, place));
  } else if (contains(name, "embed_tokens.") || name == "lm_head.weight") {
    take_rows(local, part_of(config.vocab_size, place));
  } else if (is_weight && (contains(name, ".o_proj.") || contains(name, ".down_proj."))) {
    TROUPE_CHECK(tensor.shape.size() == 2, "{} has {} dimensions", name, tensor.shape.size());
    const IndexRange columns = part_of(tensor.shape[1], place);
    local.col_begin = columns.begin;
    local.shape[1] = columns.size();
  } else {
    local.owned = place.rank == 0;
  }
  return local;
}

}  // namespace troupe::actors
