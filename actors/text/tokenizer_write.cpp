#include "actors/text/tokenizer_write.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/utf8.hpp"

#include <nlohmann/json.hpp>

#include <unordered_map>
#include <utility>

namespace troupe::actors {
namespace {

// Not ordered_json, which searches the keys of an object one by one: too slow for a vocabulary.
using nlohmann::json;

/// Llama 3's split with another part for digits.
std::string words_pattern(std::string_view digits) {
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" + std::string(digits) +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

json byte_level(bool uses_pattern) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", uses_pattern}};
}

json sequence(json first, json second) {
  return {{"type", "Sequence"},
          {"pretokenizers", json::array({std::move(first), std::move(second)})}};
}

json pre_tokenizer(ByteLevelFamily family) {
  const auto split = [](std::string_view digits) -> json {
    return {{"type", "Split"},
            {"pattern", {{"Regex", words_pattern(digits)}}},
            {"behavior", "Isolated"},
            {"invert", false}};
  };
  switch (family) {
    case ByteLevelFamily::kGpt2:
      return byte_level(true);
    case ByteLevelFamily::kSmolLm:
      return sequence({{"type", "Digits"}, {"individual_digits", true}}, byte_level(true));
    case ByteLevelFamily::kQwen2:
      return sequence(split(R"(\p{N})"), byte_level(false));
    case ByteLevelFamily::kLlama3:
      return sequence(split(R"(\p{N}{1,3})"), byte_level(false));
  }
  return nullptr;
}

class Writer {
 public:
  Writer(const ByteLevelVocabulary& vocabulary, std::string_view place)
      : vocabulary_(vocabulary), place_(place) {}

  result<TokenizerFiles> write() {
    TROUPE_TRY_VOID(check_tokens());
    TROUPE_TRY_VOID(check_named());
    return TokenizerFiles{.tokenizer_json = tokenizer().dump() + "\n",
                          .config_json = config().dump(2) + "\n"};
  }

 private:
  std::string_view token(std::size_t id) const { return vocabulary_.tokens[id]; }
  bool is_added(std::size_t id) const {
    return vocabulary_.kinds[id] == TokenKind::kControl ||
           vocabulary_.kinds[id] == TokenKind::kUserDefined;
  }

  result<void> check_tokens() {
    TROUPE_CHECK(vocabulary_.kinds.size() == vocabulary_.tokens.size(), "{} kinds for {} tokens",
                 vocabulary_.kinds.size(), vocabulary_.tokens.size());
    std::unordered_map<std::string_view, std::size_t> first_of;
    for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      if (vocabulary_.kinds[id] == TokenKind::kUnused) continue;
      if (token(id).empty() || !is_valid_utf8(token(id)))
        return fail(ErrorCode::kCorrupt, "{}: token {} of {} bytes is empty or not UTF-8", place_,
                    id, token(id).size());
      const auto [first, is_new] = first_of.emplace(token(id), id);
      if (!is_new)
        return fail(ErrorCode::kCorrupt, "{}: tokens {} and {} are both {}", place_, first->second,
                    id, token(id));
    }
    for (std::size_t i = 0; i < vocabulary_.merges.size(); ++i)
      if (!is_valid_utf8(vocabulary_.merges[i]))
        return fail(ErrorCode::kCorrupt, "{}: merge {} is not UTF-8", place_, i);
    if (!is_valid_utf8(vocabulary_.chat_template))
      return fail(ErrorCode::kCorrupt, "{}: the chat template is not UTF-8", place_);
    return {};
  }

  result<void> check_named() const {
    const std::pair<std::string_view, std::optional<std::int32_t>> named[] = {
        {"bos", vocabulary_.bos_id},
        {"eos", vocabulary_.eos_id},
        {"pad", vocabulary_.pad_id},
        {"unknown", vocabulary_.unk_id}};
    for (const auto& [name, id] : named) {
      if (!id) continue;
      const bool exists = *id >= 0 && std::cmp_less(*id, vocabulary_.tokens.size()) &&
                          vocabulary_.kinds[static_cast<std::size_t>(*id)] != TokenKind::kUnused;
      if (!exists)
        return fail(ErrorCode::kCorrupt, "{}: the {} token has id {}, but that is none of {}",
                    place_, name, *id, vocabulary_.tokens.size());
    }
    if (vocabulary_.adds_bos && !vocabulary_.bos_id)
      return fail(ErrorCode::kCorrupt, "{}: a begin token is to be added, but none is named",
                  place_);
    return {};
  }

