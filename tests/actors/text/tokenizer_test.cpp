// Proves that Tokenizer gives the ids and texts of the Hugging Face library: golden cases of six
// tokenizers (fixtures/, made by make_fixtures.py), and laws on random text: decode∘encode, streams
// equal whole decodes, untrusted text never yields a special id.

#include "actors/text/tokenizer.hpp"

#include "actors/text/utf8.hpp"
#include "runtime/base/rng.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace troupe::actors {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path fixtures() { return fs::path(TROUPE_SOURCE_DIR) / "tests/actors/text/fixtures"; }

fs::path folder_of(const std::string& name) {
  return name == "stories260K" ? troupe::testing::stories_folder() : fixtures() / name;
}

Tokenizer load(const std::string& name) {
  auto tokenizer = Tokenizer::load(folder_of(name));
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return std::move(*tokenizer);
}

std::string random_bytes(Rng& rng) {
  static constexpr std::string_view kPool[] = {
      "a",          "b",    " ",        "\n",       "7",  "é",  "世",     "😀", "<s>",
      "<|im_end|>", "\xff", "\xe4\xb8", "\xf0\x9f", "'s", "\t", "<0x41>", "▁"};
  std::string text;
  for (std::uint64_t i = rng.below(20); i > 0; --i) text += kPool[rng.below(std::size(kPool))];
  return text;
}

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!fs::exists(folder_of(GetParam())))
      GTEST_SKIP() << folder_of(GetParam()) << " is not there";
  }
};

TEST_P(GoldenTokenizer, GivesTheIdsAndTextsOfTheHuggingFaceLibrary) {
  const Tokenizer tokenizer = load(GetParam());
  const json cases =
      json::parse(troupe::testing::read_file(fixtures() / GetParam() / "cases.json"));
  ASSERT_GT(cases.size(), 100U);
  for (const json& item : cases) {
    const auto text = item.at("text").get<std::string>();
    const Ids trusted = item.at("trusted");
    EXPECT_EQ(tokenizer.encode(text, {.trusted = true}), trusted) << text;
    EXPECT_EQ(tokenizer.encode(text, {.trusted = true, .add_special = true}),
              item.at("with_special").get<Ids>());
    EXPECT_EQ(tokenizer.encode(text), item.at("untrusted").get<Ids>()) << text;
    EXPECT_EQ(tokenizer.decode(trusted), item.at("decoded").get<std::string>());
    EXPECT_EQ(tokenizer.decode(trusted, {.skip_special = true}),
              item.at("decoded_skip").get<std::string>());
  }
}

TEST_P(GoldenTokenizer, ReturnsEveryValidTextFromItsIds) {
  const Tokenizer tokenizer = load(GetParam());
  const bool is_byte_fallback =
      GetParam() == std::string("stories260K") || GetParam() == std::string("metaspace");
  Rng rng(11);
  for (int round = 0; round < 500; ++round) {
    const std::string text = replace_invalid_utf8(random_bytes(rng));
    // Qwen composes characters first and byte-fallback decodes `▁` to a space: no law there.
    if (text.find("▁") != std::string::npos) continue;
    std::string wanted = text;
    // With the marker put in front only when missing, one leading space of the text is lost.
    if (GetParam() == std::string("metaspace") && text.starts_with(' ')) wanted.erase(0, 1);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), is_byte_fallback ? wanted : text)
        << "seed 11";
  }
}

TEST_P(GoldenTokenizer, StreamsTheSameTextAsAWholeDecode) {
  const Tokenizer tokenizer = load(GetParam());
  Rng rng(5);
  for (int round = 0; round < 2000; ++round) {
    Ids ids;
    for (std::uint64_t i = rng.below(15); i > 0; --i)
      ids.push_back(static_cast<std::int32_t>(
                        rng.below(static_cast<std::uint64_t>(tokenizer.vocab_size()) + 5)) -
                    2);
    for (const bool skip : {false, true}) {
      StreamDecoder stream(tokenizer, {.skip_special = skip});
      std::string joined;
      std::string bytes;
      for (const std::int32_t id : ids) {
        const std::string piece = stream.push(id);
        EXPECT_TRUE(is_valid_utf8(piece)) << "seed 5, round " << round;
        joined += piece;
        if (!(skip && tokenizer.is_special(id))) bytes += tokenizer.token_bytes(id);
      }
      joined += stream.finish();
      EXPECT_EQ(joined, tokenizer.decode(ids, {.skip_special = skip})) << "seed 5, round " << round;
      // The oracle: all bytes at once. Byte-fallback families drop one leading space.
      const std::string whole = replace_invalid_utf8(bytes);
      EXPECT_TRUE(joined == whole || " " + joined == whole) << "seed 5, round " << round;
    }
  }
}

