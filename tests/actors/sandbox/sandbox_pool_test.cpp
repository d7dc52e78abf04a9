// Proves that a pool answers lines in their order from warm processes, that each way to misbehave
// costs its own sample and no other, is told by its reason and leaves no process and no folder
// behind, and that failures of the sandbox itself are errors. Commands are small Python programs
// that do what each line says.

#include "tests/actors/sandbox/sandbox_case.hpp"

#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <set>
#include <thread>

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

std::string reason_of(const SandboxAnswer& answer) {
  return answer.failure ? std::string(sandbox_failure_name(*answer.failure)) : "none";
}

/// Runs `bad` between good lines: those are answered, whatever the bad one does.
SandboxAnswer among_good(SandboxPool& pool, const std::string& bad) {
  const auto answers = run_lines(pool, {"1+1", bad, "2+2", "3+3"});
  EXPECT_EQ(answers[0].line, "2") << bad << ": " << answers[0].detail;
  EXPECT_EQ(answers[2].line, "4") << bad << ": " << answers[2].detail;
  EXPECT_EQ(answers[3].line, "6") << bad << ": " << answers[3].detail;
  return answers[1];
}

/// Processes of this host whose command line has `word`.
int processes_with(const std::string& word) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream stream(entry.path() / "cmdline", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(stream)), {});
    if (text.find(word) != std::string::npos) ++count;
  }
  return count;
}

