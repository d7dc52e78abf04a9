// tokenizer.json and tokenizer_config.json → TokenizerTables.

#include "actors/text/byte_level.hpp"
#include "actors/text/strict_json.hpp"
#include "actors/text/tokenizer_components.hpp"
#include "actors/text/tokenizer_tables.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::actors {
namespace {

using nlohmann::json;

/// Larger than any vocabulary; keeps a hostile file from asking for gigabytes.
constexpr std::int32_t kIdMax = 1 << 20;

bool is_token_id(const json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() < std::uint64_t{kIdMax};
}

/// `<0x0A>` → 10.
std::optional<unsigned char> byte_of_fallback(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned int value = 0;
  for (const char c : token.substr(3, 2)) {
    unsigned int digit = 0;
    if (c >= '0' && c <= '9')
      digit = static_cast<unsigned int>(c - '0');
    else if (c >= 'A' && c <= 'F')
      digit = static_cast<unsigned int>(c - 'A' + 10);
    else
      return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<unsigned char>(value);
}

class TablesReader {
 public:
  explicit TablesReader(std::string_view place) : place_(place) {}

  result<TokenizerTables> read(const json& document) {
    TROUPE_TRY(const Component root, component_of(document, place_));
    TROUPE_TRY_VOID(read_around(root));
    const json* model_json = root.find("model");
    if (model_json == nullptr) return root.wrong("model", "an object");
    TROUPE_TRY(const Component model, component_of(*model_json, place_ + ": model"));
    TROUPE_TRY_VOID(read_model_options(model));
    TROUPE_TRY_VOID(read_vocabulary(model));
    TROUPE_TRY_VOID(read_merges(model));
    TROUPE_TRY_VOID(read_added_tokens(root));
    TROUPE_TRY_VOID(finish_model(model));
    TROUPE_TRY_VOID(check_post_processor());
    return std::move(tables_);
  }

 private:
  /// Normalizer, pre-tokenizer, decoder, post-processor.
  result<void> read_around(const Component& root) {
    const auto part = [&](std::string_view key) {
      return component_of(*root.find(key), fmt::format("{}: {}", place_, key));
    };
    if (root.find("normalizer") != nullptr) {
      TROUPE_TRY(const Component component, part("normalizer"));
      TROUPE_TRY_VOID(read_normalizer(component, tables_.normalizer));
    }
    if (root.find("pre_tokenizer") != nullptr) {
      TROUPE_TRY(const Component component, part("pre_tokenizer"));
      TROUPE_TRY_VOID(read_pre_tokenizer(component, tables_.pre_tokenizer));
    }
    tables_.is_byte_level = tables_.pre_tokenizer.is_byte_level();
    if (root.find("decoder") == nullptr)
      return fail(ErrorCode::kUnsupported, "{}: decoder is null, ids would not join to a text",
                  place_);
    TROUPE_TRY(const Component decoder, part("decoder"));
    TROUPE_TRY(decoder_, read_decoder(decoder));
    if (decoder_.is_byte_level != tables_.is_byte_level)
      return fail(ErrorCode::kUnsupported,
                  "{}: the pre-tokenizer is{} ByteLevel, but the decoder is{}", place_,
                  tables_.is_byte_level ? "" : " not", decoder_.is_byte_level ? "" : " not");
    tables_.leading_rule = decoder_.leading_rule;
    tables_.leading_spaces = decoder_.leading_spaces;
    if (root.find("post_processor") != nullptr) {
      TROUPE_TRY(const Component component, part("post_processor"));
      TROUPE_TRY_VOID(read_post_processor(component, tables_.prefix_ids, tables_.suffix_ids));
    }
    return {};
  }

  result<void> read_model_options(const Component& model) {
    TROUPE_TRY(const std::string type, model.text_or("type", "BPE"));
    if (type != "BPE")
      return fail(ErrorCode::kUnsupported, "{}: type {} is not supported, only BPE", model.place,
                  type);
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      TROUPE_TRY(const std::string text, model.text_or(key, ""));
      if (!text.empty())
        return fail(ErrorCode::kUnsupported, "{}: {} \"{}\" is not supported", model.place, key,
                    text);
    }
    if (const json* dropout = model.find("dropout"); dropout != nullptr && *dropout != 0.0)
      return fail(ErrorCode::kUnsupported, "{}: dropout {} is not supported", model.place,
                  dropout->dump());
    TROUPE_TRY(tables_.has_byte_fallback, model.flag_or("byte_fallback", false));
    TROUPE_TRY(tables_.fuses_unknown, model.flag_or("fuse_unk", false));
    TROUPE_TRY(tables_.ignores_merges, model.flag_or("ignore_merges", false));
    if (!tables_.is_byte_level && !tables_.has_byte_fallback)
      return fail(ErrorCode::kUnsupported, "{}: is neither byte-level nor byte-fallback BPE",
                  model.place);
    return {};
  }

  void set_token(std::int32_t id, std::string_view token) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= token_of_.size()) token_of_.resize(index + 1);
    token_of_[index] = std::string(token);
  }

  result<void> read_vocabulary(const Component& model) {
    const json* vocabulary = model.find("vocab");
    if (vocabulary == nullptr || !vocabulary->is_object()) return model.wrong("vocab", "an object");
    tables_.vocabulary.reserve(vocabulary->size());
    for (const auto& [token, id_json] : vocabulary->items()) {
      if (!is_token_id(id_json))
        return fail(ErrorCode::kCorrupt, "{}: vocab: token {} has id {}, wanted 0 to {}",
                    model.place, token, id_json.dump(), kIdMax - 1);
      const auto id = id_json.get<std::int32_t>();
      if (std::cmp_less(id, token_of_.size()) && token_of_[static_cast<std::size_t>(id)])
        return fail(ErrorCode::kCorrupt, "{}: vocab: tokens {} and {} both have id {}", model.place,
                    *token_of_[static_cast<std::size_t>(id)], token, id);
      set_token(id, token);
      tables_.vocabulary.emplace(token, id);
    }
    return {};
  }

  /// Items are "a b" or ["a", "b"].
  static std::optional<std::pair<std::string_view, std::string_view>> merge_parts(
      const json& item) {
    if (item.is_array()) {
      if (item.size() != 2 || !item[0].is_string() || !item[1].is_string()) return std::nullopt;
      return std::pair<std::string_view, std::string_view>(item[0].get_ref<const std::string&>(),
                                                           item[1].get_ref<const std::string&>());
    }
    if (!item.is_string()) return std::nullopt;
    const std::string_view text = item.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      return std::nullopt;
    return std::pair(text.substr(0, space), text.substr(space + 1));
  }

  result<void> read_merges(const Component& model) {
    const json* merges = model.find("merges");
    if (merges == nullptr || !merges->is_array()) return model.wrong("merges", "a list");
    tables_.merges = MergeTable(merges->size());
    std::int32_t rank = 0;
    for (const json& item : *merges) {
      const auto parts = merge_parts(item);
      if (!parts)
        return fail(ErrorCode::kCorrupt, "{}: merges: item {} is {}, wanted a pair of tokens",
                    model.place, rank, item.dump());
      const std::string whole = std::string(parts->first) + std::string(parts->second);
      for (const std::string_view token : {parts->first, parts->second, std::string_view(whole)})
        if (!tables_.find(token))
          return fail(ErrorCode::kCorrupt, "{}: merges: item {}: token {} is not in vocab",
                      model.place, rank, token);
      tables_.merges.add(*tables_.find(parts->first), *tables_.find(parts->second),
                         {rank, *tables_.find(whole)});
      ++rank;
    }
    return {};
  }

  result<void> read_added_tokens(const Component& root) {
    TROUPE_TRY(const json list, root.list("added_tokens"));
    for (std::size_t i = 0; i < list.size(); ++i) {
      TROUPE_TRY(const Component item,
                 component_of(list[i], fmt::format("{}: added_tokens {}", place_, i)));
      TROUPE_TRY_VOID(read_added_token(item));
    }
    return {};
  }

  result<void> read_added_token(const Component& item) {
    AddedToken token;
    TROUPE_TRY(token.content, item.text("content"));
    const json* id = item.find("id");
    if (id == nullptr || !is_token_id(*id)) return item.wrong("id", "a token id");
    token.id = id->get<std::int32_t>();
    TROUPE_TRY(token.is_special, item.flag_or("special", false));
    TROUPE_TRY(token.is_single_word, item.flag_or("single_word", false));
    TROUPE_TRY(token.strips_left, item.flag_or("lstrip", false));
    TROUPE_TRY(token.strips_right, item.flag_or("rstrip", false));
    TROUPE_TRY(token.matches_normalized, item.flag_or("normalized", !token.is_special));

    const std::optional<std::int32_t> known_id = tables_.find(token.content);
    const auto index = static_cast<std::size_t>(token.id);
    const bool is_taken = index < token_of_.size() && token_of_[index];
    if (known_id ? *known_id != token.id : is_taken)
      return fail(ErrorCode::kCorrupt, "{}: token {} has id {}, but {} has {}", item.place,
                  token.content, token.id, known_id ? token.content : *token_of_[index],
                  known_id ? *known_id : token.id);
    set_token(token.id, token.content);
    tables_.vocabulary.emplace(token.content, token.id);
    if (token.is_special) special_ids_.push_back(token.id);
    if (!token.matches_normalized) {
      tables_.raw_added.add(token.content, token);
    } else {
      tables_.normalized_added.add(tables_.normalizer.apply(token.content), token);
    }
    return {};
  }

  std::string bytes_of(std::string token) const {
    if (tables_.is_byte_level) return from_byte_level(token).value_or(token);
    for (const auto& [pattern, content] : decoder_.replacements)
      token = replace_all(token, pattern, content);
    if (!decoder_.has_byte_fallback) return token;
    const std::optional<unsigned char> byte = byte_of_fallback(token);
    return byte ? std::string(1, static_cast<char>(*byte)) : token;
  }

  result<void> finish_model(const Component& model) {
    const std::size_t count = token_of_.size();
    tables_.token_bytes.resize(count);
    tables_.is_known.resize(count, false);
    tables_.is_special.resize(count, false);
    const bool drops_markers = tables_.leading_rule == LeadingRule::kDropMarkers;
    if (drops_markers) tables_.first_token_bytes.resize(count);
    for (std::size_t id = 0; id < count; ++id) {
      if (!token_of_[id]) continue;
      tables_.is_known[id] = true;
      tables_.token_bytes[id] = bytes_of(*token_of_[id]);
      if (drops_markers)
        tables_.first_token_bytes[id] = bytes_of(replace_all(*token_of_[id], decoder_.marker, ""));
    }
    for (const std::int32_t id : special_ids_)
      tables_.is_special[static_cast<std::size_t>(id)] = true;
    for (unsigned int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      const std::string token = tables_.is_byte_level ? to_byte_level(std::string_view(&c, 1))
                                                      : fmt::format("<0x{:02X}>", byte);
      tables_.byte_ids[byte] = tables_.find(token).value_or(kNoToken);
    }
    TROUPE_TRY(const std::string unknown, model.text_or("unk_token", ""));
    if (!unknown.empty()) {
      tables_.unknown_id = tables_.find(unknown);
      if (!tables_.unknown_id)
        return fail(ErrorCode::kCorrupt, "{}: unk_token {} is not in vocab", model.place, unknown);
    }
    return {};
  }

  result<void> check_post_processor() const {
    for (const auto* ids : {&tables_.prefix_ids, &tables_.suffix_ids})
      for (const std::int32_t id : *ids)
        if (id >= tables_.vocab_size() || !tables_.is_known[static_cast<std::size_t>(id)])
          return fail(ErrorCode::kCorrupt, "{}: post_processor: id {} is not in the vocabulary",
                      place_, id);
    return {};
  }

  std::string place_;
  TokenizerTables tables_;
  DecoderRules decoder_;
  std::vector<std::optional<std::string>> token_of_;
  std::vector<std::int32_t> special_ids_;
};

