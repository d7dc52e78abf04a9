// Collectives in one process and over Gloo on the loopback: what a meeting costs, and how fast a
// sum moves. Prints p50 and p99 of barrier and of a small all_reduce, and GB/s of a big one, for 2
// and 4 ranks that are threads here, beside memcpy of the same bytes.
//
//   bench_collective [--check]
//
// With --check it ends non-zero when a bar is missed, at 2 ranks: barrier p50 over Gloo ≤ 1 ms,
// all_reduce of 64 MiB over Gloo ≥ 0.2 of the same in one process.

#include "runtime/base/check.hpp"
#include "runtime/comm/collective_gloo.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::runtime;
using Handles = std::vector<std::unique_ptr<Collective>>;
using std::chrono::duration;
using std::chrono::steady_clock;

void require(const result<void>& done) {
  TROUPE_CHECK(done.has_value(), "{}", done.error().to_string());
}

Deadline soon() { return Deadline::in(std::chrono::seconds(60)); }

Handles gloo_group(int size) {
  auto store = std::make_shared<LocalRendezvous>();
  Handles handles(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const GlooGroupOptions options{.name = "bench", .rank = rank, .size = size};
      handles[static_cast<std::size_t>(rank)] =
          std::move(make_gloo_collective(options, store, soon()).value());
    });
  }
  for (auto& thread : threads) thread.join();
  return handles;
}

struct Times {
  double p50_us = 0;
  double p99_us = 0;
};

/// `step(handle)` on all ranks; times are those of rank 0.
template <class Step>
Times timed(Handles& handles, int count, const Step& step) {
  std::vector<double> times;
  std::vector<std::thread> threads;
  for (auto& handle : handles) {
    threads.emplace_back([&, group = handle.get()] {
      for (int i = 0; i < count; ++i) {
        const auto begin = steady_clock::now();
        step(*group);
        if (group->rank() == 0)
          times.push_back(duration<double, std::micro>(steady_clock::now() - begin).count());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

double memcpy_gb_per_s(std::size_t bytes) {
  std::vector<std::byte> from(bytes), to(bytes);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto begin = steady_clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    best = std::max(best, static_cast<double>(bytes) / 1e9 /
                              duration<double>(steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

int main(int count, char** words) {
  const bool check = count > 1 && std::string_view(words[1]) == "--check";
  constexpr std::size_t kBig = std::size_t{16} << 20;  // floats
  const double floor = memcpy_gb_per_s(kBig * sizeof(float));
  fmt::print("memcpy of 64 MiB: {:.1f} GB/s\n", floor);
  bool good = true;
  double local_rate = 0;
  for (const int ranks : {2, 4}) {
    for (const bool gloo : {false, true}) {
      Handles handles = gloo ? gloo_group(ranks) : make_local_group(ranks);
      const Times barrier =
          timed(handles, 500, [](Collective& group) { require(group.barrier(soon())); });
      const Times small = timed(handles, 500, [](Collective& group) {
        std::vector<float> data(1000, 1.0F);
        require(group.all_reduce(data, ReduceOp::kSum, soon()));
      });
      const Times big = timed(handles, 5, [](Collective& group) {
        std::vector<float> data(kBig, 1.0F);
        require(group.all_reduce(data, ReduceOp::kSum, soon()));
      });
      const double rate = kBig * sizeof(float) / 1e3 / big.p50_us;  // GB/s
      fmt::print(
          "{:5} {} ranks: barrier p50 {:7.1f} µs p99 {:8.1f}; all_reduce of 4 KB p50 {:7.1f} µs; "
          "of 64 MiB {:.2f} GB/s, {:.2f} of memcpy\n",
          gloo ? "gloo" : "local", ranks, barrier.p50_us, barrier.p99_us, small.p50_us, rate,
          rate / floor);
      if (!gloo) local_rate = rate;
      if (gloo && ranks == 2) good = barrier.p50_us <= 1000 && rate >= 0.2 * local_rate;
    }
  }
  if (check && !good) fmt::print("FAILED: a bar was missed\n");
  return check && !good ? 1 : 0;
}
