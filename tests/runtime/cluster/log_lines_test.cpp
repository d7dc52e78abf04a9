// Proves that LogLines turns any bytes into printable lines of bounded length and rate: against a
// slow reference for how bytes are split, however they are cut into pieces (seeds are printed), and
// by example for escapes, repeats, drops and the ring.

#include "runtime/cluster/log_lines.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace troupe::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

constexpr TimePoint kStart{std::chrono::hours(1)};

/// Nothing is thinned.
LogLimits wide() {
  LogLimits limits;
  limits.lines_per_second = 1'000'000;
  limits.bytes_per_second = 1 << 30;
  return limits;
}

Lines fed(LogLines& lines, std::string_view bytes, TimePoint now = kStart) {
  Lines out;
  lines.feed(0, bytes, now, out);
  return out;
}

TEST(LogLines, SplitAtEveryKindOfLineEnd) {
  LogLines lines(wide());
  EXPECT_THAT(fed(lines, "one\ntwo\r\nthree\rfour"), ElementsAre("one", "two", "three"));
  EXPECT_THAT(fed(lines, " and more\r"), ElementsAre("four and more"));
  EXPECT_THAT(fed(lines, "\nfive\n"), ElementsAre("five")) << "the pair was cut in two";
  EXPECT_THAT(fed(lines, "\n"), ElementsAre(""));
}

TEST(LogLines, StreamsDoNotMix) {
  LogLines lines(wide());
  Lines out;
  lines.feed(0, "out ", kStart, out);
  lines.feed(1, "error\n", kStart, out);
  lines.feed(0, "goes on\n", kStart, out);
  EXPECT_THAT(out, ElementsAre("error", "out goes on"));
}