  /// Added tokens behind the ordinary ones stay out of the model, as trainers leave them, where the
  /// Hugging Face library, which numbers them itself, comes to the same ids: without any hole.
  std::size_t model_size() const {
    const std::vector<TokenKind>& kinds = vocabulary_.kinds;
    const auto is_kind = [&kinds](std::size_t id, TokenKind kind) { return kinds[id] == kind; };
    std::size_t ordinary = 0;
    while (ordinary < kinds.size() && is_kind(ordinary, TokenKind::kNormal)) ++ordinary;
    std::size_t added = ordinary;
    while (added < kinds.size() && is_added(added)) ++added;
    for (std::size_t id = added; id < kinds.size(); ++id)
      if (!is_kind(id, TokenKind::kUnused)) return kinds.size();
    return ordinary;
  }

  json model() const {
    json vocab = json::object();
    const std::size_t count = model_size();
    for (std::size_t id = 0; id < count; ++id)
      if (vocabulary_.kinds[id] != TokenKind::kUnused) vocab[std::string(token(id))] = id;
    json merges = json::array();
    for (const std::string_view merge : vocabulary_.merges) merges.push_back(merge);
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", vocabulary_.family == ByteLevelFamily::kLlama3},
            {"vocab", std::move(vocab)},
            {"merges", std::move(merges)}};
  }

  json added_tokens() const {
    json list = json::array();
    for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      if (!is_added(id)) continue;
      list.push_back({{"id", id},
                      {"content", token(id)},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", vocabulary_.kinds[id] == TokenKind::kControl}});
    }
    return list;
  }

  json named(std::optional<std::int32_t> id) const {
    return id ? json(token(static_cast<std::size_t>(*id))) : json(nullptr);
  }

  json post_processor() const {
    if (!vocabulary_.adds_bos) return nullptr;
    const json bos = named(vocabulary_.bos_id);
    const json special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
    const auto text = [](std::string_view name, int type) -> json {
      return {{"Sequence", {{"id", name}, {"type_id", type}}}};
    };
    json ids = json::object();
    ids[bos.get<std::string>()] = {
        {"id", bos}, {"ids", json::array({*vocabulary_.bos_id})}, {"tokens", json::array({bos})}};
    return {{"type", "TemplateProcessing"},
            {"single", json::array({special, text("A", 0)})},
            {"pair", json::array({special, text("A", 0), special, text("B", 1)})},
            {"special_tokens", std::move(ids)}};
  }

  json tokenizer() const {
    const bool is_qwen = vocabulary_.family == ByteLevelFamily::kQwen2;
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added_tokens()},
            {"normalizer", is_qwen ? json{{"type", "NFC"}} : json(nullptr)},
            {"pre_tokenizer", pre_tokenizer(vocabulary_.family)},
            {"post_processor", post_processor()},
            {"decoder", byte_level(true)},
            {"model", model()}};
  }

  json config() const {
    json document = {
        {"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_prefix_space", false},
        {"clean_up_tokenization_spaces", false},        {"bos_token", named(vocabulary_.bos_id)},
        {"eos_token", named(vocabulary_.eos_id)},       {"pad_token", named(vocabulary_.pad_id)},
        {"unk_token", named(vocabulary_.unk_id)}};
    if (!vocabulary_.chat_template.empty()) document["chat_template"] = vocabulary_.chat_template;
    return document;
  }

  const ByteLevelVocabulary& vocabulary_;
  std::string_view place_;
};

}  // namespace

result<TokenizerFiles> tokenizer_files(const ByteLevelVocabulary& vocabulary,
                                       std::string_view place) {
  return Writer(vocabulary, place).write();
}

}  // namespace troupe::actors
