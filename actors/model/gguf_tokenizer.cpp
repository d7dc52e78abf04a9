// Vocabulary of a GGUF file → tokenizer.json.

#include "actors/model/gguf_model.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace troupe::actors {
namespace {

/// Names of `tokenizer.ggml.pre`. Where the file does not say so, Llama 3's begin token is added.
struct PreTokenizerName {
  std::string_view name;
  ByteLevelFamily family;
  bool adds_bos;
};
constexpr std::array kNames = {PreTokenizerName{"gpt-2", ByteLevelFamily::kGpt2, false},
                               PreTokenizerName{"smollm", ByteLevelFamily::kSmolLm, false},
                               PreTokenizerName{"qwen2", ByteLevelFamily::kQwen2, false},
                               PreTokenizerName{"llama-bpe", ByteLevelFamily::kLlama3, true},
                               PreTokenizerName{"llama3", ByteLevelFamily::kLlama3, true},
                               PreTokenizerName{"llama-v3", ByteLevelFamily::kLlama3, true}};

/// Numbers of `tokenizer.ggml.token_type`.
result<TokenKind> token_kind(std::int64_t number, std::size_t id, std::string_view place) {
  switch (number) {
    case 1:
    case 2:  // unknown: an ordinary token that is named elsewhere
    case 6:  // byte
      return TokenKind::kNormal;
    case 3:
      return TokenKind::kControl;
    case 4:
      return TokenKind::kUserDefined;
    case 5:
      return TokenKind::kUnused;
    default:
      return fail(ErrorCode::kCorrupt,
                  "{}: key tokenizer.ggml.token_type: token {} has type {}, wanted 1 to 6", place,
                  id, number);
  }
}

result<std::vector<TokenKind>> token_kinds(const GgufMetadata& metadata, std::size_t tokens) {
  TROUPE_TRY(const auto numbers, metadata.integers("tokenizer.ggml.token_type"));
  if (numbers.empty()) return std::vector<TokenKind>(tokens, TokenKind::kNormal);
  if (numbers.size() != tokens)
    return fail(ErrorCode::kCorrupt, "{}: tokenizer.ggml.token_type has {} items for {} tokens",
                metadata.place(), numbers.size(), tokens);
  std::vector<TokenKind> kinds;
  for (const std::int64_t number : numbers) {
    TROUPE_TRY(const TokenKind kind, token_kind(number, kinds.size(), metadata.place()));
    kinds.push_back(kind);
  }
  return kinds;
}

result<std::optional<std::int32_t>> named_id(const GgufMetadata& metadata, std::string_view key) {
  TROUPE_TRY(const std::int64_t id, metadata.integer(key, -1));
  if (id < 0) return std::nullopt;
  // Beyond every vocabulary: tokenizer_files says how many there are.
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::min(id, kMax));
}

}  // namespace

result<TokenizerFiles> gguf_tokenizer(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  TROUPE_TRY(const std::string_view model, metadata.text("tokenizer.ggml.model"));
  if (model != "gpt2")
    return fail(ErrorCode::kUnsupported,
                "{}: tokenizer.ggml.model {} is not supported, only gpt2 (byte-level)",
                metadata.place(), model);
  TROUPE_TRY(const std::string_view pre, metadata.text("tokenizer.ggml.pre"));
  const auto known = std::ranges::find(kNames, pre, &PreTokenizerName::name);
  if (known == kNames.end())
    return fail(ErrorCode::kUnsupported,
                "{}: tokenizer.ggml.pre {} is not one of gpt-2, smollm, qwen2, llama-bpe",
                metadata.place(), pre);
  ByteLevelVocabulary vocabulary{.family = known->family};
  TROUPE_TRY(vocabulary.tokens, metadata.texts("tokenizer.ggml.tokens"));
  TROUPE_TRY(vocabulary.merges, metadata.texts("tokenizer.ggml.merges"));
  TROUPE_TRY(vocabulary.kinds, token_kinds(metadata, vocabulary.tokens.size()));
  TROUPE_TRY(vocabulary.bos_id, named_id(metadata, "tokenizer.ggml.bos_token_id"));
  TROUPE_TRY(vocabulary.eos_id, named_id(metadata, "tokenizer.ggml.eos_token_id"));
  TROUPE_TRY(vocabulary.pad_id, named_id(metadata, "tokenizer.ggml.padding_token_id"));
  TROUPE_TRY(vocabulary.unk_id, named_id(metadata, "tokenizer.ggml.unknown_token_id"));
  TROUPE_TRY(vocabulary.adds_bos, metadata.flag("tokenizer.ggml.add_bos_token", known->adds_bos));
  for (const std::string_view key :
       {"tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_space_prefix"}) {
    TROUPE_TRY(const bool is_set, metadata.flag(key, false));
    if (is_set)
      return fail(ErrorCode::kUnsupported, "{}: key {} is true, supported is only false",
                  metadata.place(), key);
  }
  TROUPE_TRY(vocabulary.chat_template, metadata.text("tokenizer.chat_template", ""));
  return tokenizer_files(vocabulary, metadata.place());
}

}  // namespace troupe::actors
