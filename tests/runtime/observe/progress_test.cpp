// Proves that the progress line fits its width, says what matters first, and is plain lines where
// there is no terminal.

#include "runtime/observe/progress.hpp"

#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace troupe::runtime {
namespace {

int characters(const std::string& text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return time; }
  TimePoint time{};
};

/// What a ProgressLine wrote.
class Capture {
 public:
  Capture() : file_(std::tmpfile()) {}
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() { std::fclose(file_); }
  std::FILE* file() { return file_; }
  std::string text() {
    std::rewind(file_);
    std::string all(10000, '\0');
    all.resize(std::fread(all.data(), 1, all.size(), file_));
    return all;
  }

 private:
  std::FILE* file_;
};

ProgressReport report(std::int64_t step) {
  return {.label = "grpo",
          .step = step,
          .steps_total = 40,
          .reward = 0.8125,
          .response_length = 123.4,
          .tokens_per_second = 15234,
          .loss = {},
          .note = "val 0.90"};
}

TEST(ProgressText, NeverExceedsItsWidthWhateverTheValues) {
  Rng rng(1);
  const double odd[] = {0,
                        -1,
                        1e300,
                        std::numeric_limits<double>::quiet_NaN(),
                        -std::numeric_limits<double>::infinity(),
                        0.5,
                        12345.6};
  for (int i = 0; i < 2000; ++i) {
    ProgressReport r = report(static_cast<std::int64_t>(rng.next() >> rng.below(64)));
    r.reward = odd[rng.below(7)];
    r.response_length = odd[rng.below(7)];
    r.tokens_per_second = odd[rng.below(7)];
    r.loss = odd[rng.below(7)];
    r.note = rng.below(2) == 0 ? "日本語 \xff\n" : std::string(rng.below(100), 'x');
    const int columns = static_cast<int>(rng.below(120));
    const std::string text = progress_text(r, std::chrono::seconds(100), columns);
    EXPECT_LE(characters(text), columns) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

TEST(ProgressText, DropsTheLeastImportantFirst) {
  EXPECT_EQ(progress_text(report(7), std::chrono::seconds(125), 200),
            "grpo 7/40  reward 0.812  val 0.90  2 m 05 s left  length 123  15.2k tok/s");
  EXPECT_EQ(progress_text(report(7), std::chrono::seconds(125), 30), "grpo 7/40  reward 0.812");
  EXPECT_EQ(progress_text(report(7), {}, 5), "grpo…");
  EXPECT_EQ(progress_text({.label = "sft", .step = 3}, {}, 80), "sft 3");
}

TEST(ProgressText, DurationsAndCuts) {
  EXPECT_EQ(duration_text(std::chrono::seconds(59)), "59 s");
  EXPECT_EQ(duration_text(std::chrono::seconds(3599)), "59 m 59 s");
  EXPECT_EQ(duration_text(std::chrono::seconds(3600)), "1 h 00 m");
  EXPECT_EQ(duration_text(std::chrono::hours(100)), "4 d 04 h");
  EXPECT_EQ(duration_text(std::chrono::seconds(-5)), "0 s");
  EXPECT_EQ(fitted("日本語", 3), "日本語");
  EXPECT_EQ(fitted("日本語x", 3), "日本…");
  EXPECT_EQ(fitted("a\x1b[31mb", 80), "a [31mb");
  EXPECT_EQ(fitted("abc", 0), "");
}

TEST(ProgressLine, WritesPlainLinesWithoutATerminal) {
  ManualClock clock;
  Capture capture;
  EXPECT_FALSE(ProgressLine::options_for(capture.file()).live);
  {
    ProgressLine line(capture.file(), {.live = false, .columns = 200}, clock);
    for (std::int64_t step = 1; step <= 3; ++step) {
      clock.time += std::chrono::seconds(2);
      line.update({.label = "grpo", .step = step, .steps_total = 10});
    }
    line.say("saved\ncheckpoint");
  }
  EXPECT_EQ(capture.text(),
            "grpo 1/10\ngrpo 2/10  16 s left\ngrpo 3/10  14 s left\nsaved checkpoint\n");
}

TEST(ProgressLine, RewritesInPlaceOnATerminalAndEndsTheLine) {
  ManualClock clock;
  Capture capture;
  {
    ProgressLine line(capture.file(), {.live = true, .columns = 20}, clock);
    line.update({.label = "grpo", .step = 1, .steps_total = 0});
    line.say("hello");
    line.update({.label = "grpo", .step = 1, .steps_total = 0, .note = std::string(50, 'x')});
    line.finish();
  }
  EXPECT_EQ(capture.text(), "\r\x1b[2Kgrpo 1\r\x1b[2Khello\ngrpo 1\r\x1b[2Kgrpo 1\n");
}

}  // namespace
}  // namespace troupe::runtime
