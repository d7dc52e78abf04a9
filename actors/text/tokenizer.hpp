#pragma once

// Text to token ids and back, as a Hugging Face `tokenizer.json` says.
//
// Two families: byte-level BPE (Qwen, Llama 3, SmolLM2, GPT-2) and byte-fallback BPE (Llama 2,
// stories260K). Anything else in the file is refused with kUnsupported.
// Trust: special tokens are recognised only in *trusted* text (templates written by the program).
// In untrusted text (data sets, replies; the default) `<|im_end|>` is ordinary characters.
// Input that is not UTF-8 is read with U+FFFD in place of each maximal bad part, as Python's
// `errors="replace"` does.
// Decoding joins the bytes of the tokens and repairs them once, in both families. (The Hugging Face
// library differs only where a run of byte tokens is broken: there it replaces every byte of the
// run, here only the bad part is.)
// RL rule: pass ids on; never re-tokenise generated text, as encode∘decode is not the identity.
// **Ownership:** a Tokenizer owns its tables; a StreamDecoder keeps a reference to its Tokenizer.
// **Threads:** all const functions from any thread at once; a StreamDecoder belongs to one.
// **Cost:** encode ≥ 1 MB/s; load ~0.6 s for a 150,000 token vocabulary.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

struct EncodeOptions {
  /// Recognise added tokens (`<|im_end|>`, `<think>`, …) in the text. Never for data.
  bool trusted = false;
  /// Apply the post-processor: adds `<s>` (Llama 2), `<|begin_of_text|>` (Llama 3), or nothing.
  bool add_special = false;
};

struct DecodeOptions {
  bool skip_special = false;  ///< leave out tokens marked special
};

struct TokenizerTables;  // tables and compiled patterns, private to the sources

class Tokenizer {
 public:
  /// Reads `folder/tokenizer.json` and, when present, `tokenizer_config.json`,
  /// `special_tokens_map.json` and `chat_template.jinja`.
  /// Errors: kNotFound, kCorrupt (not JSON, wrong structure), kUnsupported (kind of component).
  static result<Tokenizer> load(const std::filesystem::path& folder);

  /// The same from texts; `config_json` may be empty. `place` names it in messages.
  static result<Tokenizer> from_json(std::string_view tokenizer_json,
                                     std::string_view config_json = {},
                                     std::string_view place = "tokenizer.json");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  /// Always valid UTF-8: bytes that do not form a character become U+FFFD. Ids without a token
  /// (negative, or beyond the vocabulary) decode to nothing.
  std::string decode(std::span<const std::int32_t> ids, DecodeOptions options = {}) const;

  /// The bytes one id adds to a decoded text, before UTF-8 is checked; empty for unknown ids.
  std::string token_bytes(std::int32_t id) const;
  /// The id of a token as written in the file (byte-level alphabet, `▁`), added tokens included.
  std::optional<std::int32_t> token_id(std::string_view token) const;
  /// The id of a token that is marked special, e.g. `<|im_end|>`.
  std::optional<std::int32_t> special_id(std::string_view token) const;
  bool is_special(std::int32_t id) const;

  /// One more than the largest id; the model's embedding may have more rows.
  std::int32_t vocab_size() const;
  std::optional<std::int32_t> bos_id() const;
  std::optional<std::int32_t> eos_id() const;
  std::optional<std::int32_t> pad_id() const;
  std::optional<std::int32_t> unk_id() const;
  /// The Jinja text of the folder, only to tell template families apart; empty when there is none.
  const std::string& chat_template_text() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<const TokenizerTables> tables);
  std::unique_ptr<const TokenizerTables> tables_;
};

/// Decodes token by token and hands out text only when its UTF-8 is complete, so that the pieces
/// joined equal `Tokenizer::decode` of all ids. Keep the Tokenizer alive.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, DecodeOptions options = {});
  /// The text that became final by this id; often empty inside a character of several bytes.
  std::string push(std::int32_t id);
  /// What is left at the end: an unfinished character becomes U+FFFD.
  std::string finish();

 private:
  const TokenizerTables* tables_;
  DecodeOptions options_;
  std::string pending_;     // bytes of an unfinished character
  bool is_first_ = true;    // no token has been decoded yet
  int leading_spaces_ = 0;  // spaces that may still be dropped at the start of the text
};

}  // namespace troupe::actors
