// Proves with real processes that ProcessLauncher keeps the contract of RankLauncher: a launch is
// over once the program runs, its exit is told once with the root cause and the last lines, and the
// rank finds its record, its token and its devices in its environment.

#include "runtime/cluster/process_launcher.hpp"

#include "tests/runtime/cluster/process_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace troupe::runtime {
namespace {

using testing::becomes_true;
using testing::child;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::chrono_literals;

class ProcessLauncherTest : public ::testing::Test {
 protected:
  void open(ProcessLauncherOptions options = {}) {
    options.print = [this](std::string_view text) {
      const std::lock_guard lock(mutex_);
      printed_ += text;
    };
    auto launcher = ProcessLauncher::open(std::move(options));
    ASSERT_TRUE(launcher) << launcher.error().to_string();
    launcher_ = std::move(*launcher);
  }
  result<void> launch(int rank, std::vector<std::string> words,
                      std::map<std::string, std::string> environment = {}) {
    RankLaunch launch{.job = "job7",
                      .group = "policy",
                      .rank = RankId{rank},
                      .bundle = 1,
                      .controller = "127.0.0.1:1",
                      .command = child(std::move(words)),
                      .environment = std::move(environment)};
    return launcher_
        ->launch(launch,
                 [this](Error error) {
                   const std::lock_guard lock(mutex_);
                   exits_.push_back(std::move(error));
                 })
        .wait(Deadline::in(10s));
  }
  std::vector<Error> exits(std::size_t count) {
    becomes_true([&] {
      const std::lock_guard lock(mutex_);
      return exits_.size() >= count;
    });
    const std::lock_guard lock(mutex_);
    return exits_;
  }
  std::string printed() {
    const std::lock_guard lock(mutex_);
    return printed_;
  }

  std::mutex mutex_;
  std::vector<Error> exits_;
  std::string printed_;
  std::unique_ptr<ProcessLauncher> launcher_;
};

TEST_F(ProcessLauncherTest, AnExitIsToldOnceWithCodeAndLastLines) {
  open();
  ASSERT_TRUE(launch(3, {"say", "loading", "error", "it broke", "exit", "9"}));
  const auto ends = exits(1);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].code, ErrorCode::kRankDead);
  EXPECT_EQ(ends[0].origin.group, "policy");
  EXPECT_EQ(ends[0].origin.rank, RankId{3});
  EXPECT_THAT(ends[0].message, StartsWith("policy rank 3 exited with code 9 after "));
  EXPECT_THAT(ends[0].message, HasSubstr("\n  | it broke"));
  EXPECT_THAT(printed(), HasSubstr("[policy/3] loading\n"));
}

TEST_F(ProcessLauncherTest, AKillNamesTheSignal) {
  open();
  ASSERT_TRUE(launch(0, {"sleep"}));
  ASSERT_NE(launcher_->pid_of("policy", RankId{0}), 0);
  ::kill(launcher_->pid_of("policy", RankId{0}), SIGKILL);
  EXPECT_THAT(exits(1).at(0).message,
              StartsWith("policy rank 0 was killed by signal 9 (SIGKILL) after"));
  EXPECT_EQ(launcher_->pid_of("policy", RankId{0}), 0);
}

TEST_F(ProcessLauncherTest, BinaryAndPartialOutputIsPrintedHarmlessly) {
  open();
  ASSERT_TRUE(launch(0, {"binary", "partial", "half a line", "exit", "0"}));
  exits(1);
  EXPECT_TRUE(becomes_true([&] {
    return printed() == "[policy/0] \\x00\\xff\\xfe\\x1b[31m caf\xc3\xa9\n[policy/0] half a line\n";
  })) << printed();
}

TEST_F(ProcessLauncherTest, AFailedLaunchIsItsOwnAnswerAndHasNoExit) {
  open();
  RankLaunch launch{
      .job = "j", .group = "policy", .rank = RankId{1}, .controller = "", .command = {"/no/rank"}};
  const auto outcome =
      launcher_->launch(launch, [](const Error&) { FAIL(); }).wait(Deadline::in(5s));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().message,
            "policy rank 1 could not be started: exec /no/rank: No such file or directory");
  EXPECT_EQ(launcher_->size(), 0U);
}

TEST_F(ProcessLauncherTest, StoppingIsAnExitToo) {
  open();
  ASSERT_TRUE(launch(0, {"say", "up", "sleep"}));
  EXPECT_EQ(launch(0, {"sleep"}).error().code, ErrorCode::kAlreadyExists);
  launcher_->stop("policy", RankId{0});
  launcher_->stop("policy", RankId{0});
  launcher_->stop("policy", RankId{5});
  EXPECT_THAT(exits(1).at(0).message, StartsWith("policy rank 0 ended as asked after"));
  ASSERT_TRUE(launch(0, {"sleep"})) << "the name is free again";
  launcher_ = nullptr;
  EXPECT_EQ(exits_.size(), 2U);
}

TEST_F(ProcessLauncherTest, TheRankFindsRecordTokenAndDevices) {
  ProcessLauncherOptions options;
  options.token = "00ff";
  options.environment = {{"TROUPE_TLS_FOLDER", "/tls"}};
  options.place = [](const RankLaunch&) {
    return RankPlace{
        .cores = {0}, .devices = {2, 3}, .visible = {"GPU-a", "GPU-b"}, .memory_max = {}};
  };
  open(options);
  ASSERT_TRUE(launch(2,
                     {"variable", "TROUPE_RANK", "variable", "CUDA_VISIBLE_DEVICES", "variable",
                      "OMP_NUM_THREADS", "variable", "TROUPE_TLS_FOLDER", "variable", "MINE",
                      "secret", "TROUPE_TOKEN_FILE", "cores", "exit", "1"},
                     {{"MINE", "yes"}, {"CUDA_VISIBLE_DEVICES", "not mine to say"}}));
  const std::string said = exits(1).at(0).message;
  for (const char* line : {"CUDA_VISIBLE_DEVICES=GPU-a,GPU-b", "OMP_NUM_THREADS=1",
                           "TROUPE_TLS_FOLDER=/tls", "MINE=yes", "secret 00ff"})
    EXPECT_THAT(said, HasSubstr(std::string("| ") + line + "\n")) << line;
  const auto begin = said.find("TROUPE_RANK={") + 12;
  const auto record = RankRecord::from_json(said.substr(begin, said.find('\n', begin) - begin));
  ASSERT_TRUE(record) << record.error().to_string();
  EXPECT_EQ(record->peer_name(), "job7/policy/2");
  EXPECT_EQ(record->bundle, 1);
  EXPECT_EQ(record->devices, (std::vector<int>{2, 3}));
}

TEST_F(ProcessLauncherTest, MemoryThatRunsOutIsTheFirstThingSaid) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers reserve terabytes";
  ProcessLauncherOptions options;
  options.limit_address_space = true;
  options.place = [](const RankLaunch&) {
    return RankPlace{.cores = {}, .devices = {}, .visible = {}, .memory_max = mebibytes(200)};
  };
  open(options);
  ASSERT_TRUE(launch(0, {"eat", "1000"}));
  EXPECT_THAT(exits(1).at(0).message, StartsWith("policy rank 0 ran out of memory after "));
  EXPECT_THAT(exits(1).at(0).message, HasSubstr("its limit was 200.0 MiB"));
}

}  // namespace
}  // namespace troupe::runtime
