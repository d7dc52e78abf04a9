// Proves that conversations come out as Jinja writes them with the published templates of Qwen2.5,
// Qwen3, SmolLM2 and Llama 3 to 3.2 (golden cases of reference/make_golden.py), from templates of
// our own words that share with those what Troupe reads of them; that this is read from a template
// or refused; and that small tokenizers of each family give the ids of the Hugging Face library on
// all of GSM8K, on texts in many scripts and on every character. reference/published_test.cpp does
// the same with the templates and tokenizers themselves, where they are.

#include "actors/text/utf8.hpp"
#include "tests/actors/text/reference/golden_text.hpp"

#include <gmock/gmock.h>

#include <map>

namespace troupe::actors {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ChatMarks kChatMl{.start = "<|im_start|>", .header_end = "\n", .end = "<|im_end|>"};
constexpr ChatMarks kLlama3{
    .start = "<|start_header_id|>", .header_end = "<|end_header_id|>\n\n", .end = "<|eot_id|>"};

const std::string kAsk =
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const std::string kAskLlama3 =
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{%- endif %}";
const std::string kDates =
    "{%- set date_string = \"26 Jul 2024\" %}{{- \"Cutting Knowledge Date: December 2023\\n\" }}"
    "{{- \"Today Date: \" + date_string + \"\\n\\n\" }} ipython " +
    kAskLlama3;

/// Not templates that work: what of them Troupe looks at.
const std::map<std::string, std::string> kStandIns = {
    {"qwen2_5",
     "{%- if no_system %}{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are "
     "a "
     "helpful assistant.<|im_end|>\\n' }}{%- endif %}{{ '\\n<tool_response>\\n' }}" +
         kAsk},
    {"qwen3",
     "{{ '<|im_start|>system\\n' + x + '<|im_end|>\\n' }}{% set last_query_index = 1 %}"
     "{{ content.split('</think>') }}{{ '\\n<tool_response>\\n' }}"
     "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
     "{%- if enable_thinking is defined and enable_thinking is false %}"
     "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"},
    {"qwen3_instruct_2507", "{{ '\\n<tool_response>\\n' }}" + kAsk},
    {"smollm2",
     "{% if loop.first %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
     "trained by Hugging Face<|im_end|>\n' }}{% endif %}" +
         kAsk},
    {"llama3", kAskLlama3},
    {"llama3_1", kDates},
    {"llama3_2", kDates}};

TEST(ReferenceChats, AreWrittenAsJinjaWritesThem) {
  const json cases = golden_text("chats.json");
  ASSERT_GT(cases.size(), 80U);
  for (const json& item : cases)
    expect_chat(item, kStandIns.at(item.at("template").get<std::string>()));
}

TEST(ReferenceChats, TakeASystemMessageOfTheOptionsBeforeTheTemplatesOwn) {
  const Tokenizer tokenizer = small_tokenizer("qwen", kStandIns.at("qwen2_5"));
  const std::vector<Message> messages = {{"user", "hi"}};
  const auto text_with = [&](ChatOptions options) {
    const auto chat = ChatTemplate::pick(tokenizer, std::move(options));
    EXPECT_TRUE(chat) << chat.error().message;
    return tokenizer.decode(chat->format(messages, true).value());
  };
  const std::string rest = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_THAT(text_with({}), HasSubstr("You are Qwen"));
  EXPECT_EQ(text_with({.default_system = ""}), rest);
  EXPECT_EQ(text_with({.default_system = "Be S."}), "<|im_start|>system\nBe S.<|im_end|>\n" + rest);
}

TEST(ReferenceChats, AskAModelThatAlwaysThinksForItsThought) {
  const Tokenizer tokenizer = small_tokenizer(
      "qwen3",
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}");
  const auto chat = ChatTemplate::pick(tokenizer);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(tokenizer.decode(chat->format(std::vector<Message>{{"user", "hi"}}, true).value()),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

TEST(ChatLayout, RefusesWhatItDoesNotUnderstand) {
  const auto refused = [](const std::string& jinja, const ChatMarks& marks) {
    const auto layout = read_chat_layout(jinja, marks);
    EXPECT_FALSE(layout) << jinja;
    if (layout) return std::string();
    EXPECT_EQ(layout.error().code, ErrorCode::kUnsupported);
    return layout.error().message;
  };
  EXPECT_THAT(refused("{{ 'Cutting Knowledge Date: May' }}", kLlama3), HasSubstr("Today Date"));
  EXPECT_THAT(refused("{% set date_string = now() %}{{ 'Cutting Knowledge Date: May' }}"
                      "{{ 'Today Date: ' + date_string + 'x' }}",
                      kLlama3),
              HasSubstr("date_string is not set to a text"));
  EXPECT_THAT(refused("{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if a %}"
                      "{{ '<think>\\n' }}{% endif %}{% endif %}",
                      kChatMl),
              HasSubstr("<think>"));
  const Tokenizer tokenizer = small_tokenizer("llama3", kDates);
  const auto chat = ChatTemplate::pick(tokenizer);
  ASSERT_TRUE(chat) << chat.error().message;
  const auto ids = chat->format(std::vector<Message>{{"user", "a"}, {"tool", "b"}}, true);
  ASSERT_FALSE(ids);
  EXPECT_THAT(ids.error().message, HasSubstr("message 1: role tool"));
  EXPECT_FALSE(ChatTemplate::pick(small_tokenizer("qwen", kStandIns.at("qwen2_5")),
                                  {.empty_think_block = true}));
  const Tokenizer dateless = small_tokenizer("llama3", kAskLlama3);
  EXPECT_FALSE(ChatTemplate::pick(dateless, {.date = "1 May 2025"}));
}

TEST(ChatLayout, FindsTheConstantPartsOfATemplate) {
  EXPECT_THAT(constant_parts("a{# 'no' #}b{{ 'c\\n' + x + \"d'\\t\" }}{%- if y == 'e' -%} f"),
              ElementsAre("a", "b", "c\n", "d'\t", "e", " f"));
  // Cut anywhere, it ends.
  for (const auto& [name, jinja] : kStandIns)
    for (std::size_t size = 0; size <= jinja.size(); ++size) {
      (void)constant_parts(jinja.substr(0, size));
      (void)read_chat_layout(jinja.substr(0, size), kChatMl);
      (void)read_chat_layout(jinja.substr(0, size), kLlama3);
    }
}

/// Blocks of a thousand characters: all but surrogates, private ones and empty planes.
std::vector<char32_t> character_blocks() {
  std::vector<char32_t> firsts;
  for (const auto& [begin, end] :
       {std::pair(0x0U, 0xD800U), std::pair(0xF800U, 0x32400U), std::pair(0xE0000U, 0xE0400U)})
    for (char32_t first = begin; first < end; first += 0x400) firsts.push_back(first);
  return firsts;
}

TEST(ReferenceCharacters, HaveTheIdsOfTheHuggingFaceLibraryEveryOne) {
  const json golden = golden_text("texts.json").at("characters");
  const std::vector<char32_t> blocks = character_blocks();
  for (const auto& [name, hashes] : golden.items()) {
    const Tokenizer tokenizer = small_tokenizer(name, "");
    ASSERT_EQ(hashes.size(), blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::uint64_t state = kHashStart;
      for (char32_t c = blocks[i]; c < blocks[i] + 0x400; ++c) {
        if (c >= 0xE000 && c < 0xF900) continue;
        std::string one;
        append_utf8(one, c);
        state = hash_of(tokenizer.encode(fmt::format("a{0} 1{0}{0}b\n{0}", one)), state);
      }
      EXPECT_EQ(hash_text(state), hashes[i].get<std::string>())
          << name << fmt::format(", U+{:04X} and on", static_cast<std::uint32_t>(blocks[i]));
    }
  }
}

class ReferenceTexts : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const auto folder = name == "stories260K" ? troupe::testing::stories_folder()
                                              : std::filesystem::path(TROUPE_SOURCE_DIR) /
                                                    "tests/actors/text/fixtures" / name;
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
    auto tokenizer = Tokenizer::load(folder);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    tokenizer_.emplace(std::move(*tokenizer));
    golden_ = golden_text("texts.json");
  }
  std::optional<Tokenizer> tokenizer_;
  json golden_;
};

TEST_P(ReferenceTexts, InManyScriptsHaveTheIdsOfTheHuggingFaceLibrary) {
  ASSERT_GT(golden_.at("texts").size(), 90U);
  expect_texts(*tokenizer_, golden_.at("tokenizers").at(GetParam()), golden_.at("texts"));
}

TEST_P(ReferenceTexts, OfGsm8kHaveTheIdsOfTheHuggingFaceLibrary) {
  if (!expect_gsm8k(*tokenizer_, golden_.at("tokenizers").at(GetParam())))
    GTEST_SKIP() << "GSM8K is not there";
}

INSTANTIATE_TEST_SUITE_P(Families, ReferenceTexts,
                         ::testing::Values("qwen", "llama3", "gpt2", "smollm", "metaspace",
                                           "stories260K"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace troupe::actors
