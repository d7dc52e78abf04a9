// Proves with real processes that ProcessTable tells how each child ended (codes, every signal,
// failed starts, memory), gives it the environment it was promised and nothing else, kills what it
// was told to kill with all its offspring, and leaves neither zombies nor descriptors nor threads.

#include "runtime/cluster/process.hpp"

#include "tests/runtime/cluster/process_watch.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <memory>

namespace troupe::runtime {
namespace {

using testing::alive;
using testing::becomes_true;
using testing::child;
using ::testing::HasSubstr;
using testing::kSanitized;
using testing::ProcessWatch;
using namespace std::chrono_literals;

class ProcessTest : public ::testing::Test {
 protected:
  void SetUp() override { reopen({}); }
  void reopen(ProcessTableOptions options) {
    table_ = nullptr;
    auto table = ProcessTable::open(options);
    ASSERT_TRUE(table) << table.error().to_string();
    table_ = std::move(*table);
  }
  ProcessTable::Key start(std::vector<std::string> words, ProcessWatch& watch,
                          ProcessSpec spec = {}) {
    spec.name = "test rank 0";
    spec.command = child(std::move(words));
    auto key = table_->spawn(std::move(spec), watch.events());
    EXPECT_TRUE(key) << key.error().to_string();
    return key.value_or(0);
  }
  std::unique_ptr<ProcessTable> table_;
};

TEST_F(ProcessTest, ExitCodesAreTold) {
  for (const int code : {0, 1, 3, 127, 255}) {
    ProcessWatch watch;
    start({"say", "hello", "error", "oh", "exit", std::to_string(code)}, watch);
    const ProcessExit exit = watch.exit();
    EXPECT_EQ(exit.kind, ProcessExit::Kind::kExited);
    EXPECT_EQ(exit.code, code);
    EXPECT_EQ(watch.output(), "hello\n");
    EXPECT_EQ(watch.errors(), "oh\n");
    EXPECT_GT(exit.wall, Duration::zero());
  }
}

TEST_F(ProcessTest, EverySignalThatEndsAProcessIsTold) {
  for (const int signal :
       {SIGHUP,  SIGINT,    SIGQUIT, SIGILL,  SIGTRAP,  SIGABRT, SIGBUS,  SIGFPE,
        SIGKILL, SIGUSR1,   SIGSEGV, SIGUSR2, SIGPIPE,  SIGALRM, SIGTERM, SIGXCPU,
        SIGXFSZ, SIGVTALRM, SIGPROF, SIGSYS,  SIGRTMIN, SIGRTMAX}) {
    // The sanitizers' runtimes answer these themselves.
    if (kSanitized && (signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE)) continue;
    ProcessWatch watch;
    start({"raise", std::to_string(signal), "exit", "0"}, watch);
    const ProcessExit exit = watch.exit();
    EXPECT_EQ(exit.kind, ProcessExit::Kind::kSignalled) << signal;
    EXPECT_EQ(exit.signal, signal);
  }
}

TEST_F(ProcessTest, AFailedStartNamesTheStepAndTheReason) {
  const auto fails = [this](ProcessSpec spec) {
    spec.name = "test rank 0";
    ProcessWatch watch;
    auto key = table_->spawn(std::move(spec), watch.events());
    EXPECT_TRUE(key);
    const ProcessExit exit = watch.exit();
    EXPECT_EQ(exit.kind, ProcessExit::Kind::kNotStarted);
    EXPECT_EQ(watch.pid(), 0) << "on_started came";
    return exit.start_error;
  };
  ProcessSpec spec;
  spec.command = {"/no/such/program"};
  EXPECT_EQ(fails(spec), "exec /no/such/program: No such file or directory");
  spec.command = {"no-such-program-in-path"};
  EXPECT_THAT(fails(spec), HasSubstr("exec no-such-program-in-path: No such file"));
  spec.command = {"/etc/passwd"};
  EXPECT_THAT(fails(spec), HasSubstr("Permission denied"));
  spec.command = child({"exit", "0"});
  spec.working_directory = "/no/such/folder";
  EXPECT_EQ(fails(spec), "change to /no/such/folder: No such file or directory");
  spec.working_directory.clear();
  spec.cores = {8000};
  EXPECT_EQ(fails(spec), "pin to cores 8000: Invalid argument");
  spec.cores.clear();
  spec.cgroup_parent = "/no/such/cgroup";
  EXPECT_THAT(fails(spec), HasSubstr("/no/such/cgroup"));
  EXPECT_EQ(table_->size(), 0U);
}

TEST_F(ProcessTest, BadRequestsAreRefusedAtOnce) {
  ProcessWatch watch;
  EXPECT_EQ(table_->spawn({}, watch.events()).error().code, ErrorCode::kInvalidArgument);
  ProcessSpec spec;
  spec.command = {std::string("a\0b", 3)};
  EXPECT_EQ(table_->spawn(spec, watch.events()).error().code, ErrorCode::kInvalidArgument);
  reopen({.processes_max = 1});
  ProcessWatch first;
  start({"sleep"}, first);
  spec.command = child({"sleep"});
  const auto refused = table_->spawn(spec, watch.events());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
}

TEST_F(ProcessTest, TheChildHasCleanDescriptorsSignalsAndInput) {
  const int leaky = ::open("/dev/null", O_RDONLY);  // NOLINT: without close-on-exec, on purpose
  ::signal(SIGUSR1, SIG_IGN);
  ProcessWatch watch;
  start({"files", "signals", "input"}, watch);
  watch.exit();
  ::signal(SIGUSR1, SIG_DFL);
  ::close(leaky);
  EXPECT_EQ(watch.output(), "files 0 1 2\nblocked ignored\ninput -1\n");
}

TEST_F(ProcessTest, TheChildHasItsEnvironmentFolderCoresAndSecret) {
  ::setenv("TROUPE_TEST_GONE", "x", 1);
  ProcessSpec spec;
  spec.environment = {{"OMP_NUM_THREADS", "1"}, {"PATH_LIKE", "a=b c"}};
  spec.environment_removed = {"TROUPE_TEST_GONE"};
  spec.working_directory = "/";
  spec.cores = {0};
  spec.secret_variable = "TROUPE_TOKEN_FILE";
  spec.secret = "0123abcd";
  ProcessWatch watch;
  start({"variable", "OMP_NUM_THREADS", "variable", "PATH_LIKE", "variable", "TROUPE_TEST_GONE",
         "folder", "cores", "files", "secret", "TROUPE_TOKEN_FILE"},
        watch, spec);
  watch.exit();
  ::unsetenv("TROUPE_TEST_GONE");
  EXPECT_EQ(watch.output(),
            "OMP_NUM_THREADS=1\nPATH_LIKE=a=b c\nTROUPE_TEST_GONE=(none)\nfolder /\ncores 0\n"
            "files 0 1 2 3\nsecret 0123abcd\n");
}

TEST_F(ProcessTest, StopAsksThenKillsAndKeepsTheFirstReason) {
  ProcessWatch polite;
  auto key = start({"say", "up", "sleep"}, polite);
  polite.wait_output("up");
  table_->stop(key, 5s, "asked by the test");
  table_->stop(key, 0s, "a later reason");
  EXPECT_EQ(polite.exit().stop_reason, "asked by the test");

  ProcessWatch stubborn;
  key = start({"ignore", "15", "say", "up", "sleep"}, stubborn);
  stubborn.wait_output("up");
  const auto before = std::chrono::steady_clock::now();
  table_->stop(key, 200ms, "asked by the test");
  const ProcessExit exit = stubborn.exit();
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_GE(std::chrono::steady_clock::now() - before, 190ms);
}

TEST_F(ProcessTest, AStoppedProcessCanBeStoppedForGood) {
  for (const Duration grace : {Duration(0), Duration(2s)}) {
    ProcessWatch watch;
    const auto key = start({"say", "up", "sleep"}, watch);
    watch.wait_output("up");
    table_->signal(key, SIGSTOP);
    std::this_thread::sleep_for(20ms);
    table_->stop(key, grace, "it hangs");
    EXPECT_EQ(watch.exit(1s).signal, grace == 0s ? SIGKILL : SIGTERM);
  }
}

TEST_F(ProcessTest, GrandchildrenOfTheGroupDieWithTheChild) {
  ProcessWatch watch;
  start({"fork", "wait", "20", "exit", "4"}, watch);
  const int grandchild = watch.number_after("sleeper");
  EXPECT_EQ(watch.exit(1s).code, 4);
  EXPECT_TRUE(becomes_true([&] { return !alive(grandchild); }, 1s));
}

TEST_F(ProcessTest, APipeHeldOpenByAnEscapedGrandchildDelaysLittle) {
  ProcessWatch watch;
  const auto before = std::chrono::steady_clock::now();
  start({"escape", "wait", "50", "say", "last words", "exit", "5"}, watch);
  EXPECT_EQ(watch.exit(2s).code, 5);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 1500ms);
  EXPECT_THAT(watch.output(), HasSubstr("last words\n"));
  ::kill(watch.number_after("sleeper"), SIGKILL);
}

TEST_F(ProcessTest, ChildrenDieWithTheirParentProcess) {
  ProcessWatch watch;
  start({"parent"}, watch);
  const int grandchild = watch.number_after("grandchild");
  ASSERT_TRUE(alive(grandchild));
  ::kill(watch.pid(), SIGKILL);
  EXPECT_TRUE(becomes_true([&] { return !alive(grandchild); }, 1s));
}

TEST_F(ProcessTest, ClosingTheTableKillsAndReapsAll) {
  std::vector<std::unique_ptr<ProcessWatch>> watches;
  std::vector<int> pids;
  for (int i = 0; i < 10; ++i) {
    watches.push_back(std::make_unique<ProcessWatch>());
    start({"ignore", "15", "sleep"}, *watches.back());
  }
  for (auto& watch : watches) pids.push_back(watch->pid());
  table_ = nullptr;
  for (auto& watch : watches) {
    EXPECT_EQ(watch->exits(), 1);
    EXPECT_EQ(watch->exit().signal, SIGKILL);
  }
  EXPECT_TRUE(testing::own_children().empty());
}

TEST_F(ProcessTest, AddressSpaceThatRunsOutIsSeen) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve terabytes";
  ProcessSpec spec;
  spec.address_space_max = mebibytes(256);
  ProcessWatch watch;
  start({"eat", "1024", "exit", "0"}, watch, spec);
  const ProcessExit exit = watch.exit();
  EXPECT_EQ(exit.signal, SIGABRT);
  EXPECT_EQ(exit.memory_limit, mebibytes(256));
  EXPECT_GT(exit.peak_memory, mebibytes(100));
  EXPECT_THAT(watch.errors(), HasSubstr("bad_alloc"));
}

