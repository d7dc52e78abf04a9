#include "actors/text/byte_level_tokenizer.hpp"

#include "actors/text/byte_level.hpp"
#include "actors/text/chat_template.hpp"
#include "runtime/base/file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <system_error>

namespace troupe::actors {
namespace {

using nlohmann::ordered_json;

/// The bytes that get a token, ascending.
std::set<unsigned char> alphabet_of(const ByteLevelOptions& options) {
  std::set<unsigned char> bytes;
  for (const char c : options.alphabet) bytes.insert(static_cast<unsigned char>(c));
  if (bytes.empty())
    for (unsigned int byte = 0; byte < 256; ++byte) bytes.insert(static_cast<unsigned char>(byte));
  return bytes;
}

result<void> check_options(const std::filesystem::path& folder, const ByteLevelOptions& options) {
  std::set<std::string_view> specials;
  for (const std::string& special : options.specials) {
    if (special.empty() || from_byte_level(special).value_or("").size() == 1)
      return fail(ErrorCode::kInvalidArgument,
                  "{}: special token \"{}\" is too short, a byte may look the same",
                  folder.string(), special);
    if (!specials.insert(special).second)
      return fail(ErrorCode::kInvalidArgument, "{}: special token {} is given twice",
                  folder.string(), special);
  }
  const std::pair<std::string_view, const std::string*> named[] = {
      {"pad_token", &options.pad_token},
      {"eos_token", &options.eos_token},
      {"bos_token", &options.bos_token},
      {"unk_token", &options.unk_token}};
  for (const auto& [name, token] : named)
    if (!token->empty() && !specials.contains(*token))
      return fail(ErrorCode::kInvalidArgument, "{}: {} {} is not one of the special tokens",
                  folder.string(), name, *token);
  return {};
}

ordered_json tokenizer_document(const ByteLevelOptions& options) {
  ordered_json vocabulary = ordered_json::object();
  ordered_json added = ordered_json::array();
  int next_id = 0;
  for (const std::string& special : options.specials) {
    added.push_back({{"id", next_id},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    // In the model's vocabulary as well, or the Hugging Face library numbers it anew.
    vocabulary[special] = next_id++;
  }
  for (const unsigned char byte : alphabet_of(options)) {
    const char c = static_cast<char>(byte);
    vocabulary[to_byte_level(std::string_view(&c, 1))] = next_id++;
  }
  const ordered_json byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", false}};
  ordered_json model = {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"ignore_merges", false},
                        {"vocab", vocabulary},
                        {"merges", ordered_json::array()}};
  if (!options.unk_token.empty()) model["unk_token"] = options.unk_token;
  return {{"version", "1.0"},          {"truncation", nullptr}, {"padding", nullptr},
          {"added_tokens", added},     {"normalizer", nullptr}, {"pre_tokenizer", byte_level},
          {"post_processor", nullptr}, {"decoder", byte_level}, {"model", model}};
}

ordered_json config_document(const ByteLevelOptions& options) {
  const auto token_or_null = [](const std::string& token) {
    return token.empty() ? ordered_json(nullptr) : ordered_json(token);
  };
  ordered_json document = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                           {"bos_token", token_or_null(options.bos_token)},
                           {"eos_token", token_or_null(options.eos_token)},
                           {"pad_token", token_or_null(options.pad_token)},
                           {"unk_token", token_or_null(options.unk_token)},
                           {"clean_up_tokenization_spaces", false}};
  const auto has = [&](std::string_view token) {
    return std::find(options.specials.begin(), options.specials.end(), token) !=
           options.specials.end();
  };
  // So that transformers' apply_chat_template says the same as ChatTemplate does.
  if (has("<|im_start|>") && has("<|im_end|>")) document["chat_template"] = kChatMlJinja;
  return document;
}

}  // namespace

result<int> write_byte_level_tokenizer(const std::filesystem::path& folder,
                                       const ByteLevelOptions& options) {
  TROUPE_TRY_VOID(check_options(folder, options));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorCode::kIo, "{}: cannot create: {}", folder.string(), error.message());
  std::string tokenizer_text;
  try {
    tokenizer_text = tokenizer_document(options).dump(1);
  } catch (const nlohmann::json::exception&) {
    return fail(ErrorCode::kInvalidArgument, "{}: a special token is not UTF-8", folder.string());
  }
  TROUPE_TRY_VOID(write_text_file(folder / "tokenizer.json", tokenizer_text + "\n"));
  TROUPE_TRY_VOID(
      write_text_file(folder / "tokenizer_config.json", config_document(options).dump(1) + "\n"));
  return static_cast<int>(options.specials.size() + alphabet_of(options).size());
}

}  // namespace troupe::actors
