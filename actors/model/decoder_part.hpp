#pragma once

// The part of a decoder that one rank holds: a run of layers or several (pipeline), and of each
// tensor a box (tensor parallel).
//
// **Threads:** pure functions. **Ownership:** borrows the `TensorGroup`, which must outlive the
// decoder.

#include "actors/model/flat_parameters.hpp"
#include "actors/model/tensor_parallel_ops.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

namespace troupe::actors {

inline constexpr std::string_view kLanguageHead = "lm_head.weight";
inline constexpr std::string_view kValueHead = "value_head.weight";
inline constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNorm = "model.norm.weight";

struct DecoderPart {
  const TensorGroup* tensor = nullptr;  ///< null: tensors are whole
  std::vector<IndexRange> runs = {};    ///< layers of each run in order; empty: one run of all
  bool first = true;                    ///< the first run begins with the embedding
  bool last = true;                     ///< the last run ends with the final norm; the head is here

  TensorPlace place() const { return tensor == nullptr ? TensorPlace{} : tensor->place; }
  /// `runs`, made explicit.
  std::vector<IndexRange> layer_runs(const ModelConfig& config) const;
};

/// `expected_tensors`, and for a critic `value_head.weight` in place of `lm_head.weight`.
std::vector<TensorShape> decoder_tensors(const ModelConfig& config, bool value_head);
/// Those of them that lie in `part`, in the same order and with their whole shapes. The last stage
/// of a tied model has the embedding too: as its head.
std::vector<TensorShape> part_tensors(const ModelConfig& config, bool value_head,
                                      const DecoderPart& part);

/// The units of a part (see FlatParameters), and which is what; kNone where the part lacks it.
struct PartUnits {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<ParameterUnit> units = {};
  std::size_t embedding = kNone;
  std::vector<std::size_t> run_begins = {};  ///< first layer of each run, and one past the last
  std::size_t final_norm = kNone;
  std::size_t head = kNone;  ///< the embedding's when both are here and tied
};
PartUnits part_units(const ModelConfig& config, bool value_head, const DecoderPart& part);

}  // namespace troupe::actors