TEST_F(ProcessTest, AThousandShortLivesLeaveNothingBehind) {
  const int count = kSanitized ? 200 : 1000;
  {
    ProcessWatch warm_up;
    start({"exit", "0"}, warm_up);
    warm_up.exit();
  }
  const std::size_t files = testing::open_files();
  const std::size_t threads = testing::threads();
  std::atomic<int> over = 0;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < count; ++i) {
    ASSERT_TRUE(becomes_true([&] { return table_->size() < 16; }));
    ProcessSpec spec;
    spec.name = "short";
    spec.command = i % 10 == 9 ? std::vector<std::string>{"/no/such/program"}
                               : std::vector<std::string>{"/bin/true"};
    ProcessEvents events;
    events.on_exit = [&, i](const ProcessExit& exit) {
      const auto wanted = i % 10 == 9 ? ProcessExit::Kind::kNotStarted : ProcessExit::Kind::kExited;
      if (exit.kind != wanted) ++wrong;
      ++over;
    };
    ASSERT_TRUE(table_->spawn(std::move(spec), std::move(events)));
  }
  EXPECT_TRUE(becomes_true([&] { return over == count; }, 20s));
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(testing::open_files(), files);
  EXPECT_EQ(testing::threads(), threads);
  EXPECT_TRUE(testing::own_children().empty());
}

