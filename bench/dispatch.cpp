// Group call and gather: what one call on a worker group costs when the method does nothing, and
// what the controller holds per row. Prints p50 and p99 for 1, 8 and 64 ranks by both routes, and
// next to them the floor: waking the same number of threads and waiting for all.
//
//   bench_dispatch [--check] [--calls N]
//
// With --check it ends non-zero when a bar is missed: p50 direct at 8 ranks ≤ 60 µs, at 64 ranks
// ≤ 400 µs; controller bytes ≤ 64 per row and step.

#include "runtime/group/worker_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::runtime;
using std::chrono::duration;
using std::chrono::steady_clock;

struct Echo {
  explicit Echo(WorkerContext&) {}
  std::vector<int> echo(const std::vector<int>& rows) { return rows; }
  Batch answers(const Batch& prompts) {
    Batch out;
    const auto rows = static_cast<std::size_t>(prompts.rows());
    std::vector<std::int64_t> lengths(rows, 32);
    check(out.set("response", Column::jagged(std::vector<std::int32_t>(rows * 32, 1), lengths)));
    check(out.set("log_probs", Column::jagged(std::vector<float>(rows * 32, 0.5F), lengths)));
    return out;
  }
  static void check(const result<void>& done) {
    TROUPE_CHECK(done, "bench: {}", done.error().message);
  }
  static constexpr auto methods() {
    return std::tuple{
        method<&Echo::echo>("echo", args(scatter), returns(concat)),
        method<&Echo::answers>("answers", args(scatter), returns(concat)).keep_columns()};
  }
};

struct Times {
  double p50 = 0;
  double p99 = 0;
};

Times quantiles(std::vector<double> micros) {
  std::sort(micros.begin(), micros.end());
  return {micros[micros.size() / 2], micros[micros.size() * 99 / 100]};
}

/// The best of three runs: what else the machine does can only add.
template <class Step>
Times measure(int calls, Step step) {
  Times best{1e9, 1e9};
  for (int run = 0; run < 3; ++run) {
    std::vector<double> micros;
    for (int i = -calls / 10; i < calls; ++i) {
      const auto begin = steady_clock::now();
      step();
      if (i >= 0)
        micros.push_back(duration<double, std::micro>(steady_clock::now() - begin).count());
    }
    const Times times = quantiles(std::move(micros));
    if (times.p50 < best.p50) best = times;
  }
  return best;
}

Times group_call(int ranks, CallRoute route, int calls) {
  ActorSystem system;
  GroupOptions options;
  options.name = "bench";
  options.mesh = Mesh::data_parallel(ranks);
  options.route = route;
  auto group = WorkerGroup<Echo>::create(system, options);
  TROUPE_CHECK(group, "bench: {}", group.error().to_string());
  const std::vector<int> rows(static_cast<std::size_t>(ranks) * 4, 7);
  return measure(calls, [&] {
    auto back = group->call<&Echo::echo>(rows).wait();
    TROUPE_CHECK(back && back->size() == rows.size(), "bench: wrong answer");
  });
}

/// Threads that each wait for a number to change and count down: no queue, no arguments.
Times bare_threads(int ranks, int calls) {
  struct Slot {
    std::mutex mutex;
    std::condition_variable changed;
    int round = 0;
  };
  std::vector<Slot> slots(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  std::condition_variable done;
  std::atomic<int> left{0};
  bool over = false;
  std::vector<std::thread> threads;
  for (auto& slot : slots) {
    threads.emplace_back([&slot, &mutex, &done, &left, &over] {
      for (int seen = 0;;) {
        {
          std::unique_lock lock(slot.mutex);
          slot.changed.wait(lock, [&] { return slot.round != seen; });
          seen = slot.round;
        }
        if (seen < 0) return;
        if (left.fetch_sub(1) != 1) continue;
        const std::lock_guard lock(mutex);
        over = true;
        done.notify_one();
      }
    });
  }
  const auto tell = [&slots](int round) {
    for (auto& slot : slots) {
      {
        const std::lock_guard lock(slot.mutex);
        slot.round = round;
      }
      slot.changed.notify_one();
    }
  };
  int round = 0;
  const Times times = measure(calls, [&] {
    left = ranks;
    over = false;
    tell(++round);
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return over; });
  });
  tell(-1);
  for (auto& thread : threads) thread.join();
  return times;
}

/// Bytes that the controller holds and copies per row of one generate-like step.
struct ControllerBytes {
  double held_per_row = 0;
  double copied_per_row = 0;
};

ControllerBytes controller_bytes() {
  ActorSystem system;
  GroupOptions options;
  options.mesh = Mesh::data_parallel(8);
  auto group = WorkerGroup<Echo>::create(system, options);
  TROUPE_CHECK(group, "bench: {}", group.error().to_string());
  constexpr std::int64_t kRows = 8192;
  Batch prompts;
  Echo::check(prompts.set("prompt_id", Column::dense(std::vector<std::int64_t>(kRows, 1))));
  const std::int64_t copied_before = CopyCounter::bytes();
  auto answers = group->call<&Echo::answers>(prompts).wait();
  TROUPE_CHECK(answers, "bench: {}", answers.error().to_string());
  const HeldBytes held = held_bytes(*answers);
  const auto copied = static_cast<double>(CopyCounter::bytes() - copied_before);
  return {static_cast<double>(held.payload + held.metadata) / kRows, copied / kRows};
}

}  // namespace

int main(int count, char** words) {
  bool check = false;
  int calls = 2000;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--check") check = true;
    if (word == "--calls" && i + 1 < count) {
      const std::string_view number = words[i + 1];
      std::from_chars(number.data(), number.data() + number.size(), calls);
      calls = std::max(10, calls);
    }
  }
  fmt::print("{:>6} {:>18} {:>18} {:>18}   µs: p50 / p99\n", "ranks", "bare threads", "direct",
             "through shells");
  bool good = true;
  for (const int ranks : {1, 8, 64}) {
    const int rounds = ranks == 64 ? calls / 3 : calls;
    const Times bare = bare_threads(ranks, rounds);
    const Times direct = group_call(ranks, CallRoute::kDirect, rounds);
    const Times shells = group_call(ranks, CallRoute::kShells, rounds);
    const double bar = ranks == 8 ? 60 : ranks == 64 ? 400 : 1e9;
    const bool met = direct.p50 <= bar;
    good = good && met;
    fmt::print("{:>6} {:>8.1f} / {:>7.1f} {:>8.1f} / {:>7.1f} {:>8.1f} / {:>7.1f}   {}\n", ranks,
               bare.p50, bare.p99, direct.p50, direct.p99, shells.p50, shells.p99,
               ranks == 1 ? "" : fmt::format("bar {} µs: {}", bar, met ? "met" : "missed"));
  }
  const ControllerBytes bytes = controller_bytes();
  const bool small = bytes.held_per_row + bytes.copied_per_row <= 64;
  good = good && small;
  fmt::print("controller: {:.1f} bytes held and {:.1f} copied per row and step (bar 64: {})\n",
             bytes.held_per_row, bytes.copied_per_row, small ? "met" : "missed");
  return check && !good ? 1 : 0;
}
