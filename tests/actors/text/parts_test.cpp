// Proves the parts below the tokenizer against slow, obvious versions: BPE merging against a scan
// for the best pair, the byte alphabet, splits, normal forms, white space and strict JSON.

#include "actors/text/bpe.hpp"
#include "actors/text/byte_level.hpp"
#include "actors/text/normalizer.hpp"
#include "actors/text/pre_tokenizer.hpp"
#include "actors/text/strict_json.hpp"
#include "actors/text/utf8.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

/// Scan for the lowest rank, leftmost, merge, again.
Ids merge_slowly(const std::map<std::pair<int, int>, std::pair<int, int>>& merges, Ids symbols) {
  while (true) {
    std::size_t best = symbols.size();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = merges.find({symbols[i], symbols[i + 1]});
      if (found == merges.end()) continue;
      if (best == symbols.size() ||
          found->second.first < merges.at({symbols[best], symbols[best + 1]}).first)
        best = i;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = merges.at({symbols[best], symbols[best + 1]}).second;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, MergesLikeASlowScan) {
  Rng rng(2);
  for (int round = 0; round < 400; ++round) {
    std::map<std::pair<int, int>, std::pair<int, int>> slow;
    MergeTable fast;
    int next_id = 4;
    for (int rank = 0; rank < 12; ++rank) {
      const auto left = static_cast<int>(rng.below(static_cast<std::uint64_t>(next_id)));
      const auto right = static_cast<int>(rng.below(static_cast<std::uint64_t>(next_id)));
      slow[{left, right}] = {rank, next_id};
      fast.add(left, right, {rank, next_id});
      ++next_id;
    }
    EXPECT_EQ(fast.size(), slow.size());
    Ids symbols;
    for (std::uint64_t i = rng.below(40); i > 0; --i)
      symbols.push_back(static_cast<int>(rng.below(4)));
    BpeScratch scratch;
    scratch.symbols = symbols;
    merge_symbols(fast, {}, scratch);
    EXPECT_EQ(scratch.symbols, merge_slowly(slow, symbols)) << "seed 2, round " << round;
  }
}

TEST(Bpe, NeverMakesBarredIds) {
  MergeTable merges;
  merges.add(0, 1, {0, 2});
  merges.add(1, 0, {1, 3});
  BpeScratch scratch;
  scratch.symbols = {0, 1, 0, 1};
  merge_symbols(merges, {false, false, true, false}, scratch);
  EXPECT_THAT(scratch.symbols, ElementsAre(0, 3, 1));
}

TEST(Bpe, KeepsThousandsOfMergesApart) {
  MergeTable merges;
  for (int i = 0; i < 5000; ++i) merges.add(i, 7 * i % 501, {i, i + 10000});
  for (int i = 0; i < 5000; ++i) {
    ASSERT_NE(merges.find(i, 7 * i % 501), nullptr);
    EXPECT_EQ(merges.find(i, 7 * i % 501)->rank, i);
    EXPECT_EQ(merges.find(i, 7 * i % 501 + 501), nullptr);
  }
}

TEST(ByteLevel, MapsBytesToDistinctCharactersAndBack) {
  std::set<char32_t> seen;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    seen.insert(byte_level_character(static_cast<unsigned char>(byte)));
    EXPECT_EQ(from_byte_level(to_byte_level(one)), one);
  }
  EXPECT_EQ(seen.size(), 256U);
  EXPECT_EQ(to_byte_level(" a\n\xff\xad"), "ĠaĊÿŃ");
  EXPECT_EQ(from_byte_level("a b"), std::nullopt);  // a space is not in the alphabet
  EXPECT_EQ(from_byte_level("世"), std::nullopt);
}

std::vector<std::string> split(SplitBehavior behavior, bool invert, std::string_view text) {
  PreTokenizer tokenizer;
  tokenizer.add(SplitStep{std::move(*Pattern::compile("-")), behavior, invert});
  PieceList list;
  tokenizer.apply(text, true, list);
  std::vector<std::string> pieces;
  for (const auto& piece : list.pieces) pieces.emplace_back(piece.text);
  return pieces;
}

