// The scheduling core alone: no actors, no bytes, one thread.
//
//   bench_placement [--check] [--nodes N] [--groups N]
//
// Times are CPU time of the one thread that works. Prints how many groups a second are created and
// removed again (one bundle, 40 bundles), and how long one pass takes that decides 1,000 queued
// groups of mixed shapes on 1,000 nodes × 8 GPUs with the topology scored: on an empty cluster, and
// on a full one where most must wait. With --check it ends non-zero when a bar is missed: one
// bundle ≥ 100,000/s, 40 bundles ≥ 5,000/s, either pass ≤ 1 s. The part through actors is
// bench/placement_actors.cpp.

#include "placement/scheduler.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::placement;

/// Time of this thread's own work: what else the machine does must not count.
double cpu_seconds() {
  timespec now{};
  TROUPE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0, "bench: no thread clock");
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Racks of 64 nodes, NVLink domains of 8, two sockets with four devices each; every sixteenth node
/// has no devices.
Cluster make_cluster(std::int32_t nodes) {
  std::vector<NodeSpec> specs;
  for (std::int32_t i = 0; i < nodes; ++i) {
    NodeSpec spec;
    spec.name = fmt::format("node{}", i);
    spec.rack = fmt::format("rack{}", i / 64);
    spec.domain = fmt::format("nv{}", i / 8);
    spec.sockets = 2;
    spec.cores = 128;
    spec.memory = gibibytes(2048);
    for (std::int32_t d = 0; d < 8 && i % 16 != 15; ++d)
      spec.devices.push_back({.socket = d / 4, .nic = fmt::format("mlx5_{}", d)});
    if (i % 4 == 0) spec.labels["pool"] = "fast";
    specs.push_back(std::move(spec));
  }
  auto cluster = Cluster::create(std::move(specs));
  TROUPE_CHECK(cluster, "bench: {}", cluster.error().message);
  return std::move(*cluster);
}

Bundle gpu_bundle(std::int32_t gpus) {
  return {.resources = {.gpu = Amount::whole(gpus),
                        .cpu = Amount::whole(8 * gpus),
                        .memory = gibibytes(64 * gpus)}};
}

GroupRequest group_of(std::string name, std::vector<Bundle> bundles,
                      Strategy strategy = Strategy::kPack, Level level = Level::kNode) {
  return {
      .name = std::move(name), .bundles = std::move(bundles), .strategy = strategy, .level = level};
}

