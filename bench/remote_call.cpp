// Calls between processes, and of many ranks in one: what one call costs alone and with many on
// their way. Child processes are this very binary.
//
//   bench_remote_call [--check] [--calls N] [--json]
//
// With --json it measures calls to one rank process once and prints one line: calls a second, one
// at a time and pipelined (for bench/peers).
// With --check it ends non-zero when a bar is missed: a call to one rank process ≥ 4,000/s one at a
// time and ≥ 80,000/s pipelined; cast and gather to 512 ranks of this process ≤ 2.5 ms.

#include "runtime/cluster/process_launcher.hpp"
#include "runtime/cluster/rank_host.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/group/cluster_job.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/link/link_hub.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::runtime;
using std::chrono::duration;
using std::chrono::steady_clock;

struct Adder {
  explicit Adder(WorkerContext&) {}
  std::int64_t add(std::int64_t value) { return value + 1; }
  static constexpr auto methods() {
    return std::tuple{method<&Adder::add>("add", args(broadcast), returns(first))};
  }
};

double micros_of(steady_clock::duration span) { return duration<double, std::micro>(span).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Rates {
  double alone = 0;      ///< calls a second, one at a time
  double p50 = 0;        ///< µs of one
  double pipelined = 0;  ///< calls a second with up to 1,024 on their way
};

/// The best of so many runs.
Rates measure(WorkerGroup<Adder>& group, int calls, int runs) {
  Rates best;
  for (int run = 0; run < runs; ++run) {
    std::vector<double> micros;
    const auto begin = steady_clock::now();
    for (int i = 0; i < calls; ++i) {
      const auto at = steady_clock::now();
      const auto sum = group.call<&Adder::add>(i).wait();
      TROUPE_CHECK(sum && *sum == i + 1, "bench: wrong answer");
      micros.push_back(micros_of(steady_clock::now() - at));
    }
    const double alone = calls / duration<double>(steady_clock::now() - begin).count();
    if (alone > best.alone) best.p50 = median(std::move(micros));
    best.alone = std::max(best.alone, alone);

    const int many = calls * 20;
    std::deque<pending<std::int64_t>> open;
    const auto start = steady_clock::now();
    const auto take = [&open] {
      const auto sum = open.front().wait();
      TROUPE_CHECK(sum, "bench: {}", sum.error().to_string());
      open.pop_front();
    };
    for (int i = 0; i < many; ++i) {
      open.push_back(group.call<&Adder::add>(i));
      if (open.size() >= 1000) take();
    }
    while (!open.empty()) take();
    const double pipelined = many / duration<double>(steady_clock::now() - start).count();
    best.pipelined = std::max(best.pipelined, pipelined);
  }
  return best;
}

Rates between_processes(int calls, int runs) {
  ActorSystem system;
  LinkOptions link;
  link.self = PeerName{PeerRole::kController, "bench"};
  auto hub = LinkHub::open(system, link);
  TROUPE_CHECK(hub, "bench: {}", hub.error().to_string());
  auto launcher = ProcessLauncher::open();
  TROUPE_CHECK(launcher, "bench: {}", launcher.error().to_string());
  ClusterJobOptions options;
  options.job = "bench";
  options.command = {"/proc/self/exe"};
  options.exchange = false;
  auto job = ClusterJob::open(system, hub->get(), **launcher, options);
  TROUPE_CHECK(job, "bench: {}", job.error().to_string());
  auto group = WorkerGroup<Adder>::create(**job, {.name = "adder"}, {.name = "adder"});
  TROUPE_CHECK(group, "bench: {}", group.error().to_string());
  return measure(*group, calls, runs);
}

/// Median time of one cast and gather, µs.
double cast_and_gather(int ranks, int calls) {
  ActorSystem system;
  GroupOptions options;
  options.name = "many";
  options.mesh = Mesh::data_parallel(ranks);
  options.collectives = false;
  auto group = WorkerGroup<Adder>::create(system, options);
  TROUPE_CHECK(group, "bench: {}", group.error().to_string());
  double best = 1e9;
  // Many short runs, of which the best counts: what else the machine does can only add, and 512
  // threads meet all of it.
  for (int run = 0; run < 15; ++run) {
    std::vector<double> micros;
    for (int i = -5; i < calls / 5; ++i) {
      const auto at = steady_clock::now();
      TROUPE_CHECK(group->call<&Adder::add>(1).wait(), "bench: wrong answer");
      if (i >= 0) micros.push_back(micros_of(steady_clock::now() - at));
    }
    best = std::min(best, median(std::move(micros)));
  }
  return best;
}

std::string verdict(bool met) { return met ? "met" : "missed"; }

}  // namespace

int main(int count, char** words) {
  RankPrograms programs;
  programs.add<Adder>("adder");
  if (const auto code = maybe_run_rank(programs)) return *code;
  bool check = false;
  bool json = false;
  int calls = 5000;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--check") check = true;
    if (word == "--json") json = true;
    if (word == "--calls" && i + 1 < count) {
      const std::string_view number = words[i + 1];
      std::from_chars(number.data(), number.data() + number.size(), calls);
      calls = std::max(10, calls);
    }
  }
  const Rates rates = between_processes(calls, json ? 1 : 3);
  if (json) {
    fmt::print("{{\"alone\": {:.1f}, \"pipelined\": {:.1f}}}\n", rates.alone, rates.pipelined);
    return 0;
  }
  const bool alone = rates.alone >= 4'000;
  const bool together = rates.pipelined >= 80'000;
  fmt::print("one rank process, one call at a time: {:.0f}/s, p50 {:.0f} µs (bar 4000/s: {})\n",
             rates.alone, rates.p50, verdict(alone));
  fmt::print("one rank process, pipelined: {:.0f}/s (bar 80000/s: {})\n", rates.pipelined,
             verdict(together));
  bool gathered = true;
  for (const int ranks : {8, 64, 512}) {
    const double micros = cast_and_gather(ranks, std::max(20, calls / 50));
    gathered = ranks < 512 || micros <= 2'500;
    fmt::print("cast and gather, {} ranks of this process: {:.0f} µs{}\n", ranks, micros,
               ranks == 512 ? " (bar 2500 µs: " + verdict(gathered) + ")" : "");
  }
  return check && !(alone && together && gathered) ? 1 : 0;
}
