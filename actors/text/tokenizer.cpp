#include "actors/text/tokenizer.hpp"

#include "actors/text/byte_level.hpp"
#include "actors/text/tokenizer_tables.hpp"
#include "actors/text/utf8.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/utf8.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {
namespace {

/// One call of `encode`: the working memory and the ids made so far.
class Encoder {
 public:
  Encoder(const TokenizerTables& tables, bool trusted)
      : tables_(tables),
        is_barred_(trusted ? kNothingBarred : tables.is_special),
        trusted_(trusted) {}

  /// `text` is valid UTF-8.
  void add_text(std::string_view text) {
    if (!trusted_) return add_raw(text, true);
    for (const auto& part : tables_.raw_added.cut(text)) {
      if (part.id)
        ids_.push_back(*part.id);
      else
        add_raw(part.text, part.text.data() == text.data());
    }
  }

  void add_ids(const std::vector<std::int32_t>& ids) {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  std::vector<std::int32_t> take_ids() { return std::move(ids_); }

 private:
  static inline const std::vector<bool> kNothingBarred;

  void add_raw(std::string_view text, bool is_at_start) {
    if (tables_.normalizer.is_identity()) return add_normalized(text, is_at_start);
    add_normalized(tables_.normalizer.apply(text), is_at_start);
  }

  void add_normalized(std::string_view text, bool is_at_start) {
    if (!trusted_ || tables_.normalized_added.is_empty()) return add_pieces(text, is_at_start);
    for (const auto& part : tables_.normalized_added.cut(text)) {
      if (part.id)
        ids_.push_back(*part.id);
      else
        add_pieces(part.text, is_at_start && part.text.data() == text.data());
    }
  }

  void add_pieces(std::string_view text, bool is_at_start) {
    tables_.pre_tokenizer.apply(text, is_at_start, pieces_);
    for (const PieceList::Piece& piece : pieces_.pieces) add_piece(piece.text);
  }

  bool is_barred(std::int32_t id) const {
    return !is_barred_.empty() && is_barred_[static_cast<std::size_t>(id)];
  }

  void add_piece(std::string_view piece) {
    if (tables_.ignores_merges) {
      const auto whole =
          tables_.is_byte_level ? tables_.find(to_byte_level(piece)) : tables_.find(piece);
      if (whole && !is_barred(*whole)) return ids_.push_back(*whole);
    }
    auto& symbols = scratch_.symbols;
    symbols.clear();
    if (tables_.is_byte_level)
      add_bytes_symbols(piece);
    else
      add_character_symbols(piece);
    merge_symbols(tables_.merges, is_barred_, scratch_);
    ids_.insert(ids_.end(), symbols.begin(), symbols.end());
  }

  /// Bytes without a token become the unknown token, or nothing when there is none.
  void add_bytes_symbols(std::string_view piece) {
    bool was_unknown = false;
    for (const char c : piece) {
      const std::int32_t id = tables_.byte_ids[static_cast<unsigned char>(c)];
      was_unknown = add_symbol(id, was_unknown);
    }
  }

  void add_character_symbols(std::string_view piece) {
    bool was_unknown = false;
    while (!piece.empty()) {
      const std::size_t length = next_character(piece).length;
      const std::string_view character = piece.substr(0, length);
      piece.remove_prefix(length);
      const std::optional<std::int32_t> id = tables_.find(character);
      if (id && !is_barred(*id)) {
        was_unknown = add_symbol(*id, was_unknown);
      } else if (has_all_bytes(character)) {
        for (const char c : character)
          scratch_.symbols.push_back(tables_.byte_ids[static_cast<unsigned char>(c)]);
        was_unknown = false;
      } else {
        was_unknown = add_symbol(kNoToken, was_unknown);
      }
    }
  }

  bool has_all_bytes(std::string_view character) const {
    return std::all_of(character.begin(), character.end(), [&](char c) {
      return tables_.byte_ids[static_cast<unsigned char>(c)] != kNoToken;
    });
  }

  /// Returns whether the symbol was unknown, for the next call.
  bool add_symbol(std::int32_t id, bool was_unknown) {
    if (id != kNoToken) {
      scratch_.symbols.push_back(id);
      return false;
    }
    if (tables_.unknown_id && !(was_unknown && tables_.fuses_unknown))
      scratch_.symbols.push_back(*tables_.unknown_id);
    return true;
  }

  const TokenizerTables& tables_;
  const std::vector<bool>& is_barred_;
  bool trusted_;
  std::vector<std::int32_t> ids_;
  PieceList pieces_;
  BpeScratch scratch_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerTables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

result<Tokenizer> Tokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.json";
  TROUPE_TRY(const std::string text, read_text_file(path));
  TROUPE_TRY(TokenizerTables tables, parse_tokenizer_json(text, path.string()));
  const std::filesystem::path template_path = folder / "chat_template.jinja";
  if (std::filesystem::exists(template_path)) {
    TROUPE_TRY(tables.chat_template_text, read_text_file(template_path));
  }
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path config_path = folder / name;
    if (!std::filesystem::exists(config_path)) continue;
    TROUPE_TRY(const std::string config, read_text_file(config_path));
    TROUPE_TRY_VOID(parse_tokenizer_config(config, config_path.string(), tables));
  }
  return Tokenizer(std::make_unique<const TokenizerTables>(std::move(tables)));
}

result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json,
                                       std::string_view config_json, std::string_view place) {
  TROUPE_TRY(TokenizerTables tables, parse_tokenizer_json(tokenizer_json, place));
  if (!config_json.empty())
    TROUPE_TRY_VOID(parse_tokenizer_config(config_json, "tokenizer_config.json", tables));
  return Tokenizer(std::make_unique<const TokenizerTables>(std::move(tables)));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  Encoder encoder(*tables_, options.trusted);
  if (options.add_special) encoder.add_ids(tables_->prefix_ids);
  if (is_valid_utf8(text))
    encoder.add_text(text);
  else
    encoder.add_text(replace_invalid_utf8(text));
  if (options.add_special) encoder.add_ids(tables_->suffix_ids);
  return encoder.take_ids();
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, DecodeOptions options) const {
  StreamDecoder decoder(*this, options);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string Tokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return tables_->token_bytes[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
  return tables_->find(token);
}

std::optional<std::int32_t> Tokenizer::special_id(std::string_view token) const {
  const std::optional<std::int32_t> id = tables_->find(token);
  return id && is_special(*id) ? id : std::nullopt;
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && tables_->is_special[static_cast<std::size_t>(id)];
}

std::int32_t Tokenizer::vocab_size() const { return tables_->vocab_size(); }
std::optional<std::int32_t> Tokenizer::bos_id() const { return tables_->bos_id; }
std::optional<std::int32_t> Tokenizer::eos_id() const { return tables_->eos_id; }
std::optional<std::int32_t> Tokenizer::pad_id() const { return tables_->pad_id; }
std::optional<std::int32_t> Tokenizer::unk_id() const { return tables_->unk_id; }
const std::string& Tokenizer::chat_template_text() const { return tables_->chat_template_text; }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, DecodeOptions options)
    : tables_(tokenizer.tables_.get()),
      options_(options),
      leading_spaces_(tables_->leading_spaces) {}

std::string StreamDecoder::push(std::int32_t id) {
  const TokenizerTables& tables = *tables_;
  if (id < 0 || id >= tables.vocab_size()) return {};
  const auto index = static_cast<std::size_t>(id);
  if (!tables.is_known[index] || (options_.skip_special && tables.is_special[index])) return {};
  const bool is_first = std::exchange(is_first_, false);
  if (is_first && tables.leading_rule == LeadingRule::kDropMarkers) {
    pending_ += tables.first_token_bytes[index];
  } else {
    std::string_view bytes = tables.token_bytes[index];
    while (leading_spaces_ > 0 && bytes.starts_with(' ')) {
      bytes.remove_prefix(1);
      --leading_spaces_;
    }
    if (!bytes.empty()) leading_spaces_ = 0;
    pending_ += bytes;
  }
  // Everything but an unfinished character at the end is final.
  std::string rest = pending_.substr(pending_.size() - unfinished_suffix(pending_));
  pending_.resize(pending_.size() - rest.size());
  std::string text = replace_invalid_utf8(pending_);
  pending_ = std::move(rest);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace troupe::actors
