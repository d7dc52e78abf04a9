#pragma once

// Load and save the weights of a Hugging Face model folder: `model.safetensors`, or shards with
// `model.safetensors.index.json`.
//
// **Threads:** pure functions over files.
// **Invariants:** load checks that exactly the expected tensors exist, once each, with the right
// shapes; floating-point storage types are upcast exactly. A saved folder loads bit for bit when
// stored as F32. Each file is replaced atomically; the index is written after its shards.
// **Cost:** load maps the files and holds one copy of the weights in fp32.

#include "actors/model/safetensors.hpp"
#include "actors/model/weight_set.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

namespace troupe::actors {

/// Reads all weights of `folder` as fp32. Ignored: `lm_head.weight` when embeddings are tied, and
/// old `*.rotary_emb.inv_freq` buffers. Errors name file and tensor: missing, doubled, unexpected
/// or wrongly shaped tensors, index and shards that disagree, corrupt files.
result<WeightSet> load_hf_weights(const std::filesystem::path& folder, const ModelConfig& config);

struct HfSaveOptions {
  std::int64_t max_shard_bytes = std::int64_t{5} << 30;  ///< more than that: several files
  WeightType stored_type = WeightType::kF32;
  /// Copy tokenizer.json, tokenizer_config.json, chat_template.jinja, … from here when present.
  std::optional<std::filesystem::path> tokenizer_folder = {};
};

/// Writes config.json, generation_config.json, weights and tokenizer files. `tensors` must be those
/// of `expected_tensors(config)`, in any order (a tied `lm_head.weight` may be there and is left
/// out). Stale weight files of an earlier save in `folder` are removed last.
/// Errors: kInvalidArgument naming the tensor and both shapes, kIo.
result<void> save_hf_folder(const std::filesystem::path& folder, const ModelConfig& config,
                            std::span<const NamedTensor> tensors,
                            const HfSaveOptions& options = {});

/// Compares `tensors` with `expected_tensors(config)`: names and shapes, any order.
result<void> check_tensors(const ModelConfig& config, std::span<const NamedTensor> tensors);

}  // namespace troupe::actors
