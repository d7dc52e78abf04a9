// Proves that a vocabulary written as tokenizer.json reads text as the Hugging Face library does:
// the fixtures of each family are taken apart into tokens, kinds and merges, written anew, and must
// give the library's ids (fixtures/*/cases.json) for every text.

#include "actors/text/tokenizer_write.hpp"

#include "actors/text/tokenizer.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

json fixture(const std::string& family, const std::string& file) {
  return json::parse(troupe::testing::read_file(std::filesystem::path(TROUPE_SOURCE_DIR) /
                                                "tests/actors/text/fixtures" / family / file));
}

/// The texts that a ByteLevelVocabulary views.
struct Parts {
  std::vector<std::string> tokens;
  std::vector<TokenKind> kinds;
  std::vector<std::string> merges;

  void set(std::size_t id, const std::string& token, TokenKind kind) {
    if (id >= tokens.size()) {
      tokens.resize(id + 1);
      kinds.resize(id + 1, TokenKind::kUnused);
    }
    tokens[id] = token;
    kinds[id] = kind;
  }
  ByteLevelVocabulary vocabulary(ByteLevelFamily family) const {
    ByteLevelVocabulary vocabulary{.family = family};
    vocabulary.tokens.assign(tokens.begin(), tokens.end());
    vocabulary.kinds = kinds;
    vocabulary.merges.assign(merges.begin(), merges.end());
    return vocabulary;
  }
};

Parts take_apart(const json& document) {
  Parts parts;
  for (const auto& [token, id] : document.at("model").at("vocab").items())
    parts.set(id, token, TokenKind::kNormal);
  for (const json& token : document.at("added_tokens"))
    parts.set(token.at("id"), token.at("content"),
              token.at("special") ? TokenKind::kControl : TokenKind::kUserDefined);
  for (const json& merge : document.at("model").at("merges"))
    parts.merges.push_back(merge.is_array()
                               ? merge[0].get<std::string>() + " " + merge[1].get<std::string>()
                               : merge.get<std::string>());
  return parts;
}

struct Family {
  const char* name;
  ByteLevelFamily family;
  const char* bos;  ///< put in front of every text
  bool has_plain_added_tokens;
};

class WrittenTokenizer : public ::testing::TestWithParam<Family> {};

