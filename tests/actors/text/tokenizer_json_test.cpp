// Proves that a tokenizer.json which is broken, or uses what is not implemented, is one error that
// names the place; each case changes one thing in a small valid file.

#include "actors/text/tokenizer.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace troupe::actors {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

/// Letters a, b, c and a space; merges ab, then abc.
json small_file() {
  return json::parse(R"({
    "added_tokens": [{"id": 6, "content": "<|end|>", "special": true, "normalized": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "abc": 5},
              "merges": ["a b", ["ab", "c"]]}})");
}

Tokenizer tokenizer_of(const json& file) {
  auto tokenizer = Tokenizer::from_json(file.dump());
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return std::move(*tokenizer);
}

TEST(TokenizerJson, ReadsMergesAsTextAndAsPairs) {
  const Tokenizer tokenizer = tokenizer_of(small_file());
  EXPECT_EQ(tokenizer.encode("abcab a"), (Ids{5, 4, 3, 0}));
  EXPECT_EQ(tokenizer.vocab_size(), 7);
}

TEST(TokenizerJson, DropsBytesWithoutATokenUnlessThereIsAnUnknownToken) {
  json file = small_file();
  EXPECT_EQ(tokenizer_of(file).encode("aXYb"), (Ids{4}));  // as the Hugging Face library does
  file["model"]["unk_token"] = "<|end|>";
  EXPECT_EQ(tokenizer_of(file).encode("aXYb"), (Ids{0, 6, 6, 1}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(tokenizer_of(file).encode("aXYbZ"), (Ids{0, 6, 1, 6}));
}

TEST(TokenizerJson, TakesAWholePieceAtOnceOnlyWhenTold) {
  json file = small_file();
  file["model"]["vocab"]["cab"] = 7;
  EXPECT_EQ(tokenizer_of(file).encode("cab"), (Ids{2, 4}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(file).encode("cab"), (Ids{7}));
}

TEST(TokenizerJson, CannotBeTrickedIntoASpecialIdByMerges) {
  json file = small_file();
  file["added_tokens"].push_back({{"id", 5}, {"content", "abc"}, {"special", true}});
  EXPECT_EQ(tokenizer_of(file).encode("abc"), (Ids{4, 2}));
  EXPECT_EQ(tokenizer_of(file).encode("abc", {.trusted = true}), (Ids{5}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(file).encode("abc"), (Ids{4, 2}));
}

TEST(TokenizerJson, TakesTheLongestAddedTokenAtTheLeftmostPlace) {
  json file = small_file();
  for (const auto& [content, id] : {std::pair("<a>", 7), std::pair("<a>b", 8), std::pair("a><", 9)})
    file["added_tokens"].push_back(
        {{"id", id}, {"content", content}, {"special", true}, {"normalized", false}});
  EXPECT_EQ(tokenizer_of(file).encode("<a>b<a><a", {.trusted = true}), (Ids{8, 7, 0}));
}

TEST(TokenizerJson, AppliesTemplatesOfThePostProcessor) {
  json file = small_file();
  file["post_processor"] = json::parse(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "two", "type_id": 0}}],
     "special_tokens": {"<|end|>": {"ids": [6]}, "two": {"ids": [0, 1]}}}]})");
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.encode("c", {.add_special = true}), (Ids{6, 2, 0, 1}));
  EXPECT_EQ(tokenizer.encode("", {.add_special = true}), (Ids{6, 0, 1}));
  EXPECT_EQ(tokenizer.encode("c"), (Ids{2}));
}

struct Change {
  const char* name;
  const char* patch;  // RFC 6902 JSON patch on small_file()
  ErrorCode code;
  const char* says;
};

class BrokenTokenizer : public ::testing::TestWithParam<Change> {};

TEST_P(BrokenTokenizer, IsOneErrorThatNamesThePlace) {
  const json file = small_file().patch(json::parse(GetParam().patch));
  const auto tokenizer = Tokenizer::from_json(file.dump());
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, GetParam().code) << tokenizer.error().message;
  EXPECT_THAT(tokenizer.error().message, HasSubstr("tokenizer.json"));
  EXPECT_THAT(tokenizer.error().message, HasSubstr(GetParam().says));
}