TEST_P(GoldenTokenizer, NeverMakesASpecialIdFromUntrustedText) {
  const Tokenizer tokenizer = load(GetParam());
  std::vector<std::string> specials;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_special(id)) specials.push_back(tokenizer.decode(Ids{id}));
  ASSERT_FALSE(specials.empty());
  Rng rng(3);
  for (int round = 0; round < 500; ++round) {
    const std::string text =
        random_bytes(rng) + specials[rng.below(specials.size())] + random_bytes(rng);
    for (const std::int32_t id : tokenizer.encode(text))
      EXPECT_FALSE(tokenizer.is_special(id)) << text;
    EXPECT_THAT(tokenizer.encode(text, {.trusted = true}),
                ::testing::Contains(
                    ::testing::Truly([&](std::int32_t id) { return tokenizer.is_special(id); })));
  }
}

TEST_P(GoldenTokenizer, ReadsBadUtf8AsReplacementCharacters) {
  const Tokenizer tokenizer = load(GetParam());
  Rng rng(9);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_bytes(rng);
    EXPECT_EQ(tokenizer.encode(text), tokenizer.encode(replace_invalid_utf8(text))) << "seed 9";
  }
}

TEST_P(GoldenTokenizer, MayBeUsedFromManyThreads) {
  const Tokenizer tokenizer = load(GetParam());
  const std::string text = "Natalia sold 48/2 = 24 clips in May.\n日本語 😀";
  const Ids wanted = tokenizer.encode(text);
  std::vector<int> agreed(4, 0);
  std::vector<std::thread> threads;
  for (int& count : agreed)
    threads.emplace_back([&tokenizer, &text, &wanted, &count] {
      for (int i = 0; i < 50; ++i)
        count += tokenizer.encode(text) == wanted && !tokenizer.decode(wanted).empty() ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(agreed, ::testing::Each(50));
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTokenizer,
                         ::testing::Values("qwen", "llama3", "gpt2", "smollm", "metaspace",
                                           "stories260K"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Tokenizer, KnowsTheNamedTokensOfStories260K) {
  if (!fs::exists(folder_of("stories260K"))) GTEST_SKIP() << "no shared folder";
  const Tokenizer tokenizer = load("stories260K");
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.unk_id(), 0);
  EXPECT_EQ(tokenizer.pad_id(), std::nullopt);
  EXPECT_EQ(tokenizer.special_id("</s>"), 2);
  EXPECT_EQ(tokenizer.special_id("▁t"), std::nullopt);
  EXPECT_TRUE(tokenizer.token_id("▁t").has_value());
  EXPECT_EQ(tokenizer.encode("Once upon a time", {.add_special = true}).front(), 1);
}

TEST(Tokenizer, DecodesIdsBeyondItsVocabularyToNothing) {
  const Tokenizer tokenizer = load("qwen");
  const Ids inside = tokenizer.encode("hello");
  Ids outside = {-1, -2147483648, tokenizer.vocab_size(), 2147483647};
  EXPECT_EQ(tokenizer.decode(outside), "");
  for (const std::int32_t id : outside) {
    EXPECT_EQ(tokenizer.token_bytes(id), "");
    EXPECT_FALSE(tokenizer.is_special(id));
  }
  outside.insert(outside.begin() + 2, inside.begin(), inside.end());
  EXPECT_EQ(tokenizer.decode(outside), "hello");
}

TEST(Tokenizer, ReadsNamedTokensAndTemplatesOfItsConfig) {
  const std::string text = troupe::testing::read_file(fixtures() / "qwen/tokenizer.json");
  const auto tokenizer = Tokenizer::from_json(
      text, R"({"bos_token": null, "eos_token": {"content": "<|im_end|>", "lstrip": false},
                "pad_token": "<|endoftext|>", "chat_template": [{"name": "tool", "template": "T"},
                {"name": "default", "template": "D"}]})");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer->eos_id(), tokenizer->special_id("<|im_end|>"));
  EXPECT_EQ(tokenizer->pad_id(), tokenizer->special_id("<|endoftext|>"));
  EXPECT_EQ(tokenizer->chat_template_text(), "D");
}

TEST(Tokenizer, EncodesAtLeastAMegabyteASecond) {
  const Tokenizer tokenizer = load("qwen");
  std::string text;
  for (int i = 0; text.size() < 500'000; ++i)
    text += "Natalia sold " + std::to_string(i * 37) + " clips, half as many as in April. Grüße!\n";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_GT(tokenizer.encode(text).size(), text.size() / 8);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
#ifdef NDEBUG
  EXPECT_LT(seconds, 0.5);
#else
  EXPECT_LT(seconds, 30.0);
#endif
}

TEST(Tokenizer, DoesNotSlowDownOnMonotonousText) {
  for (const char* name : {"qwen", "metaspace"}) {
    const Tokenizer tokenizer = load(name);
    for (const char* unit : {" ", "a", "\n", " \n", "1", "!", "\xff", "é"}) {
      std::string text;
      while (text.size() < 200'000) text += unit;
      const auto start = std::chrono::steady_clock::now();
      EXPECT_FALSE(tokenizer.encode(text).empty());
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10))
          << name << " '" << unit << "'";
    }
  }
}

}  // namespace
}  // namespace troupe::actors
