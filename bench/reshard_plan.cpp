// The planner alone: one thread, no bytes moved.
//
//   bench_reshard_plan [--check]
//
// Plans the moves of published model shapes and prints cells, operations, bytes on the network
// beside the least that can be, balance, memory and time, and beside them what the prototype that
// the design rests on measured. Times are CPU time of the one thread, the best of five; rosters are
// built before. With --check it ends non-zero when a bar is missed: 100 ms for about 40,000
// operations and 1 s for about 310,000; 64 bytes for each operation; largest over average egress
// and ingress 1.06 at cells of 16 MiB; bytes on the network equal to the lower bound.

#include "reshard/plan.hpp"
#include "reshard/rosters.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::reshard;

double cpu_seconds() {
  timespec now{};
  TROUPE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0, "bench: no thread clock");
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// One row of the table, and what the prototype said.
struct Move {
  std::string name;
  ModelShape shape;
  TrainMesh train;
  RolloutMesh rollout;
  PlanOptions options = {};
  double seconds_max = 1.0;
  std::string prototype;
};

ModelShape qwen_7b() {
  return {.vocab = 152064,
          .hidden = 3584,
          .intermediate = 18944,
          .layers = 28,
          .heads = 28,
          .kv_heads = 4,
          .head_dim = 128,
          .qkv_bias = true,
          .dtype = DType::kBf16};
}

ModelShape qwen3_small() {
  return {.vocab = 151936,
          .hidden = 1024,
          .intermediate = 3072,
          .layers = 28,
          .heads = 16,
          .kv_heads = 8,
          .head_dim = 128,
          .tied = true,
          .qk_norm = true,
          .dtype = DType::kBf16};
}

ModelShape qwen3_30b() {
  return {.vocab = 151936,
          .hidden = 2048,
          .layers = 48,
          .heads = 32,
          .kv_heads = 4,
          .head_dim = 128,
          .qk_norm = true,
          .expert = {.experts = 128, .intermediate = 768},
          .dtype = DType::kBf16};
}

ModelShape large_experts() {
  return {.vocab = 151936,
          .hidden = 4096,
          .layers = 94,
          .heads = 64,
          .kv_heads = 4,
          .head_dim = 128,
          .qk_norm = true,
          .expert = {.experts = 128, .intermediate = 1536},
          .dtype = DType::kBf16};
}

TrainMesh megatron(std::int64_t tp, std::int64_t dp, std::int64_t pp, std::int64_t ep = 1) {
  return {.tp = tp,
          .dp = dp,
          .pp = pp,
          .style = CutStyle::kMegatron,
          .vocab_multiple = 128 * tp,
          .ep = ep};
}

std::vector<Move> moves() {
  std::vector<Move> list;
  list.push_back({.name = "7B tp4 pp2 dp2 > 4 x tp4",
                  .shape = qwen_7b(),
                  .train = megatron(4, 2, 2),
                  .rollout = {.replicas = 4, .tp = 4},
                  .prototype = "1185 / 2370, 30.46 GB, 1.000"});
  list.push_back({.name = "7B tp4 pp2 dp2 > 8 x tp2",
                  .shape = qwen_7b(),
                  .train = megatron(4, 2, 2),
                  .rollout = {.replicas = 8, .tp = 2},
                  .prototype = "1185 / 2370, 30.46 GB, 1.000"});
  for (const auto& [mebibytes, prototype] : std::vector<std::pair<std::int64_t, std::string>>{
           {64, "1.087"}, {16, "955 / 955, 1.192 GB, 1.052"}, {4, "1.014"}})
    list.push_back({.name = fmt::format("0.6B tp2 pp2 dp2 > 8 x tp1, {} MiB", mebibytes),
                    .shape = qwen3_small(),
                    .train = megatron(2, 2, 2),
                    .rollout = {.replicas = 8},
                    .options = {.cell_bytes_max = mebibytes << 20},
                    .prototype = prototype});
  list.push_back({.name = "30B-A3B tp4 dp4 ep16 > 2 x tp8 ep8",
                  .shape = qwen3_30b(),
                  .train = megatron(4, 4, 1, 16),
                  .rollout = {.replicas = 2, .tp = 8, .expert_parallel = true},
                  .seconds_max = 0.1,
                  .prototype = "19751 / 39502, 122.1 GB, 1.000, 0.5 s"});
  list.push_back({.name = "235B tp4 dp16 ep64 > 8 x tp8 ep8",
                  .shape = large_experts(),
                  .train = megatron(4, 16, 1, 64),
                  .rollout = {.replicas = 8, .tp = 8, .expert_parallel = true},
                  .prototype = "38657 / 309256, 3761 GB, 1.000, 2.6 s"});
  const std::string none = "-";
  TrainMesh sharded{.dp = 64, .style = CutStyle::kUnfused, .shard = ShardStyle::kRows};
  list.push_back({.name = "7B fsdp rows 64 > 8 x tp4",
                  .shape = qwen_7b(),
                  .train = sharded,
                  .rollout = {.replicas = 8, .tp = 4},
                  .prototype = none});
  sharded.shard = ShardStyle::kFlat;
  list.push_back({.name = "7B fsdp flat 64 > 8 x tp4",
                  .shape = qwen_7b(),
                  .train = sharded,
                  .rollout = {.replicas = 8, .tp = 4},
                  .prototype = none});
  list.push_back({.name = "0.6B tp2 pp2 dp2 > 64 x tp1, relays",
                  .shape = qwen3_small(),
                  .train = megatron(2, 2, 2),
                  .rollout = {.replicas = 64},
                  .prototype = none});
  return list;
}

