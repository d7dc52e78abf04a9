// Proves that LogForwarder hands batches per job to its sink, keeps them while the sink refuses,
// stays within its bounds under a flood of 100 MB/s from a real process, and loses no count.

#include "runtime/cluster/log_forwarder.hpp"

#include "runtime/cluster/log_printer.hpp"
#include "tests/runtime/cluster/process_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <map>
#include <mutex>

namespace troupe::runtime {
namespace {

using testing::becomes_true;
using testing::child;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ProcessWatch;
using namespace std::chrono_literals;

class SinkOfTests {
 public:
  LogForwarder::Sink sink() {
    return [this](const std::string& job, const LogBatch& batch) {
      const std::lock_guard lock(mutex_);
      if (refusing_) return false;
      text_[job] += to_text(batch);
      dropped_ += batch.lines_dropped;
      largest_ = std::max(largest_, to_text(batch).size());
      return true;
    };
  }
  void refuse(bool yes) {
    const std::lock_guard lock(mutex_);
    refusing_ = yes;
  }
  std::string text(const std::string& job) {
    const std::lock_guard lock(mutex_);
    return text_[job];
  }
  std::uint64_t dropped() {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }
  std::size_t largest() {
    const std::lock_guard lock(mutex_);
    return largest_;
  }

 private:
  std::mutex mutex_;
  bool refusing_ = false;
  std::map<std::string, std::string> text_;
  std::uint64_t dropped_ = 0;
  std::size_t largest_ = 0;
};

LogForwarderOptions options() {
  LogForwarderOptions options;
  options.node = "gpu-1";
  options.flush_every = 10ms;
  return options;
}

TEST(LogForwarder, GathersByJobAndNamesTheRank) {
  SinkOfTests sink;
  LogForwarder forwarder(options(), sink.sink());
  const auto a = forwarder.open("one", "policy", RankId{3});
  const auto b = forwarder.open("two", "rollout", RankId{0});
  forwarder.feed(a, 0, "hello\n");
  forwarder.feed(b, 1, "oh\npart");
  EXPECT_TRUE(becomes_true(
      [&] { return sink.text("two") == "[gpu-1 rollout/0] oh\n[gpu-1 rollout/0] part\n"; }));
  EXPECT_EQ(sink.text("one"), "[gpu-1 policy/3] hello\n");
  EXPECT_THAT(forwarder.last_lines(b), ElementsAre("oh", "part"));
  EXPECT_THAT(forwarder.close(b), ElementsAre("oh", "part"));
}

TEST(LogForwarder, CloseGivesTheLastWordsBeforeItReturns) {
  SinkOfTests sink;
  auto slow = options();
  slow.flush_every = 1h;
  LogForwarder forwarder(slow, sink.sink());
  const auto id = forwarder.open("job", "g", RankId{0});
  forwarder.feed(id, 0, "last words");
  forwarder.close(id);
  EXPECT_EQ(sink.text("job"), "[gpu-1 g/0] last words\n");
  forwarder.feed(id, 0, "too late\n");
  EXPECT_TRUE(forwarder.close(id).empty());
}

TEST(LogForwarder, KeepsLinesInOrderWhileTheSinkRefuses) {
  SinkOfTests sink;
  LogForwarder forwarder(options(), sink.sink());
  const auto id = forwarder.open("job", "g", RankId{0});
  sink.refuse(true);
  std::string wanted;
  for (int i = 0; i < 100; ++i) {
    forwarder.feed(id, 0, "line " + std::to_string(i) + "\n");
    wanted += "[gpu-1 g/0] line " + std::to_string(i) + "\n";
    if (i % 25 == 0) std::this_thread::sleep_for(15ms);
  }
  sink.refuse(false);
  EXPECT_TRUE(becomes_true([&] { return sink.text("job") == wanted; }));
}

TEST(LogForwarder, WhatDoesNotFitIsCounted) {
  SinkOfTests sink;
  auto small = options();
  small.queue_bytes_max = 2000;
  LogForwarder forwarder(small, sink.sink());
  const auto id = forwarder.open("job", "g", RankId{0});
  sink.refuse(true);
  for (int i = 0; i < 500; ++i) forwarder.feed(id, 0, "line " + std::to_string(i) + "\n");
  sink.refuse(false);
  EXPECT_TRUE(becomes_true([&] { return sink.dropped() > 0; }));
  std::size_t lines = 0;
  const std::string text = sink.text("job");
  for (std::size_t at = 0; (at = text.find("] line ", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines + sink.dropped(), 500U);
  EXPECT_THAT(text, HasSubstr("dropped " + std::to_string(sink.dropped()) + " lines"));
  forwarder.drop_job("job");
}

TEST(LogForwarder, AFloodStaysWithinBounds) {
  SinkOfTests sink;
  LogForwarder forwarder(options(), sink.sink());
  auto table = ProcessTable::open();
  ASSERT_TRUE(table);
  const auto id = forwarder.open("job", "g", RankId{0});
  struct rusage before {};
  ::getrusage(RUSAGE_SELF, &before);
  std::atomic<std::uint64_t> bytes = 0;
  ProcessWatch watch;
  ProcessEvents events = watch.events();
  events.on_output = [&](OutputStream, std::string_view text) {
    bytes += text.size();
    forwarder.feed(id, 0, text);
  };
  ProcessSpec spec;
  spec.name = "flood";
  spec.command =
      child({"flood", "2",
             "a line of some eighty bytes as programs like to print when they are in a loop"});
  ASSERT_TRUE((*table)->spawn(spec, events));
  EXPECT_EQ(watch.exit(20s).code, 0);
  struct rusage after {};
  ::getrusage(RUSAGE_SELF, &after);
  const auto last = forwarder.close(id);
  ASSERT_FALSE(last.empty());
  EXPECT_THAT(last.back(), HasSubstr("flooded "));
  const double rate = static_cast<double>(bytes.load()) / 2e6;
  RecordProperty("megabytes_per_second", static_cast<int>(rate));
  std::printf("flood: %.0f MB/s taken from one rank\n", rate);
  if (!testing::kSanitized) {
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 32 * 1024) << "KiB more at peak";
  }
  EXPECT_LT(sink.largest(), 256U << 10U);
  EXPECT_LT(sink.text("job").size(), 3U << 20U);
}

TEST(LogPrinter, DoesNotWaitForASlowTerminalAndCountsWhatItDrops) {
  std::mutex gate;
  std::string printed;
  gate.lock();
  {
    LogPrinter printer(
        [&](std::string_view text) {
          const std::lock_guard lock(gate);
          printed += text;
        },
        100);
    for (int i = 0; i < 100; ++i) printer.add("0123456789\n");
    gate.unlock();
  }
  EXPECT_THAT(printed, HasSubstr("0123456789\n"));
  EXPECT_THAT(printed, HasSubstr("[log] dropped "));
  EXPECT_LT(printed.size(), 400U);
}

}  // namespace
}  // namespace troupe::runtime
