// What a sandbox costs: scores of a Python rule from warm workers, one at a time and in batches,
// from fresh processes, and from the same program behind bare pipes, without walls or limits.
//
//   bench_sandbox [--check] [--samples N]
//
// With --check it ends non-zero when a bar is missed, all of them ratios of one run: warm workers
// give at least 20 times the scores of fresh processes, and one warm worker at least a third of
// what bare pipes give.

#include "actors/reward/command_reward.hpp"
#include "actors/sandbox/sandbox_pool.hpp"
#include "bench/elapsed.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;
using Clock = std::chrono::steady_clock;

constexpr const char* kRule = R"(
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print(1.0 if row["response"].strip() == row["ground_truth"] else 0.0, flush=True)
)";

SandboxOptions rule_options(int workers, std::int64_t samples_per_worker) {
  SandboxOptions options;
  options.name = "bench";
  options.command = {"/usr/bin/python3", "-c", kRule};
  options.workers = workers;
  options.samples_per_worker = samples_per_worker;
  return options;
}

std::vector<RewardInput> inputs_of(std::size_t count) {
  return std::vector<RewardInput>(count, {.data_source = "bench",
                                          .solution = " 1 3 4 7 9",
                                          .ground_truth = "1 3 4 7 9",
                                          .extra_info = R"({"index":1,"split":"train"})",
                                          .prompt = "sort: 7 3 9 1 4 ="});
}

/// Scores a second, `at_once` of them a call; the best of `runs`.
double rate(const BatchRewardFunction& rule, std::size_t samples, std::size_t at_once, int runs) {
  double best = 0;
  const std::vector<RewardInput> inputs = inputs_of(at_once);
  for (int run = 0; run < runs; ++run) {
    const auto begin = Clock::now();
    for (std::size_t done = 0; done < samples; done += at_once) {
      const auto outcomes = rule(inputs, Deadline::in(std::chrono::minutes(2)));
      TROUPE_CHECK(outcomes.has_value(), "{}", outcomes.error().to_string());
      for (const RewardOutcome& one : *outcomes)
        TROUPE_CHECK(one.score.score == 1.0, "{}: {}", one.failure, one.score.answer);
    }
    best = std::max(best, static_cast<double>(samples) / bench::seconds_since(begin));
  }
  return best;
}

/// The same program, its input written and its output read in lots of eight lines.
double bare_rate(std::size_t samples) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  TROUPE_CHECK(::pipe(in.data()) == 0 && ::pipe(out.data()) == 0, "no pipes");
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    for (const int one : {in[0], in[1], out[0], out[1]}) ::close(one);
    ::execl("/usr/bin/python3", "python3", "-c", kRule, nullptr);
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  const std::string line =
      R"({"data_source":"bench","extra_info":{"index":1,"split":"train"},"ground_truth":)"
      R"("1 3 4 7 9","id":0,"prompt":"sort: 7 3 9 1 4 =","response":" 1 3 4 7 9"})"
      "\n";
  constexpr std::size_t kLot = 8;
  std::string lot;
  for (std::size_t i = 0; i < kLot; ++i) lot += line;
  const auto exchange = [&] {
    TROUPE_CHECK(::write(in[1], lot.data(), lot.size()) == static_cast<ssize_t>(lot.size()),
                 "bare pipe");
    std::array<char, 4096> bytes;
    for (std::size_t lines = 0; lines < kLot;) {
      const ssize_t size = ::read(out[0], bytes.data(), bytes.size());
      TROUPE_CHECK(size > 0, "the bare program ended");
      lines += static_cast<std::size_t>(std::count(bytes.begin(), bytes.begin() + size, '\n'));
    }
  };
  exchange();  // the interpreter starts
  double best = 0;
  for (int run = 0; run < 3; ++run) {
    const auto begin = Clock::now();
    for (std::size_t done = 0; done < samples; done += kLot) exchange();
    best = std::max(best, static_cast<double>(samples) / bench::seconds_since(begin));
  }
  ::close(in[1]);
  ::close(out[0]);
  ::waitpid(child, nullptr, 0);
  return best;
}

double pool_rate(SandboxOptions options, std::size_t samples, std::size_t at_once, int runs) {
  auto pool = SandboxPool::open(std::move(options));
  TROUPE_CHECK(pool.has_value(), "{}", pool.error().to_string());
  const BatchRewardFunction rule = command_reward_on(**pool, 0.0);
  rate(rule, at_once, at_once, 1);  // the interpreters start
  return rate(rule, samples, at_once, runs);
}

}  // namespace

int main(int count, char** arguments) {
  bool check = false;
  std::size_t samples = 4096;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = arguments[i];
    if (word == "--check") check = true;
    if (word == "--samples" && i + 1 < count) {
      const std::string_view text = arguments[++i];
      std::from_chars(text.data(), text.data() + text.size(), samples);
    }
  }
  const double bare = bare_rate(samples);
  const double one = pool_rate(rule_options(1, 1'000'000), samples, 256, 3);
  const double two = pool_rate(rule_options(2, 1'000'000), samples, 256, 3);
  const double alone = pool_rate(rule_options(1, 1'000'000), samples / 8, 1, 3);
  const double fresh = pool_rate(rule_options(1, 1), 24, 24, 1);
  fmt::print("{:<44} {:>10} {:>12}\n", "python rule", "scores/s", "µs a sample");
  const auto row = [](const char* what, double value) {
    fmt::print("{:<44} {:>10.0f} {:>12.1f}\n", what, value, 1e6 / value);
  };
  row("bare pipe, no walls, lots of 8", bare);
  row("warm sandbox, 1 worker, 256 a call", one);
  row("warm sandbox, 2 workers, 256 a call", two);
  row("warm sandbox, 1 worker, 1 a call", alone);
  row("a fresh sandbox each sample", fresh);
  fmt::print("warm / fresh {:.1f} (bar 20), warm / bare {:.2f} (bar 0.33)\n", one / fresh,
             one / bare);
  fmt::print("overhead a sample: {:.1f} µs over the bare pipe\n", 1e6 / one - 1e6 / bare);
  const bool good = one / fresh >= 20 && one / bare >= 0.33;
  return check && !good ? 1 : 0;
}