TEST(LogLines, EscapeWhatATerminalMustNotSee) {
  EXPECT_EQ(escape_line("tab\tand caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "tab\tand caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(escape_line(std::string_view("\x1b[31m\0\x7f", 7)), "\\x1b[31m\\x00\\x7f");
  EXPECT_EQ(escape_line("\xff\xfe ok"), "\\xff\\xfe ok");
  EXPECT_EQ(escape_line("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(escape_line("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "surrogate";
  EXPECT_EQ(escape_line("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80") << "above U+10FFFF";
  EXPECT_EQ(escape_line("\xe2\x82"), "\\xe2\\x82") << "cut short";
  EXPECT_EQ(escape_line("\xc2\x9b"
                        "31m"),
            "\\xc2\\x9b"
            "31m")
      << "a control in two bytes";
}

TEST(LogLines, LongLinesAreCutWithAMark) {
  LogLimits limits = wide();
  limits.line_bytes_max = 10;
  LogLines lines(limits);
  EXPECT_THAT(fed(lines, "0123456789"), IsEmpty());
  EXPECT_THAT(fed(lines, std::string(1'000'000, 'x')), IsEmpty());
  EXPECT_THAT(fed(lines, "\nnext\n"), ElementsAre("0123456789 … (1000000 bytes cut)", "next"));
}

TEST(LogLines, PartialLinesComeOutAfterAWhile) {
  LogLines lines(wide());
  EXPECT_THAT(fed(lines, "Password: "), IsEmpty());
  EXPECT_EQ(lines.next_tick(), kStart + 250ms);
  Lines out;
  lines.tick(kStart + 249ms, out);
  EXPECT_THAT(out, IsEmpty());
  lines.tick(kStart + 250ms, out);
  EXPECT_THAT(out, ElementsAre("Password: "));
  EXPECT_EQ(lines.next_tick(), TimePoint::max());
}

TEST(LogLines, RepeatsAreCounted) {
  LogLines lines(wide());
  Lines out = fed(lines, "warn\nwarn\nwarn\n");
  EXPECT_THAT(out, ElementsAre("warn"));
  EXPECT_EQ(lines.next_tick(), kStart + 5s);
  EXPECT_THAT(fed(lines, "other\n"), ElementsAre("repeated 2×", "other"));
  fed(lines, "other\n");
  out.clear();
  lines.tick(kStart + 5s, out);
  EXPECT_THAT(out, ElementsAre("repeated 1×"));
  EXPECT_THAT(fed(lines, "other\nend\n"), ElementsAre("repeated 1×", "end"));
}

TEST(LogLines, FloodsAreThinnedToTheRateAndCounted) {
  LogLimits limits;
  limits.lines_per_second = 100;
  limits.burst_seconds = 1.0;
  LogLines lines(limits);
  std::size_t forwarded = 0;
  for (int tenth = 0; tenth < 100; ++tenth) {
    std::string block;
    for (int i = 0; i < 1000; ++i) block += "line " + std::to_string(tenth * 1000 + i) + "\n";
    for (const std::string& line : fed(lines, block, kStart + tenth * 100ms))
      forwarded += line.starts_with("line");
  }
  EXPECT_GE(forwarded, 1000U);
  EXPECT_LE(forwarded, 1100U) << "100 a second for 10 s and a burst of 100";
  EXPECT_EQ(lines.lines_dropped() + forwarded, 100'000U);
  Lines out;
  lines.finish(kStart + 11s, out);
  EXPECT_THAT(out, ElementsAre(HasSubstr("dropped ")));
  EXPECT_EQ(lines.last_lines().size(), 50U);
  EXPECT_EQ(lines.last_lines().back(), "line 99999") << "the ring has what was not forwarded";
}

TEST(LogLines, TheRingKeepsTheLastLinesInOrder) {
  LogLimits limits = wide();
  limits.ring_lines = 3;
  LogLines lines(limits);
  fed(lines, "a\n");
  EXPECT_THAT(lines.last_lines(), ElementsAre("a"));
  fed(lines, "b\nb\nc\nd\n");
  EXPECT_THAT(lines.last_lines(), ElementsAre("b", "c", "d"));
}

TEST(LogLines, FinishLetsEverythingOut) {
  LogLines lines(wide());
  fed(lines, "x\nx\npart");
  Lines out;
  lines.finish(kStart, out);
  EXPECT_THAT(out, ElementsAre("repeated 1×", "part"));
}

/// Byte by byte, with the state written out: a line ends at `\n` or `\r`, but a `\n` right after a
/// `\r` is its second half.
Lines slow_split(std::string_view bytes) {
  Lines lines;
  std::string line;
  bool after_return = false;
  for (const char c : bytes) {
    if (c == '\n' && after_return) {
      after_return = false;
      continue;
    }
    after_return = c == '\r';
    if (c == '\n' || c == '\r') {
      lines.push_back(escape_line(line));
      line.clear();
    } else {
      line += c;
    }
  }
  if (!line.empty()) lines.push_back(escape_line(line));
  return lines;
}

TEST(LogLines, SplitAsTheSlowReferenceHoweverTheBytesAreCut) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::string bytes;
    const char alphabet[] = {'a', 'b', '\n', '\r', '\xc3', '\xa9', '\0', '\x1b'};
    for (int i = 0; i < 400; ++i) bytes += alphabet[rng.below(sizeof alphabet)];
    LogLines lines(wide());
    Lines out;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t size = std::min<std::size_t>(1 + rng.below(7), bytes.size() - at);
      lines.feed(0, std::string_view(bytes).substr(at, size), kStart, out);
      at += size;
    }
    lines.finish(kStart, out);
    // The reference does not count repeats: expand them.
    Lines expanded;
    for (const std::string& line : out) {
      if (!line.starts_with("repeated ")) {
        expanded.push_back(line);
        continue;
      }
      const std::string again = expanded.back();
      for (int count = std::stoi(line.substr(9)); count > 0; --count) expanded.push_back(again);
    }
    EXPECT_EQ(expanded, slow_split(bytes));
  }
}

TEST(LogLines, ALineWithManyEndsOfOneKindIsFast) {
  LogLines lines;
  std::string returns(1 << 20, '\r');
  std::string breaks;
  for (int i = 0; i < (1 << 17); ++i) breaks += "1234567\n";
  const auto before = std::chrono::steady_clock::now();
  fed(lines, returns);
  fed(lines, breaks);
  const auto took = std::chrono::steady_clock::now() - before;
  EXPECT_LT(took, 5s) << "quadratic: half a terabyte to look through";
}

}  // namespace
}  // namespace troupe::runtime
