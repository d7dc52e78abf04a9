// Proves that numbers are read and compared exactly, in every form people and models write them.
// Oracles: tables of spellings of one value; field laws of the rationals; random digits of any
// length written in two ways.

#include "actors/reward/number.hpp"

#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

Rational ratio(std::int64_t numerator, std::int64_t denominator = 1) {
  return Rational::make(numerator, denominator).value();
}

TEST(Rational, IsReducedWithAPositiveDenominator) {
  EXPECT_EQ(ratio(6, -4).numerator(), -3);
  EXPECT_EQ(ratio(6, -4).denominator(), 2);
  EXPECT_EQ(ratio(0, -7), Rational{});
  EXPECT_FALSE(Rational::make(1, 0));
}

TEST(Rational, OverflowIsEmptyAndNeverWraps) {
  EXPECT_FALSE(add(ratio(kMax), ratio(1)));
  EXPECT_FALSE(subtract(ratio(-kMax), ratio(1)));
  EXPECT_FALSE(multiply(ratio(kMax), ratio(2)));
  EXPECT_FALSE(divide(ratio(1), ratio(0)));
  EXPECT_FALSE(Rational::make(kMin, 1)) << "its negation would not fit";
  EXPECT_EQ(Rational::make(kMin, 2)->numerator(), kMin / 2);
  EXPECT_FALSE(add(ratio(1, kMax), ratio(1, kMax - 1)));
  EXPECT_EQ(add(ratio(kMax, 2), ratio(kMax, 2)), ratio(kMax));
}

TEST(Rational, ObeysTheFieldLawsOnRandomValues) {
  Rng rng(11);
  for (int round = 0; round < 2000; ++round) {
    const auto draw = [&rng] {
      return ratio(static_cast<std::int64_t>(rng.below(2001)) - 1000, static_cast<std::int64_t>(rng.below(50)) + 1);
    };
    const Rational a = draw();
    const Rational b = draw();
    const Rational c = draw();
    EXPECT_EQ(*add(a, b), *add(b, a));
    EXPECT_EQ(*multiply(a, *add(b, c)), *add(*multiply(a, b), *multiply(a, c)));
    EXPECT_EQ(*subtract(*add(a, b), b), a);
    if (b.numerator() != 0) {
      EXPECT_EQ(*multiply(*divide(a, b), b), a);
    }
  }
}

TEST(ParseNumber, SpellingsOfOneValueAreEqual) {
  const std::vector<std::vector<std::string>> groups{
      {"1234.5", "1,234.50", "$1,234.5", "\\$1{,}234.5", "2469/2", "\\frac{2469}{2}", "1234 1/2", "1234\\frac{1}{2}",
       "+1234.5", " 1234.5. ", "1.2345e3", "12345E-1", "1\\,234.5", "1,\\!234.5"},
      {"-0.5", "-.5", "-1/2",
       "\xE2\x88\x92"
       "0.50",
       "-\\dfrac{1}{2}", "\\frac{-1}{2}", "\\frac{1}{-2}", "- 0.5", "-\\frac12", "-\\tfrac1{2}", "- 1/2"},
      {"50", "50%", "50\\%", "050", "50.00", "100/2",
       "\xE2\x82\xAC"
       "50",
       "50 %", "5e1", "$50"},
      {"0", "-0", "0.000", "0/7", "00", "-0.0"},
      {"1/3", "2/6", "\\frac{3}{9}", "\\frac 1 3"},
      {"-3.25", "-3 1/4", "-$3.25", "$-3.25", "-13/4", "-3\\frac{1}{4}"},
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto first = parse_number(groups[g][0]);
    ASSERT_TRUE(first) << groups[g][0];
    for (const std::string& text : groups[g]) {
      const auto number = parse_number(text);
      ASSERT_TRUE(number) << text;
      EXPECT_TRUE(*number == *first) << text << " against " << groups[g][0];
    }
    for (std::size_t other = 0; other < groups.size(); ++other) {
      if (other == g) continue;
      EXPECT_FALSE(*parse_number(groups[other][0]) == *first) << groups[other][0];
    }
  }
}

TEST(ParseNumber, RefusesWhatIsNotOneNumber) {
  for (const char* text : {"",           " ",   "-",    ".",     "$",     "1/0",       "1,2",
                           "12,34",      "1 2", "nan",  "NaN",   "inf",   "-infinity", "1e",
                           "1e999",      "x5",  "5x",   "1//2",  "1/2/3", "\\frac{1}", "\\frac{1}{0}",
                           "\\frac{}{}", "--5", "0x10", "1.2.3", "#",     "- - 5",     "- -5"})
    EXPECT_FALSE(parse_number(text)) << text;
}

TEST(ParseNumber, ComparesThousandsOfDigitsExactly) {
  Rng rng(5);
  for (const std::size_t length : {19U, 40U, 5000U}) {
    std::string digits(length, '0');
    for (char& c : digits) c = static_cast<char>('1' + rng.below(9));
    std::string other = digits;
    other.back() = other.back() == '9' ? '1' : '9';
    EXPECT_TRUE(*parse_number(digits) == *parse_number("000" + digits + ".000"));
    EXPECT_FALSE(*parse_number(digits) == *parse_number(other));
    EXPECT_TRUE(*parse_number(digits + "/7") == *parse_number("0" + digits + "/07"));
  }
}

TEST(LastNumber, FindsTheNumberThatASentenceEndsOn) {
  const std::vector<std::pair<std::string, std::string>> cases{{"She has 3 apples and 72.", "72"},
                                                               {"It costs $1,234.50 in total.", "1234.5"},
                                                               {"10-5", "5"},
                                                               {"so x = -5", "-5"},
                                                               {"(3)-4", "4"},
                                                               {"ranges 5-10", "10"},
                                                               {"1,2,3", "3"},
                                                               {"1,234,56", "56"},
                                                               {"about 3/4 of it", "3/4"},
                                                               {"on 5/6/2020", "2020"},
                                                               {"half is 2 1/2 cups", "5/2"},
                                                               {"<<48/2=24>>24 clips", "24"},
                                                               {"it grew 50% more", "50"},
                                                               {"ends in 7,", "7"},
                                                               {"v1.2.3", "3"},
                                                               {"minus \xE2\x88\x92"
                                                                "8 degrees",
                                                                "-8"},
                                                               {"is \\frac{3}{4} m", "3/4"},
                                                               {"12345,678", "678"}};
  for (const auto& [text, wanted] : cases) {
    const auto found = last_number(text);
    ASSERT_TRUE(found) << text;
    EXPECT_TRUE(found->number == *parse_number(wanted))
        << text << " gave " << text.substr(found->begin, found->end - found->begin);
  }
  EXPECT_FALSE(last_number("no digits, just NaN and inf"));
  EXPECT_TRUE(first_number("from 3 to 9")->number == *parse_number("3"));
}

}  // namespace
}  // namespace troupe::actors
