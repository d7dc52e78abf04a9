// Embeds the scheduler: a cluster from a topology text, a queue of groups, one pass, and what to
// tell the users whose groups wait. No actors, no processes: the core is a library of values.

#include "placement/defragment.hpp"
#include "placement/explain.hpp"
#include "placement/scheduler.hpp"

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::placement;

constexpr std::string_view kTopology = R"({"nodes": [
  {"name": "gpu-{}", "count": 3, "rack": "r0", "domain": "nv0", "sockets": 2, "devices": 8,
   "cores": 64, "memory": 549755813888},
  {"name": "cpu-0", "rack": "r0", "cores": 32, "memory": 274877906944}]})";

constexpr std::string_view kGroups[] = {
    R"({"name": "train", "strategy": "STRICT_PACK", "level": "domain",
        "bundles": [{"gpu": 1, "cpu": 4, "count": 12}]})",
    R"({"name": "rollout", "strategy": "SPREAD", "bundles": [{"gpu": 1, "cpu": 2, "count": 3}]})",
    R"({"name": "huge", "bundles": [{"gpu": 16}]})",
    R"({"name": "evaluate", "strategy": "STRICT_PACK", "bundles": [{"gpu": 4, "count": 2}]})"};

void print(const Decision& decision) {
  switch (decision.kind) {
    case DecisionKind::kPlaced:
      std::printf("%s placed\n", decision.group.c_str());
      for (const BundlePlacement& bundle : decision.bundles)
        std::printf("  %s\n", to_string(bundle).c_str());
      break;
    case DecisionKind::kWaiting:
      std::printf("%s waits at position %zu\n", decision.group.c_str(), decision.position);
      break;
    case DecisionKind::kInfeasible:
      std::printf("%s infeasible: %s\n", decision.group.c_str(), decision.error->message.c_str());
      break;
    case DecisionKind::kRejected:
      std::printf("%s rejected: %s\n", decision.group.c_str(), decision.error->message.c_str());
  }
}

result<void> run() {
  TROUPE_TRY(std::vector<NodeSpec> nodes, parse_topology(kTopology, "topology"));
  TROUPE_TRY(Cluster cluster, Cluster::create(std::move(nodes)));
  std::vector<QueuedGroup> queue;
  for (const std::string_view text : kGroups) {
    TROUPE_TRY(GroupRequest request, parse_group_request(text, "group"));
    const auto arrival = static_cast<std::uint64_t>(queue.size());
    queue.push_back({.request = std::move(request), .arrival = arrival});
  }
  Scheduler scheduler;
  TROUPE_TRY(const PassResult pass, scheduler.pass(cluster, queue));
  for (const Decision& decision : pass.decisions) {
    print(decision);
    if (decision.kind == DecisionKind::kWaiting) continue;
    std::erase_if(queue, [&decision](const QueuedGroup& queued) {
      return queued.request.name == decision.group;
    });
  }

  const Explanation why = explain(cluster, scheduler, queue, "evaluate");
  std::printf("%s\n", why.to_string().c_str());
  const GroupRequest evaluate = queue.back().request;
  TROUPE_TRY(const Defragmentation plan, suggest_moves(cluster, evaluate));
  for (const Move& move : plan.moves)
    std::printf("move 1 bundle of %s from %s to %s\n", move.group.c_str(),
                move.from.node_name.c_str(), move.to.node_name.c_str());

  TROUPE_TRY_VOID(cluster.release("train"));
  print(scheduler.place_one(cluster, evaluate));
  return {};
}

int main() {
  if (const auto done = run(); !done) return std::puts(done.error().to_string().c_str()), 1;
  return 0;
}
