#pragma once

// A byte-level BPE vocabulary, as other formats than Hugging Face's keep it, to the two files that
// Troupe and the Hugging Face libraries read.
//
// **Threads:** pure functions.
// **Invariants:** what is written loads with `Tokenizer::from_json`; ids are the positions in
// `tokens`.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// What stands in front of BPE: normaliser and split, by the family that the model was trained in.
enum class ByteLevelFamily {
  kGpt2,    ///< GPT-2's expression
  kSmolLm,  ///< every digit alone, then GPT-2's expression
  kQwen2,   ///< NFC, then Qwen's expression: every digit alone
  kLlama3,  ///< Llama 3's expression: digits in threes; whole pieces of the vocabulary as they are
};

enum class TokenKind {
  kNormal,
  kControl,      ///< special, and only in trusted text
  kUserDefined,  ///< found in trusted text, not special
  kUnused,       ///< an id without a token
};

struct ByteLevelVocabulary {
  ByteLevelFamily family = ByteLevelFamily::kGpt2;
  std::vector<std::string_view> tokens = {};  ///< in the byte-level alphabet; added ones as text
  std::vector<TokenKind> kinds = {};          ///< one for each token
  std::vector<std::string_view> merges = {};  ///< "a b", best first
  std::optional<std::int32_t> bos_id = {};
  std::optional<std::int32_t> eos_id = {};
  std::optional<std::int32_t> pad_id = {};
  std::optional<std::int32_t> unk_id = {};
  bool adds_bos = false;  ///< the begin token goes in front of every text
  std::string_view chat_template = {};
};

struct TokenizerFiles {
  std::string tokenizer_json;
  std::string config_json;  ///< tokenizer_config.json
};

/// Errors: kCorrupt, naming `place` and the token: not UTF-8, twice, or a named id without a token.
result<TokenizerFiles> tokenizer_files(const ByteLevelVocabulary& vocabulary,
                                       std::string_view place);

}  // namespace troupe::actors