TEST(PreTokenizer, TreatsMatchesAsTheBehaviorSays) {
  // The documented example of the Hugging Face library.
  const char* text = "the-final--countdown";
  EXPECT_THAT(split(SplitBehavior::kRemoved, false, text),
              ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(split(SplitBehavior::kIsolated, false, text),
              ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(split(SplitBehavior::kMergedWithPrevious, false, text),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(split(SplitBehavior::kMergedWithNext, false, text),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(split(SplitBehavior::kContiguous, false, text),
              ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(split(SplitBehavior::kRemoved, true, text), ElementsAre("-", "-", "-"));
  EXPECT_THAT(split(SplitBehavior::kIsolated, false, ""), ElementsAre());
}

TEST(Pattern, LeavesOutEmptyMatchesAndReportsBadExpressions) {
  std::vector<TextRange> matches;
  Pattern::compile("x*")->find_all("axxéx", matches);
  EXPECT_THAT(matches, ElementsAre(TextRange{1, 3}, TextRange{5, 6}));
  // White space is Unicode's: without U+180E, inside classes, too.
  for (const auto& [expression, count] : std::map<std::string, std::size_t>{{R"(\s)", 3},
                                                                            {R"(\S)", 3},
                                                                            {R"([^\sa])", 2},
                                                                            {R"([]\s])", 4},
                                                                            {R"([[:alpha:]\s])", 4},
                                                                            {R"(\\s)", 0},
                                                                            {R"(\[\s|a)", 1}}) {
    Pattern::compile(expression)->find_all("a]\xe1\xa0\x8e \t\xe2\x80\xa8", matches);
    EXPECT_EQ(matches.size(), count) << expression;
  }
  const auto bad = Pattern::compile("[a");
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message, HasSubstr("[a"));
}

TEST(Pattern, GivesUpOnExpressionsThatExplode) {
  std::vector<TextRange> matches;
  const auto pattern = Pattern::compile("(a+)+$");
  EXPECT_THROW(pattern->find_all(std::string(60, 'a') + "b", matches), CheckFailure);
}

TEST(Normalizer, ComposesAndReplaces) {
  Normalizer normalizer;
  EXPECT_TRUE(normalizer.is_identity());
  normalizer.add(UnicodeForm::kNfc);
  EXPECT_EQ(normalizer.apply("e\u0301 \u1112\u1161\u11ab"), "é 한");
  normalizer.add(PrependStep{"_"});
  normalizer.add(ReplaceStep{std::string(" "), "_"});
  normalizer.add(ReplaceStep{std::move(*Pattern::compile("[0-9]+")), "#"});
  EXPECT_EQ(normalizer.apply("a 12 3"), "_a_#_#");
  EXPECT_EQ(normalizer.apply(""), "");
}

TEST(Utf8, StripsWhiteSpaceAtBothEnds) {
  EXPECT_EQ(strip_white_space(" \n\u3000a b\u00a0\t"), "a b");
  EXPECT_EQ(strip_white_space(" \r\n"), "");
  EXPECT_EQ(strip_white_space(""), "");
  EXPECT_EQ(strip_white_space("é"), "é");
}

TEST(StrictJson, RefusesRepeatedKeysDeepNestingAndRubbish) {
  const auto message = [](std::string_view text) {
    const auto parsed = parse_strict_json(text, "here");
    EXPECT_FALSE(parsed) << text;
    return parsed ? std::string() : parsed.error().message;
  };
  EXPECT_THAT(message(R"({"a": 1, "b": {"c": 1, "c": 2}})"),
              HasSubstr("here: key \"c\" appears twice"));
  EXPECT_THAT(message(std::string(100000, '[')), HasSubstr("deeper than 64"));
  EXPECT_THAT(message(std::string(70, '[') + std::string(70, ']')), HasSubstr("deeper"));
  EXPECT_THAT(message("{} x"), HasSubstr("here: not valid JSON"));
  EXPECT_THAT(message("\"\xff\""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("[1e999]"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message(""), HasSubstr("not valid JSON"));
}

TEST(StrictJson, ReadsWhatTheLibraryReads) {
  for (const char* text :
       {"null", "[]", R"({"a": [1, -2, 3.5, "x", {"b": [[], {}]}, true, null]})", " 7 "}) {
    const auto parsed = parse_strict_json(text, "here");
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(*parsed, nlohmann::json::parse(text));
  }
  EXPECT_TRUE(parse_strict_json(std::string(64, '[') + std::string(64, ']'), "here"));
}

}  // namespace
}  // namespace troupe::actors