template <class T>
T made(result<T> value) {
  TROUPE_CHECK(value, "bench: {}", value.error().message);
  return std::move(*value);
}

/// What must cross at least, without the planner: each node of the target needs the union of the
/// rows that its ranks hold of each tensor. Source and target share no node here, and the boxes of
/// a tensor on one node are alike or disjoint.
std::int64_t lower_bound(const Roster& target) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::set<Box>> needed;  // node, tensor
  for (const RankLayout& rank : target.ranks) {
    for (const Segment& segment : rank.segments)
      needed[{rank.node, segment.tensor}].insert(segment.box);
  }
  std::int64_t bytes = 0;
  for (const auto& [key, boxes] : needed) {
    const TensorInfo& tensor = target.tensors[static_cast<std::size_t>(key.second)];
    for (const Box& box : boxes) bytes += box.elements() * element_bytes(tensor.dtype);
  }
  return bytes;
}

struct Spread {
  double egress = 0;
  double ingress = 0;
};

/// Of the sources' sending and the targets' receiving; what relays send is not the sources'.
Spread spread_of(const Plan& plan) {
  std::int64_t out_max = 0, out = 0, in_max = 0, in = 0, sources = 0, targets = 0;
  for (const RankTraffic& entry : plan.traffic) {
    if (entry.is_source) {
      ++sources;
      out += entry.network_out_bytes;
      out_max = std::max(out_max, entry.network_out_bytes);
    }
    if (entry.is_target) {
      ++targets;
      in += entry.network_in_bytes;
      in_max = std::max(in_max, entry.network_in_bytes);
    }
  }
  return {static_cast<double>(out_max * sources) / static_cast<double>(out),
          static_cast<double>(in_max * targets) / static_cast<double>(in)};
}

bool bar(bool kept, const std::string& what) {
  if (!kept) fmt::print("  MISSED: {}\n", what);
  return kept;
}

/// What the sources send over the network.
std::int64_t source_bytes(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const RankTraffic& entry : plan.traffic)
    bytes += entry.is_source ? entry.network_out_bytes : 0;
  return bytes;
}

bool measure(const Move& move) {
  const Roster source = made(train_roster(move.shape, move.train));
  const auto ranks = static_cast<std::int32_t>(move.train.ranks());
  const Roster target = made(rollout_roster(move.shape, move.rollout,
                                            {.first_rank = ranks, .first_node = (ranks + 7) / 8}));
  double best = 1e9;
  Plan planned;
  for (int run = 0; run < 5; ++run) {
    const double begin = cpu_seconds();
    planned = made(plan(source, target, move.options));
    best = std::min(best, cpu_seconds() - begin);
  }
  const Spread spread = spread_of(planned);
  const std::int64_t least = lower_bound(target);
  const auto ops = static_cast<double>(planned.ops.size());
  const double op_bytes = static_cast<double>(planned.operation_memory_bytes()) / ops;
  fmt::print(
      "{:<36} {:>6} / {:<6} {:>9.3f} GB  egress {:.3f} ingress {:.3f}  {:>4.1f} B/op  "
      "{:>7.2f} ms  {}\n",
      move.name, planned.cells, planned.ops.size(),
      static_cast<double>(planned.network_bytes()) * 1e-9, spread.egress, spread.ingress, op_bytes,
      best * 1e3, move.prototype);
  bool kept =
      bar(planned.network_bytes() == least,
          fmt::format("{} bytes on the network, lower bound {}", planned.network_bytes(), least));
  kept &= bar(best <= move.seconds_max, fmt::format("{:.3f} s, bar {} s", best, move.seconds_max));
  // Here every node of the target needs the whole model.
  const std::int64_t nodes = target.ranks.back().node - target.ranks.front().node + 1;
  kept &= bar(source_bytes(planned) * (planned.relays ? nodes : 1) == least,
              "with relays each byte leaves the sources once");
  kept &= bar(op_bytes <= 64, fmt::format("{:.1f} bytes per operation, bar 64", op_bytes));
  if (move.options.cell_bytes_max <= std::int64_t{16} << 20) {
    kept &= bar(spread.egress <= 1.06 && spread.ingress <= 1.06, "largest over average, bar 1.06");
  }
  return kept;
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::strcmp(argv[1], "--check") == 0;
  fmt::print("{:<36} {:>6} / {:<6} {:>12}  {:<28}  {:>9}  {:>10}  prototype\n", "move", "cells",
             "ops", "network", "largest / average", "memory", "time");
  bool kept = true;
  for (const Move& move : moves()) kept &= measure(move);
  return check && !kept ? 1 : 0;
}
