#pragma once

// The weights of one rank as its engine sees them: local tensors, fused and padded, each made of
// row blocks of canonical tensors.
//
// This is the middle step of every layout: a `RankCut` says which part of the model a rank has, a
// `LocalModel` lists its local tensors in module order, and a storage rule (storage.hpp) puts those
// into buffers, whole or cut again by FSDP. Cutting twice in this order is what makes FSDP inside
// tensor parallelism come out strided, as it must.
// **Threads:** pure functions.
// **Invariants:** a piece spans all columns of its local tensor; local rows without a piece are
// padding.

#include "reshard/model_tensors.hpp"

#include <cstdint>
#include <vector>

namespace troupe::reshard {

/// `box` of canonical `tensor` lies in local rows [row, row + box.rows()).
struct Piece {
  std::int32_t tensor = 0;
  Box box = {};
  std::int64_t row = 0;
  bool operator==(const Piece&) const = default;
};

struct LocalTensor {
  std::int32_t unit = 0;  ///< FSDP unit: the layer, −1 for the embedding, L for norm and head
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<Piece> pieces = {};
  bool operator==(const LocalTensor&) const = default;
};

struct LocalModel {
  std::vector<LocalTensor> tensors = {};
  bool operator==(const LocalModel&) const = default;
};

/// How attention and MLP matrices are fused, and thereby where rows go.
enum class CutStyle : std::uint8_t {
  /// qkv interleaved by kv group and then cut evenly, so that a kv head may be split when there are
  /// fewer than ranks; [gate ; up].
  kMegatron,
  /// [q ; k ; v] of the rank's heads, kv heads replicated when there are fewer than ranks;
  /// [gate ; up]. Troupe's trainer, vLLM and SGLang.
  kMerged,
  /// As kMerged, each matrix alone.
  kUnfused,
};

/// Which part of the model one rank has.
struct RankCut {
  CutStyle style = CutStyle::kMerged;
  std::int64_t tp = 1;
  std::int64_t tp_index = 0;
  /// Vocabulary rows are padded to a multiple of this and cut evenly; 0: not padded, cut as
  /// `even_part`.
  std::int64_t vocab_multiple = 0;
  std::vector<std::int64_t> layers = {};  ///< the global layers, ascending
  bool first_stage = true;                ///< has the embedding
  bool last_stage = true;                 ///< has final norm and head
  bool stored_head = false;  ///< a tied model whose engine keeps `lm_head.weight` as well
  std::int64_t expert_tp = 1;
  std::int64_t expert_tp_index = 0;
  std::vector<std::int64_t> experts = {};  ///< the global experts, in local order
};

/// The table that a cut of `shape` points into: the canonical tensors, and `lm_head.weight` when a
/// tied model stores it.
ModelTensors tensors_for(const ModelShape& shape, bool stored_head);

/// Whether the model can be cut so. Errors: kInvalidArgument naming both numbers.
result<void> check_cut(const ModelShape& shape, const RankCut& cut);

/// The local tensors of a rank. `cut` must pass `check_cut`; `tensors` are those of `shape`.
LocalModel local_model(const ModelShape& shape, const ModelTensors& tensors, const RankCut& cut);

}  // namespace troupe::reshard
