// Proves that a death report's first line is the root cause in one sentence for every way in which
// a rank can end, and that numbers, details and last lines follow it.

#include "runtime/cluster/death_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace troupe::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

DeathReport report() {
  DeathReport report;
  report.job = "job7";
  report.group = "policy";
  report.rank = RankId{3};
  report.node = "gpu-1";
  report.pid = 4711;
  report.exit.wall = 12300ms;
  return report;
}

DeathReport signalled(int signal) {
  DeathReport dead = report();
  dead.exit.kind = ProcessExit::Kind::kSignalled;
  dead.exit.signal = signal;
  return dead;
}

TEST(DeathReport, NamesSignalsAndCodes) {
  EXPECT_EQ(signalled(SIGKILL).first_line(),
            "policy rank 3 on gpu-1 was killed by signal 9 (SIGKILL) after 12.3 s");
  DeathReport dumped = signalled(SIGSEGV);
  dumped.exit.core_dumped = true;
  EXPECT_EQ(
      dumped.first_line(),
      "policy rank 3 on gpu-1 was killed by signal 11 (SIGSEGV) and dumped core after 12.3 s");
  DeathReport code = report();
  code.exit.code = 70;
  EXPECT_EQ(code.first_line(), "policy rank 3 on gpu-1 exited with code 70 after 12.3 s");
  EXPECT_FALSE(code.expected());
  code.exit.code = 0;
  EXPECT_TRUE(code.expected());
  EXPECT_EQ(signal_name(SIGRTMAX), "signal 64");
}

TEST(DeathReport, SaysWhyARankCouldNotBeStarted) {
  DeathReport dead = report();
  dead.exit.kind = ProcessExit::Kind::kNotStarted;
  dead.exit.start_error = "exec /opt/rank: No such file or directory";
  EXPECT_EQ(
      dead.to_text(),
      "policy rank 3 on gpu-1 could not be started: exec /opt/rank: No such file or directory");
}

TEST(DeathReport, TellsStopsByTheControllerFromThoseByTheAgent) {
  DeathReport asked = signalled(SIGTERM);
  asked.exit.stop_reason = "job is over";
  asked.asked = true;
  EXPECT_EQ(asked.first_line(), "policy rank 3 on gpu-1 ended as asked after 12.3 s: job is over");
  EXPECT_TRUE(asked.expected());
  DeathReport lost = signalled(SIGKILL);
  lost.exit.stop_reason = "its channel is down";
  lost.exit.we_killed = true;
  EXPECT_EQ(lost.first_line(),
            "policy rank 3 on gpu-1 was stopped by its agent after 12.3 s: its channel is down");
  EXPECT_FALSE(lost.expected());
}

TEST(DeathReport, AStopDoesNotHideAFaultOfItsOwn) {
  DeathReport crashed = signalled(SIGSEGV);
  crashed.exit.stop_reason = "job is over";
  crashed.asked = true;
  EXPECT_EQ(crashed.first_line(),
            "policy rank 3 on gpu-1 was killed by signal 11 (SIGSEGV) after 12.3 s while it was "
            "being stopped: "
            "job is over");
  EXPECT_FALSE(crashed.expected());
  DeathReport killed = signalled(SIGKILL);  // by somebody else, within the grace
  killed.exit.stop_reason = "job is over";
  EXPECT_THAT(killed.first_line(), HasSubstr("killed by signal 9"));
}

TEST(DeathReport, SeesThatMemoryRanOut) {
  DeathReport kernel = signalled(SIGKILL);
  kernel.exit.oom_kills = 1;
  kernel.exit.memory_limit = gibibytes(2);
  EXPECT_EQ(kernel.first_line(),
            "policy rank 3 on gpu-1 ran out of memory after 12.3 s: killed by the kernel for lack "
            "of memory, its "
            "limit was 2.0 GiB");
  kernel.exit.stop_reason = "stopped";
  kernel.exit.we_killed = true;
  EXPECT_THAT(kernel.first_line(), Not(HasSubstr("memory"))) << "we sent the signal";

  DeathReport own = signalled(SIGABRT);
  own.last_lines = {"step 4", "terminate called after throwing an instance of 'std::bad_alloc'",
                    "  what(): x"};
  EXPECT_THAT(own.first_line(),
              HasSubstr("ran out of memory after 12.3 s and was killed by signal 6 (SIGABRT)"));
  EXPECT_THAT(own.first_line(), HasSubstr("std::bad_alloc"));
  DeathReport code = report();
  code.exit.code = 1;
  code.last_lines = {"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"};
  EXPECT_THAT(code.first_line(), HasSubstr("ran out of memory"));
  code.exit.code = 0;
  EXPECT_THAT(code.first_line(), Not(HasSubstr("ran out of memory"))) << "it ended well";
}

TEST(DeathReport, NumbersDetailsAndLastLinesFollow) {
  DeathReport dead = signalled(SIGKILL);
  dead.exit.cpu = 3100ms;
  dead.exit.peak_memory = mebibytes(512);
  dead.details = {"thread 12 rank: T (stopped)"};
  dead.last_lines = {"one", "two"};
  EXPECT_EQ(dead.to_text(),
            "policy rank 3 on gpu-1 was killed by signal 9 (SIGKILL) after 12.3 s\n"
            "  pid 4711, cpu 3.1 s, peak memory 512.0 MiB\n"
            "  thread 12 rank: T (stopped)\n"
            "  its last 2 lines:\n"
            "  | one\n"
            "  | two");
  const Error error = dead.to_error();
  EXPECT_EQ(error.code, ErrorCode::kRankDead);
  EXPECT_EQ(error.origin.group, "policy");
  EXPECT_EQ(error.origin.rank, RankId{3});
  EXPECT_EQ(error.message, dead.to_text());
}

}  // namespace
}  // namespace troupe::runtime
