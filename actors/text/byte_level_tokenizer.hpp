#pragma once

// Makes small tokenizers for models that are trained from scratch here.
//
// **Threads:** pure functions over files.
// **Invariants:** what is written is a valid Hugging Face folder part: `tokenizer.json` (byte-level
// BPE without merges: one token a byte) and `tokenizer_config.json`. Special tokens get the first
// ids, in the given order; then the alphabet in byte order.

#include "runtime/base/result.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace troupe::actors {

struct ByteLevelOptions {
  std::vector<std::string> specials = {"<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"};
  /// The bytes that get a token; empty = all 256. Other bytes become `unk_token` on encode; without
  /// one they are lost, as in the Hugging Face library.
  std::string alphabet = {};
  std::string pad_token = "<|pad|>";
  std::string eos_token = "<|im_end|>";
  std::string bos_token = {};  ///< empty = none
  std::string unk_token = {};  ///< empty = none
};

/// Creates `folder` when needed and writes both files atomically. Returns the vocabulary size.
/// Errors: kInvalidArgument (a named token not among the specials, a
/// special token of one character, duplicates), kIo.
result<int> write_byte_level_tokenizer(const std::filesystem::path& folder,
                                       const ByteLevelOptions& options = {});

}  // namespace troupe::actors
