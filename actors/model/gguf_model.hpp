#pragma once

// What a GGUF file says of one model, in the terms of a Hugging Face folder.
//
// Architectures `llama`, `qwen2`, `qwen3`, with byte-level tokenizers (`tokenizer.ggml.model`
// gpt2). What would be computed wrongly in silence is refused as in model_config.hpp. llama.cpp
// keeps the rows of q and k of `llama` in interleaved pairs; they are put back into half-split
// order.
// **Threads:** pure functions over an open file.
// **Invariants:** config and weights fit each other: `check_tensors` holds.

#include "actors/model/gguf.hpp"
#include "actors/model/model_config.hpp"
#include "actors/model/weight_set.hpp"
#include "actors/text/tokenizer_write.hpp"

#include <string>

namespace troupe::actors {

/// Shape, switches and token ids. Errors name the file and the key.
result<ModelConfig> gguf_config(const GgufFile& file);

/// All weights, dequantised. Errors name file and tensor: missing, unexpected, wrongly shaped.
result<WeightSet> gguf_weights(const GgufFile& file, const ModelConfig& config);

/// tokenizer.json and tokenizer_config.json. Errors: kUnsupported for other models of tokenizer and
/// for pre-tokenizers that are not one of the families.
result<TokenizerFiles> gguf_tokenizer(const GgufFile& file);

struct GgufConvertOptions {
  WeightType stored_type = WeightType::kF32;
};

struct GgufConverted {
  ModelConfig config;
  std::size_t tensors = 0;
  std::size_t quantised = 0;  ///< of those, how many were stored in blocks
};

/// The file as a Hugging Face folder: config.json, generation_config.json, model.safetensors,
/// tokenizer.json and tokenizer_config.json. The tokenizer is read back before anything is written.
result<GgufConverted> convert_gguf(const std::filesystem::path& source,
                                   const std::filesystem::path& folder,
                                   GgufConvertOptions options = {});

}  // namespace troupe::actors