constexpr auto kBad = ErrorCode::kCorrupt;
constexpr auto kNo = ErrorCode::kUnsupported;
INSTANTIATE_TEST_SUITE_P(
    Kinds, BrokenTokenizer,
    ::testing::Values(
        Change{"model_missing", R"([{"op":"remove","path":"/model"}])", kBad, "model is missing"},
        Change{"model_kind", R"([{"op":"add","path":"/model/type","value":"Unigram"}])", kNo,
               "Unigram"},
        Change{"model_no_object", R"([{"op":"add","path":"/model","value":[]}])", kBad, "model"},
        Change{"vocab_list", R"([{"op":"add","path":"/model/vocab","value":["a"]}])", kBad,
               "vocab"},
        Change{"vocab_id_text", R"([{"op":"add","path":"/model/vocab/a","value":"0"}])", kBad,
               "token a has id \"0\""},
        Change{"vocab_id_negative", R"([{"op":"add","path":"/model/vocab/a","value":-1}])", kBad,
               "-1"},
        Change{"vocab_id_huge", R"([{"op":"add","path":"/model/vocab/a","value":2147483647}])",
               kBad, "2147483647"},
        Change{"vocab_id_twice", R"([{"op":"add","path":"/model/vocab/a","value":1}])", kBad,
               "both have id 1"},
        Change{"merge_one_word", R"([{"op":"add","path":"/model/merges/0","value":"ab"}])", kBad,
               "item 0"},
        Change{"merge_three_words", R"([{"op":"add","path":"/model/merges/0","value":"a b c"}])",
               kBad, "item 0"},
        Change{"merge_number", R"([{"op":"add","path":"/model/merges/0","value":3}])", kBad,
               "item 0"},
        Change{"merge_long_pair",
               R"([{"op":"add","path":"/model/merges/0","value":["a","b","c"]}])", kBad, "item 0"},
        Change{"merge_unknown", R"([{"op":"add","path":"/model/merges/0","value":"a c"}])", kBad,
               "ac"},
        Change{"merges_missing", R"([{"op":"remove","path":"/model/merges"}])", kBad, "merges"},
        Change{"unk_unknown", R"([{"op":"add","path":"/model/unk_token","value":"<u>"}])", kBad,
               "<u>"},
        Change{"dropout", R"([{"op":"add","path":"/model/dropout","value":0.1}])", kNo, "dropout"},
        Change{"prefix", R"([{"op":"add","path":"/model/continuing_subword_prefix","value":"##"}])",
               kNo, "##"},
        Change{"suffix", R"([{"op":"add","path":"/model/end_of_word_suffix","value":"</w>"}])", kNo,
               "</w>"},
        Change{"flag_text", R"([{"op":"add","path":"/model/ignore_merges","value":"yes"}])", kBad,
               "ignore_merges"},
        Change{"added_id_missing", R"([{"op":"remove","path":"/added_tokens/0/id"}])", kBad,
               "added_tokens 0"},
        Change{"added_id_taken", R"([{"op":"add","path":"/added_tokens/0/id","value":5}])", kBad,
               "abc"},
        Change{"added_id_differs",
               R"([{"op":"add","path":"/added_tokens/0/content","value":"abc"}])", kBad, "5"},
        Change{"added_huge", R"([{"op":"add","path":"/added_tokens/0/id","value":99999999999}])",
               kBad, "id"},
        Change{"normalizer_kind",
               R"([{"op":"add","path":"/normalizer","value":{"type":"Lowercase"}}])", kNo,
               "Lowercase"},
        Change{"normalizer_text", R"([{"op":"add","path":"/normalizer","value":"NFC"}])", kBad,
               "normalizer"},
        Change{"split_kind",
               R"([{"op":"add","path":"/pre_tokenizer","value":{"type":"BertPreTokenizer"}}])", kNo,
               "BertPreTokenizer"},
        Change{"split_none", R"([{"op":"add","path":"/pre_tokenizer","value":null}])", kNo,
               "ByteLevel"},
        Change{"split_pattern",
               R"([{"op":"add","path":"/pre_tokenizer","value":{"type":"Sequence","pretokenizers":[
                   {"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"}]}}])",
               kNo, "(a"},
        Change{"split_behavior",
               R"([{"op":"add","path":"/pre_tokenizer","value":{"type":"Sequence","pretokenizers":[
                   {"type":"Split","pattern":{"Regex":"a"},"behavior":"Sideways"}]}}])",
               kNo, "Sideways"},
        Change{"split_after_bytes",
               R"([{"op":"add","path":"/pre_tokenizer","value":{"type":"Sequence","pretokenizers":[
                   {"type":"ByteLevel"},{"type":"Digits"}]}}])",
               kNo, "after ByteLevel"},
        Change{"decoder_none", R"([{"op":"add","path":"/decoder","value":null}])", kNo, "decoder"},
        Change{"decoder_kind", R"([{"op":"add","path":"/decoder","value":{"type":"WordPiece"}}])",
               kNo, "WordPiece"},
        Change{"post_kind",
               R"([{"op":"add","path":"/post_processor","value":{"type":"BertProcessing"}}])", kNo,
               "BertProcessing"},
        Change{
            "post_id",
            R"([{"op":"add","path":"/post_processor","value":{"type":"TemplateProcessing","single":[
                   {"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[70]}}}}])",
            kBad, "id 70"},
        Change{
            "post_unlisted",
            R"([{"op":"add","path":"/post_processor","value":{"type":"TemplateProcessing","single":[
                   {"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{}}}])",
            kBad, "x"},
        Change{
            "post_no_text",
            R"([{"op":"add","path":"/post_processor","value":{"type":"TemplateProcessing","single":[]}}])",
            kNo, "sequence A"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(TokenizerJson, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "[]", "nul", "{\"model\": {}, \"model\": {}}", "\xff\xfe"}) {
    const auto tokenizer = Tokenizer::from_json(text, {}, "some.json");
    ASSERT_FALSE(tokenizer) << text;
    EXPECT_EQ(tokenizer.error().code, ErrorCode::kCorrupt) << text;
    EXPECT_THAT(tokenizer.error().message, HasSubstr("some.json"));
  }
}

TEST(TokenizerJson, RefusesANamedTokenThatIsNotInTheVocabulary) {
  const auto tokenizer = Tokenizer::from_json(small_file().dump(), R"({"pad_token": "[PAD]"})");
  ASSERT_FALSE(tokenizer);
  EXPECT_THAT(tokenizer.error().message, HasSubstr("pad_token [PAD]"));
}

TEST(TokenizerJson, NamesAMissingFolder) {
  const troupe::testing::TemporaryFolder folder;
  const auto tokenizer = Tokenizer::load(folder / "nowhere");
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(tokenizer.error().message, HasSubstr("nowhere/tokenizer.json"));
}

}  // namespace
}  // namespace troupe::actors