std::size_t entries_of(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST(SandboxPool, AnswersEveryLineInOrderFromWarmProcesses) {
  SandboxOptions options = python_options();
  options.workers = 2;
  const auto pool = open_pool(options);
  ASSERT_TRUE(pool);
  std::vector<std::string> lines;
  for (int i = 0; i < 200; ++i) lines.push_back(std::to_string(i) + " * 2");
  for (int round = 0; round < 3; ++round) {
    const auto answers = run_lines(*pool, lines);
    for (int i = 0; i < 200; ++i)
      EXPECT_EQ(answers[static_cast<std::size_t>(i)].line, std::to_string(2 * i));
  }
  EXPECT_EQ(pool->stats().processes_started, 2) << "warm: started once";
  EXPECT_EQ(pool->stats().samples, 600);
}

TEST(SandboxPool, ReplacesAProcessThatHadItsNumberOfSamples) {
  SandboxOptions options = python_options();
  options.samples_per_worker = 2;
  const auto pool = open_pool(options);
  ASSERT_TRUE(pool);
  const auto answers =
      run_lines(*pool, std::vector<std::string>(6, "__import__('time').time_ns()"));
  for (const auto& answer : answers) EXPECT_FALSE(answer.failure) << answer.detail;
  EXPECT_EQ(pool->stats().processes_started, 3);
  EXPECT_EQ(pool->stats().workers_recycled, 2);
  EXPECT_EQ(pool->stats().workers_killed, 0);
}

struct Misbehaviour {
  const char* what;
  const char* line;
  std::vector<std::string> reasons;  ///< any of them
};

class SandboxMisbehaviour : public ::testing::TestWithParam<Misbehaviour> {};

TEST_P(SandboxMisbehaviour, CostsItsOwnSampleAndIsToldByItsReason) {
  const auto pool = open_pool(python_options());
  ASSERT_TRUE(pool);
  const SandboxAnswer answer = among_good(*pool, GetParam().line);
  EXPECT_THAT(GetParam().reasons, ::testing::Contains(reason_of(answer)))
      << answer.line << " " << answer.detail;
  EXPECT_EQ(pool->stats().workers_killed, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Each, SandboxMisbehaviour,
    ::testing::Values(
        Misbehaviour{"EndlessLoop", "all(i == 0 for i in iter(int, 1))", {"cpu_time", "wall_time"}},
        Misbehaviour{"SleepsOn", "time.sleep(1000)", {"wall_time"}},
        Misbehaviour{"SleepsIgnoringSigterm",
                     "(signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(1000))",
                     {"wall_time"}},
        Misbehaviour{"MemoryInManyProcesses",
                     "[os.fork() or (bytearray(90<<20), time.sleep(1000)) for i in range(6)]"
                     " and time.sleep(1000)",
                     {"memory"}},
        Misbehaviour{"OneEndlessLine", "'x' * (1 << 20)", {"output"}},
        Misbehaviour{"CrashBySignal", "os.kill(os.getpid(), signal.SIGSEGV)", {"crashed"}},
        Misbehaviour{"Aborts", "os.abort()", {"crashed"}},
        Misbehaviour{"ExitsWithoutAnswer", "os._exit(3)", {"exited"}},
        Misbehaviour{"ClosesItsOutput", "(os.close(1), time.sleep(1000))", {"exited"}},
        Misbehaviour{"WritesAHugeFile",
                     "(signal.signal(signal.SIGXFSZ, signal.SIG_DFL),"
                     " open('big', 'wb').truncate(1 << 30))",
                     {"scratch"}}),
    [](const auto& one) { return std::string(one.param.what); });

/// Copies of a warm scorer hold its pipes, so that in a warm process each of them can answer for
/// the samples around: who runs such code takes a fresh process a sample (docs/sandbox.md).
TEST(SandboxPool, AForkBombCostsOnlyItselfWhereEachSampleHasItsProcess) {
  SandboxOptions options = python_options();
  options.samples_per_worker = 1;
  const auto pool = open_pool(options);
  ASSERT_TRUE(pool);
  const SandboxAnswer answer =
      among_good(*pool, "[os.fork() for i in range(30)] and time.sleep(1000)");
  // The copy that finds the limit may have said so before it was killed.
  EXPECT_TRUE(answer.line == "BlockingIOError" || answer.failure) << answer.line;
  EXPECT_LE(pool->stats().workers_killed, 1);
  EXPECT_EQ(pool->stats().processes_started, 4);
}

TEST(SandboxPool, LinesTooManyCostOnlyTheSamplesOfTheirOwnProcess) {
  SandboxOptions options = python_options();
  options.samples_per_worker = 1;
  const auto pool = open_pool(options);
  ASSERT_TRUE(pool);
  // More than one read takes, so that the surplus is there with the answer.
  const SandboxAnswer answer = among_good(*pool, "'\\n'.join(['7'] * 100000)");
  EXPECT_EQ(reason_of(answer), "answer");
  EXPECT_THAT(answer.detail, HasSubstr("more lines"));
}

TEST(SandboxPool, CpuTimeOfAllProcessesOfASampleIsBounded) {
  SandboxOptions options = python_options();
  options.limits.sample_wall = std::chrono::seconds(50);
  options.limits.sample_cpu = std::chrono::milliseconds(100);
  options.samples_ahead = 1;
  const auto pool = open_pool(options);
  ASSERT_TRUE(pool);
  const SandboxAnswer answer =
      among_good(*pool, "[os.fork() for i in range(2)] and all(i == 0 for i in iter(int, 1))");
  EXPECT_EQ(reason_of(answer), "cpu_time") << answer.detail;
}

TEST(SandboxPool, AMemoryBombGetsNoMemory) {
  const auto pool = open_pool(python_options());
  ASSERT_TRUE(pool);
  EXPECT_EQ(among_good(*pool, "len(bytearray(1 << 30))").line, "MemoryError");
}

TEST(SandboxPool, ThreadsBeyondTheLimitCannotBeMade) {
  const auto pool = open_pool(python_options());
  ASSERT_TRUE(pool);
  const SandboxAnswer answer =
      among_good(*pool,
                 "[threading.Thread(target=time.sleep, args=(1000,), daemon=True).start() "
                 "for i in range(40)] and time.sleep(1000)");
  EXPECT_TRUE(answer.line == "RuntimeError" || reason_of(answer) == "processes")
      << answer.line << reason_of(answer) << answer.detail;
}

TEST(SandboxPool, AFloodOfLinesMakesNothingOfThatProcessBelieved) {
  const auto pool = open_pool(python_options());
  ASSERT_TRUE(pool);
  const auto answers = run_lines(*pool, {"1", "'\\n'.join(['7'] * 100000)", "2", "3"});
  EXPECT_EQ(reason_of(answers[0]), "answer") << "it may be of the flood as well";
  EXPECT_THAT(answers[0].detail, HasSubstr("more lines"));
  EXPECT_GE(pool->stats().workers_killed, 1);
  EXPECT_EQ(run_lines(*pool, {"5"})[0].line, "5");
}

TEST(SandboxPool, AProcessThatClosesItsInputAnswersWhatItHasReadAndOthersGoElsewhere) {
  const auto pool = open_pool(python_options(R"(
import os, sys
line = os.read(0, 2).decode()
os.close(0)
print(line.strip(), flush=True)
import time
time.sleep(1000)
)"));
  ASSERT_TRUE(pool);
  const auto answers = run_lines(*pool, {"1"});
  EXPECT_EQ(answers[0].line, "1");
  EXPECT_EQ(run_lines(*pool, {"2"})[0].line, "2") << "by a fresh process";
  EXPECT_EQ(pool->stats().processes_started, 2);
}

TEST(SandboxPool, OrphansDieWithTheirSandboxAndNothingIsLeftOnDisk) {
  testing::TemporaryFolder folder;
  const std::string mark = "orphan-" + std::to_string(::getpid());
  {
    SandboxOptions options = python_options();
    options.scratch_root = folder.path();
    const auto pool = open_pool(options);
    ASSERT_TRUE(pool);
    const auto answers = run_lines(
        *pool, {"subprocess.Popen(['setsid', 'sh', '-c', 'sleep 1000; : " + mark + "']).pid > 0",
                "open('left', 'w').write('x')", "os.mkdir('sealed', 0)"});
    EXPECT_EQ(answers[0].line, "True") << answers[0].detail;
    EXPECT_EQ(answers[1].line, "1") << answers[1].detail;
    // A process has no command line while it becomes the next program.
    auto seen = processes_with(mark);
    for (int i = 0; i < 500 && seen == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      seen = processes_with(mark);
    }
    EXPECT_GE(seen, 1);
    EXPECT_EQ(entries_of(folder.path()), 1U);
  }
  EXPECT_EQ(processes_with(mark), 0);
  EXPECT_EQ(entries_of(folder.path()), 0U);
}

TEST(SandboxPool, AWholeBatchIsOneProcessThatReadsToTheEnd) {
  SandboxOptions options =
      python_options("import sys\nfor x in sys.stdin.readlines(): print(x.strip() * 2)");
  options.whole_batches = true;
  options.workers = 2;
  const auto pool = open_pool(options);
  ASSERT_TRUE(pool);
  for (int round = 0; round < 2; ++round) {
    const auto answers = run_lines(*pool, {"a", "b", "c"});
    EXPECT_EQ(answers[0].line + answers[1].line + answers[2].line, "aabbcc");
  }
}

TEST(SandboxPool, AWholeBatchWithTooFewLinesFailsTheRest) {
  SandboxOptions options = python_options("import sys\nprint(len(sys.stdin.readlines()))");
  options.whole_batches = true;
  const auto pool = open_pool(options);
  ASSERT_TRUE(pool);
  const auto answers = run_lines(*pool, {"a", "b", "c"});
  EXPECT_EQ(answers[0].line, "3");
  EXPECT_EQ(reason_of(answers[1]) + reason_of(answers[2]), "exitedexited");
}

TEST(SandboxPool, EndsAtItsDeadlineAndWorksAfterwards) {
  SandboxOptions options = python_options();
  options.limits.sample_wall = std::chrono::seconds(1000);
  const auto pool = open_pool(options);
  ASSERT_TRUE(pool);
  ASSERT_EQ(run_lines(*pool, {"1"})[0].line, "1");
  const std::vector<std::string> lines{"time.sleep(1000)", "2"};
  const auto late = pool->run(lines, Deadline::in(std::chrono::milliseconds(200)));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(late.error().message, HasSubstr("2 of 2 samples"));
  EXPECT_EQ(run_lines(*pool, {"3"})[0].line, "3");
}

TEST(SandboxPool, ManyThreadsShareItsWorkers) {
  SandboxOptions options = python_options();
  options.workers = 2;
  const auto pool = open_pool(options);
  ASSERT_TRUE(pool);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&pool, caller] {
      for (int i = 0; i < 20; ++i) {
        const auto answers = run_lines(*pool, {fmt::format("{}+{}", caller, i), "7"});
        EXPECT_EQ(answers[0].line, std::to_string(caller + i));
        EXPECT_EQ(answers[1].line, "7");
      }
    });
  }
  for (std::thread& one : callers) one.join();
}

