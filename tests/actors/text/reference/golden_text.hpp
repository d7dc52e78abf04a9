#pragma once

// What Jinja and the Hugging Face tokenizers library make of common texts (chats.json, texts.json,
// made by make_golden.py), and the comparison with what Troupe makes of them.
//
// **Threads:** one test, one thread.

#include "actors/text/chat_template.hpp"
#include "tests/support/test_files.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::actors {

inline nlohmann::json golden_text(const std::string& name) {
  return nlohmann::json::parse(troupe::testing::read_file(std::filesystem::path(TROUPE_SOURCE_DIR) /
                                                          "tests/actors/text/reference" / name));
}

inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ULL;

/// FNV-1a over whole ids and an end mark.
inline std::uint64_t hash_of(const std::vector<std::int32_t>& ids,
                             std::uint64_t state = kHashStart) {
  constexpr std::uint64_t kPrime = 0x100000001b3ULL;
  for (const std::int32_t id : ids) state = (state ^ static_cast<std::uint32_t>(id)) * kPrime;
  return (state ^ 0xffffffffULL) * kPrime;
}

inline std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

/// Every text in the set has the ids of the reference, and decodes to what it decodes to.
inline void expect_texts(const Tokenizer& tokenizer, const nlohmann::json& facts,
                         const nlohmann::json& texts) {
  ASSERT_EQ(texts.size(), facts.at("ids").size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    EXPECT_EQ(hash_text(hash_of(ids)), facts.at("ids")[i].get<std::string>()) << text;
    EXPECT_EQ(tokenizer.decode(ids), facts.at("decoded").value(std::to_string(i), text));
  }
}

/// So has every question and answer of GSM8K, a thousand a hash; false where the data is absent.
inline bool expect_gsm8k(const Tokenizer& tokenizer, const nlohmann::json& facts) {
  constexpr std::size_t kTextsPerHash = 1000;
  for (const auto& [part, hashes] : facts.at("gsm8k").items()) {
    std::ifstream rows(troupe::testing::shared_folder() / "data/gsm8k" / (part + ".jsonl"));
    if (!rows) return false;
    std::vector<std::uint64_t> found;
    std::size_t count = 0;
    for (std::string line; std::getline(rows, line);) {
      const auto fields = nlohmann::json::parse(line);
      for (const char* key : {"question", "answer"}) {
        if (count++ % kTextsPerHash == 0) found.push_back(kHashStart);
        found.back() = hash_of(tokenizer.encode(fields.at(key).get<std::string>()), found.back());
      }
    }
    EXPECT_EQ(found.size(), hashes.size()) << part;
    for (std::size_t i = 0; i < std::min(found.size(), hashes.size()); ++i)
      EXPECT_EQ(hash_text(found[i]), hashes[i].get<std::string>())
          << part << " texts from " << i * kTextsPerHash;
  }
  return true;
}

/// A small tokenizer of ../fixtures with this chat template; `qwen3` is `qwen` with two more
/// tokens.
inline Tokenizer small_tokenizer(const std::string& name, const std::string& jinja) {
  const auto folder = std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/actors/text/fixtures" /
                      (name == "qwen3" ? "qwen" : name);
  auto file = nlohmann::json::parse(troupe::testing::read_file(folder / "tokenizer.json"));
  if (name == "qwen3") {
    auto& added = file.at("added_tokens");
    for (const char* mark : {"<tool_response>", "</tool_response>"}) {
      auto token = added.back();
      token["id"] = token.at("id").get<int>() + 1;
      token["content"] = mark;
      added.push_back(token);
    }
  }
  const nlohmann::json config = {{"chat_template", jinja}};
  auto tokenizer = Tokenizer::from_json(file.dump(), config.dump());
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return std::move(*tokenizer);
}

/// The conversation of one case of chats.json is written as Jinja wrote it.
inline void expect_chat(const nlohmann::json& item, const std::string& jinja) {
  SCOPED_TRACE(item.at("template").get<std::string>() + " " + item.at("messages").dump());
  const Tokenizer tokenizer = small_tokenizer(item.at("tokenizer"), jinja);
  const auto& options = item.at("options");
  ChatOptions chosen{.empty_think_block = options.value("empty_think_block", false)};
  if (options.contains("date")) chosen.date = options.at("date").get<std::string>();
  const auto chat = ChatTemplate::pick(tokenizer, chosen);
  ASSERT_TRUE(chat) << chat.error().message;
  std::vector<Message> messages;
  for (const auto& message : item.at("messages"))
    messages.push_back({message.at("role"), message.at("content")});
  const auto ids = chat->format(messages, item.at("add_generation_prompt"));
  ASSERT_TRUE(ids) << ids.error().message;
  EXPECT_EQ(tokenizer.decode(*ids), item.at("text").get<std::string>());
  EXPECT_EQ(*ids, item.at("ids").get<std::vector<std::int32_t>>());
}

}  // namespace troupe::actors
