#pragma once

// What a tokenizer.json says, ready to run: the private part of `Tokenizer`.
//
// **Ownership:** owned by one Tokenizer.
// **Threads:** never changed after loading, so const access from any thread.
// **Invariants:** all per-id vectors have `vocab_size()` entries; every id named anywhere in the
// tables is below that.

#include "actors/text/added_tokens.hpp"
#include "actors/text/bpe.hpp"
#include "actors/text/normalizer.hpp"
#include "actors/text/pre_tokenizer.hpp"
#include "runtime/base/result.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// What happens to the beginning of a decoded text.
enum class LeadingRule {
  kKeep,
  kStripSpaces,  ///< drop up to `leading_spaces` spaces of the text
  kDropMarkers,  ///< the first token loses every marker it has (Metaspace)
};

struct TokenizerTables {
  // Model.
  Vocabulary vocabulary;  ///< text of a token as in the file → id, added tokens included
  MergeTable merges;
  bool is_byte_level = false;  ///< else byte-fallback
  bool has_byte_fallback = false;
  bool fuses_unknown = false;
  bool ignores_merges = false;
  std::array<std::int32_t, 256> byte_ids{};  ///< token of a byte, or kNoToken
  std::optional<std::int32_t> unknown_id;    ///< what unknown characters become

  // Around the model.
  AddedTokenFinder raw_added;         ///< searched before the normalizer
  AddedTokenFinder normalized_added;  ///< and after it
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::vector<std::int32_t> prefix_ids;  ///< of the post-processor
  std::vector<std::int32_t> suffix_ids;

  // By id.
  std::vector<std::string> token_bytes;
  std::vector<bool> is_known;
  std::vector<bool> is_special;

  // Decoding.
  LeadingRule leading_rule = LeadingRule::kKeep;
  int leading_spaces = 0;
  std::vector<std::string> first_token_bytes;  ///< kDropMarkers: bytes of a token that comes first

  // Named tokens.
  std::optional<std::int32_t> bos_id;
  std::optional<std::int32_t> eos_id;
  std::optional<std::int32_t> pad_id;
  std::optional<std::int32_t> unk_id;
  std::string chat_template_text;

  std::int32_t vocab_size() const { return static_cast<std::int32_t>(token_bytes.size()); }
  std::optional<std::int32_t> find(std::string_view token) const {
    const auto found = vocabulary.find(token);
    if (found == vocabulary.end()) return std::nullopt;
    return found->second;
  }
};

/// Text of a tokenizer.json → tables, without the named tokens.
result<TokenizerTables> parse_tokenizer_json(std::string_view text, std::string_view place);

/// Named tokens and chat template of a tokenizer_config.json or special_tokens_map.json; what is
/// set already stays.
result<void> parse_tokenizer_config(std::string_view text, std::string_view place,
                                    TokenizerTables& tables);

}  // namespace troupe::actors