TEST(SandboxPool, AFailureOfTheSandboxItselfIsAnErrorAndNoScore) {
  const auto missing = SandboxPool::open(tight_options({"/no/such/program"}));
  if (missing) {  // the helper started; what it runs is known a moment later
    const std::vector<std::string> lines{"1"};
    const auto ran = (*missing)->run(lines, Deadline::in(std::chrono::seconds(20)));
    ASSERT_FALSE(ran.has_value());
    EXPECT_EQ(ran.error().code, ErrorCode::kNotFound) << ran.error().to_string();
    EXPECT_THAT(ran.error().message, HasSubstr("/no/such/program"));
  }
  const auto broken = open_pool(python_options("import no_such_module"));
  ASSERT_TRUE(broken);
  const std::vector<std::string> lines(20, "1");
  const auto ran = broken->run(lines, Deadline::in(std::chrono::seconds(60)));
  ASSERT_FALSE(ran.has_value());
  EXPECT_THAT(ran.error().message, HasSubstr("has never answered"));
  EXPECT_THAT(ran.error().message, HasSubstr("no_such_module"));

  SandboxOptions nowhere = python_options();
  nowhere.scratch_root = "/no/such/folder";
  const auto refused = SandboxPool::open(nowhere);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("/no/such/folder"));
}

TEST(SandboxPool, OptionsOutOfRangeAreNamed) {
  SandboxOptions options = python_options();
  options.limits.processes = 0;
  EXPECT_THAT(SandboxPool::open(options).error().message, HasSubstr("processes is 0"));
  options = python_options();
  options.command.clear();
  EXPECT_THAT(SandboxPool::open(options).error().message, HasSubstr("command is empty"));
}

TEST(SandboxPool, ArgumentsThatNameFilesBecomeAbsolute) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "score.py", "");
  const auto command = absolute_command({"python3", "score.py", "--fast"}, folder.path());
  EXPECT_EQ(command,
            (std::vector<std::string>{"python3", (folder / "score.py").string(), "--fast"}));
}

}  // namespace
}  // namespace troupe::actors