/// A token given as its text, or as an object with `content`; empty when absent.
result<std::string> named_token(const Component& config, std::string_view key) {
  const json* value = config.find(key);
  if (value == nullptr) return std::string();
  if (value->is_object()) {
    TROUPE_TRY(const Component token,
               component_of(*value, fmt::format("{}: {}", config.place, key)));
    return token.text("content");
  }
  return config.text(key);
}

/// `chat_template` is a text, or a list of named ones.
std::string template_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string first;
  if (!value.is_array()) return first;
  for (const json& item : value) {
    const bool has_text =
        item.is_object() && item.contains("template") && item.at("template").is_string();
    if (!has_text) continue;
    if (item.contains("name") && item.at("name") == "default")
      return item.at("template").get<std::string>();
    if (first.empty()) first = item.at("template").get<std::string>();
  }
  return first;
}

}  // namespace

result<TokenizerTables> parse_tokenizer_json(std::string_view text, std::string_view place) {
  TROUPE_TRY(const json document, parse_strict_json(text, place));
  return TablesReader(place).read(document);
}

result<void> parse_tokenizer_config(std::string_view text, std::string_view place,
                                    TokenizerTables& tables) {
  TROUPE_TRY(const json document, parse_strict_json(text, place));
  TROUPE_TRY(const Component config, component_of(document, std::string(place)));
  const std::array<std::pair<std::string_view, std::optional<std::int32_t>*>, 4> named = {
      std::pair("bos_token", &tables.bos_id), std::pair("eos_token", &tables.eos_id),
      std::pair("pad_token", &tables.pad_id), std::pair("unk_token", &tables.unk_id)};
  for (const auto& [key, id] : named) {
    TROUPE_TRY(const std::string token, named_token(config, key));
    if (token.empty() || *id) continue;
    *id = tables.find(token);
    if (!*id)
      return fail(ErrorCode::kCorrupt, "{}: {} {} is not in the vocabulary", place, key, token);
  }
  if (const json* value = config.find("chat_template");
      value != nullptr && tables.chat_template_text.empty())
    tables.chat_template_text = template_text(*value);
  return {};
}

}  // namespace troupe::actors