/// The shapes of a training cluster: single cards, nodes, several nodes, mixed roles, fractions,
/// and work without devices.
GroupRequest mixed_group(std::string name, Rng& rng) {
  const std::uint64_t kind = rng.below(10);
  const auto count = [&rng](std::uint64_t most) {
    return static_cast<std::size_t>(1 + rng.below(most));
  };
  if (kind < 3) return group_of(std::move(name), std::vector(count(8), gpu_bundle(1)));
  if (kind == 3) {
    return group_of(std::move(name), std::vector(count(8), gpu_bundle(8)), Strategy::kStrictPack,
                    Level::kDomain);
  }
  if (kind == 4) {
    return group_of(std::move(name), std::vector(count(16), gpu_bundle(4)), Strategy::kSpread);
  }
  if (kind == 5) {
    return group_of(std::move(name), std::vector(count(12), gpu_bundle(2)),
                    Strategy::kStrictSpread);
  }
  if (kind == 6) {  // trainers, rollouts and a reward model in one group
    std::vector<Bundle> bundles(count(4), gpu_bundle(8));
    bundles.insert(bundles.end(), count(8), gpu_bundle(2));
    bundles.push_back({.resources = {.cpu = Amount::whole(16), .memory = gibibytes(32)}});
    return group_of(std::move(name), std::move(bundles));
  }
  if (kind == 7) {
    const Bundle shared{.resources = {.gpu = Amount{5'000}, .cpu = Amount::whole(2)}};
    return group_of(std::move(name), std::vector(count(6), shared));
  }
  if (kind == 8) {
    const Bundle cpu{.resources = {.cpu = Amount::whole(4), .memory = gibibytes(16)}};
    return group_of(std::move(name), std::vector(count(16), cpu), Strategy::kSpread);
  }
  GroupRequest request = group_of(std::move(name), std::vector(8 * count(2), gpu_bundle(1)),
                                  Strategy::kPack, Level::kDomain);
  request.per_domain_exact = 8;
  for (Bundle& bundle : request.bundles)
    bundle.selectors.push_back({.label = "pool", .op = SelectorOp::kEqual, .values = {"fast"}});
  return request;
}

/// Groups created and removed a second; the best of three runs.
double create_and_remove(Cluster& cluster, const GroupRequest& request, int groups) {
  double best = 0;
  for (int run = 0; run < 3; ++run) {
    Scheduler scheduler;
    const double begin = cpu_seconds();
    for (int i = 0; i < groups; ++i) {
      const Decision decision = scheduler.place_one(cluster, request);
      TROUPE_CHECK(decision.kind == DecisionKind::kPlaced, "bench: not placed");
      TROUPE_CHECK(cluster.release(request.name), "bench: not released");
    }
    best = std::max(best, groups / (cpu_seconds() - begin));
  }
  return best;
}

struct PassTime {
  double seconds = 0;
  std::map<DecisionKind, int> kinds = {};
};

PassTime one_pass(Cluster cluster, Scheduler& scheduler, const std::vector<QueuedGroup>& queue) {
  const double begin = cpu_seconds();
  const auto result = scheduler.pass(cluster, queue);
  PassTime time{.seconds = cpu_seconds() - begin};
  TROUPE_CHECK(result, "bench: {}", result.error().message);
  for (const Decision& decision : result->decisions) ++time.kinds[decision.kind];
  cluster.check_invariants();
  return time;
}

std::vector<QueuedGroup> make_queue(int groups, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<QueuedGroup> queue;
  for (int i = 0; i < groups; ++i)
    queue.push_back({.request = mixed_group(fmt::format("group{}", i), rng),
                     .arrival = static_cast<std::uint64_t>(i)});
  return queue;
}

void print_pass(std::string_view what, const PassTime& time, int groups) {
  fmt::print(
      "{:<36} {:8.3f} s  {:6.0f} µs a group: {} placed, {} wait, {} infeasible\n", what,
      time.seconds, time.seconds * 1e6 / groups,
      time.kinds.contains(DecisionKind::kPlaced) ? time.kinds.at(DecisionKind::kPlaced) : 0,
      time.kinds.contains(DecisionKind::kWaiting) ? time.kinds.at(DecisionKind::kWaiting) : 0,
      time.kinds.contains(DecisionKind::kInfeasible) ? time.kinds.at(DecisionKind::kInfeasible)
                                                     : 0);
}

}  // namespace

int main(int argc, char** argv) {
  bool check = false;
  int nodes = 1000;
  int groups = 1000;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    int* number = option == "--nodes" ? &nodes : (option == "--groups" ? &groups : nullptr);
    if (option == "--check") {
      check = true;
    } else if (number != nullptr && i + 1 < argc) {
      const char* text = argv[++i];
      std::from_chars(text, text + std::strlen(text), *number);
    } else {
      fmt::print(stderr, "usage: bench_placement [--check] [--nodes N] [--groups N]\n");
      return 2;
    }
  }
  Cluster cluster = make_cluster(nodes);
  const double single = create_and_remove(cluster, group_of("one", {gpu_bundle(1)}), 20'000);
  fmt::print("create + remove, 1 bundle            {:10.0f} /s on {} nodes\n", single, nodes);
  const double forty =
      create_and_remove(cluster, group_of("forty", std::vector(40, gpu_bundle(1))), 1'000);
  fmt::print("create + remove, 40 bundles          {:10.0f} /s\n", forty);
  Scheduler scheduler;
  const auto queue = make_queue(groups, 1);
  const PassTime empty = one_pass(cluster, scheduler, queue);
  print_pass("pass on an empty cluster", empty, groups);
  const auto more = make_queue(groups, 2);
  Cluster full = cluster;
  Scheduler filling;
  std::vector<QueuedGroup> filler = make_queue(4 * groups, 3);
  for (QueuedGroup& queued : filler) queued.request.name = "filler-" + queued.request.name;
  TROUPE_CHECK(filling.pass(full, filler), "bench: pass");
  Scheduler waiting;
  const PassTime crowded = one_pass(full, waiting, more);
  print_pass("pass on a full cluster", crowded, groups);
  const bool met =
      single >= 100'000 && forty >= 5'000 && empty.seconds <= 1 && crowded.seconds <= 1;
  if (!met) fmt::print("a bar was missed\n");
  return check && !met ? 1 : 0;
}