TEST_P(WrittenTokenizer, GivesTheIdsOfTheLibrary) {
  const Parts parts = take_apart(fixture(GetParam().name, "tokenizer.json"));
  ByteLevelVocabulary vocabulary = parts.vocabulary(GetParam().family);
  if (GetParam().bos != nullptr) {
    const auto found = std::find(parts.tokens.begin(), parts.tokens.end(), GetParam().bos);
    vocabulary.bos_id = static_cast<std::int32_t>(found - parts.tokens.begin());
    vocabulary.adds_bos = true;
  }
  const auto files = tokenizer_files(vocabulary, "m");
  ASSERT_TRUE(files) << files.error().message;
  const auto tokenizer = Tokenizer::from_json(files->tokenizer_json, files->config_json);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const json cases = fixture(GetParam().name, "cases.json");
  EXPECT_GT(cases.size(), 100U);
  for (const json& item : cases) {
    const auto text = item.at("text").get<std::string>();
    EXPECT_EQ(tokenizer->encode(text), item.at("untrusted").get<Ids>()) << text;
    // Tokens that strip spaces or match whole words cannot be said in a vocabulary.
    if (!GetParam().has_plain_added_tokens) continue;
    const auto trusted = item.at("trusted").get<Ids>();
    EXPECT_EQ(tokenizer->encode(text, {.trusted = true}), trusted) << text;
    EXPECT_EQ(tokenizer->encode(text, {.trusted = true, .add_special = true}),
              item.at("with_special").get<Ids>())
        << text;
    EXPECT_EQ(tokenizer->decode(trusted), item.at("decoded").get<std::string>()) << text;
    EXPECT_EQ(tokenizer->decode(trusted, {.skip_special = true}),
              item.at("decoded_skip").get<std::string>())
        << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, WrittenTokenizer,
    ::testing::Values(Family{"gpt2", ByteLevelFamily::kGpt2, nullptr, false},
                      Family{"smollm", ByteLevelFamily::kSmolLm, nullptr, true},
                      Family{"qwen", ByteLevelFamily::kQwen2, nullptr, true},
                      Family{"llama3", ByteLevelFamily::kLlama3, "<|begin_of_text|>", true}),
    [](const auto& family) { return std::string(family.param.name); });

/// Two bytes, their merge, a hole and two special tokens.
ByteLevelVocabulary small() {
  ByteLevelVocabulary vocabulary;
  vocabulary.tokens = {"a", "b", "ab", "", "<s>", "</s>"};
  vocabulary.kinds = {TokenKind::kNormal, TokenKind::kNormal,  TokenKind::kNormal,
                      TokenKind::kUnused, TokenKind::kControl, TokenKind::kControl};
  vocabulary.merges = {"a b"};
  return vocabulary;
}

TEST(TokenizerWrite, KeepsIdsNamesAndTemplate) {
  ByteLevelVocabulary vocabulary = small();
  vocabulary.bos_id = 4;
  vocabulary.eos_id = 5;
  vocabulary.chat_template = "{{ messages }} \"<|im_start|>\"\n";
  const auto files = tokenizer_files(vocabulary, "m");
  ASSERT_TRUE(files) << files.error().message;
  const auto tokenizer = Tokenizer::from_json(files->tokenizer_json, files->config_json);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_THAT(tokenizer->encode("abba"), ElementsAre(2, 1, 0));
  EXPECT_EQ(tokenizer->vocab_size(), 6);
  EXPECT_EQ(tokenizer->bos_id(), 4);
  EXPECT_EQ(tokenizer->eos_id(), 5);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_EQ(tokenizer->special_id("</s>"), 5);
  EXPECT_EQ(tokenizer->chat_template_text(), vocabulary.chat_template);
}

/// The Hugging Face library numbers added tokens itself, from the size of the vocabulary on.
TEST(TokenizerWrite, PutsAddedTokensIntoTheModelWhereTheirIdsNeedIt) {
  const auto vocab_of = [](const ByteLevelVocabulary& vocabulary) {
    return json::parse(tokenizer_files(vocabulary, "m")->tokenizer_json).at("model").at("vocab");
  };
  ByteLevelVocabulary vocabulary = small();
  // Here the ids begin behind a hole: 4, where 3 would be given.
  EXPECT_TRUE(vocab_of(vocabulary).contains("<s>"));
  vocabulary.tokens[3] = "c";
  vocabulary.kinds[3] = TokenKind::kNormal;
  EXPECT_FALSE(vocab_of(vocabulary).contains("<s>")) << "ids 4 and 5 follow 3";
  vocabulary.kinds[0] = TokenKind::kControl;
  vocabulary.merges = {};
  EXPECT_TRUE(vocab_of(vocabulary).contains("a")) << "id 0 is before the last ordinary one";
}

TEST(TokenizerWrite, RefusesWhatWouldNotBeATokenizer) {
  const auto says = [](const ByteLevelVocabulary& vocabulary) {
    const auto files = tokenizer_files(vocabulary, "m.gguf");
    return files ? std::string("no error") : files.error().message;
  };
  ByteLevelVocabulary vocabulary = small();
  vocabulary.tokens[1] = "a";
  EXPECT_EQ(says(vocabulary), "m.gguf: tokens 0 and 1 are both a");
  vocabulary.tokens[1] = "";
  EXPECT_EQ(says(vocabulary), "m.gguf: token 1 of 0 bytes is empty or not UTF-8");
  vocabulary = small();
  vocabulary.eos_id = 3;
  EXPECT_EQ(says(vocabulary), "m.gguf: the eos token has id 3, but that is none of 6");
  vocabulary.eos_id = 6;
  EXPECT_THAT(says(vocabulary), HasSubstr("has id 6"));
  vocabulary = small();
  vocabulary.adds_bos = true;
  EXPECT_THAT(says(vocabulary), HasSubstr("a begin token is to be added, but none is named"));
  vocabulary = small();
  vocabulary.chat_template = "\xff";
  EXPECT_THAT(says(vocabulary), HasSubstr("the chat template is not UTF-8"));
}

}  // namespace
}  // namespace troupe::actors