TEST_F(ProcessTest, ManyThreadsMayStartAndStop) {
  std::atomic<int> over = 0;
  std::vector<std::thread> starters;
  for (int t = 0; t < 4; ++t) {
    starters.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        ProcessSpec spec;
        spec.name = "many";
        spec.command = child({"sleep"});
        ProcessEvents events;
        events.on_exit = [&](const ProcessExit&) { ++over; };
        auto key = table_->spawn(std::move(spec), std::move(events));
        ASSERT_TRUE(key);
        table_->stop(*key, i % 2 == 0 ? Duration(0) : Duration(1s), "enough");
      }
    });
  }
  for (std::thread& starter : starters) starter.join();
  EXPECT_TRUE(becomes_true([&] { return over == 100; }, 20s));
}

TEST_F(ProcessTest, RunningOutOfDescriptorsFailsOneStartOnly) {
  struct rlimit before {};
  ::getrlimit(RLIMIT_NOFILE, &before);
  struct rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(testing::open_files() + 2);
  ::setrlimit(RLIMIT_NOFILE, &few);
  ProcessWatch starved;
  start({"exit", "0"}, starved);
  const ProcessExit exit = starved.exit();
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(exit.kind, ProcessExit::Kind::kNotStarted);
  EXPECT_THAT(exit.start_error, HasSubstr("Too many open files"));
  ProcessWatch fed;
  start({"exit", "0"}, fed);
  EXPECT_EQ(fed.exit().kind, ProcessExit::Kind::kExited);
}

}  // namespace
}  // namespace troupe::runtime
