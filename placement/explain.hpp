#pragma once

// Why a group cannot be placed, now or ever, and what would let it run.
//
// **Threads:** pure functions on values.
// **Cost:** not for the hot path: every node is looked at, and the search runs.

#include "placement/scheduler.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::placement {

enum class Constraint : std::uint8_t {
  kGpu,
  kCpu,
  kMemory,
  kNamed,
  kSelector,  ///< labels
  kDraining,
  kAffinity,
  kHeld,      ///< free, but held for a group before it
  kStrategy,  ///< strict pack, spread, per-domain numbers
  kFits,      ///< nothing is wrong here alone
};
std::string_view constraint_name(Constraint constraint);

/// What one node or domain says to one shape of bundle.
struct Refusal {
  std::string place;        ///< `node gpu-1`, `domain nv0`
  std::int32_t bundle = 0;  ///< the first of its shape
  Constraint constraint = Constraint::kFits;
  std::string resource = {};  ///< `gpu`, `license`, or the selector, or the other group
  std::string wanted = {};
  std::string found = {};
  bool by_capacity = false;               ///< also when the place is empty
  std::vector<std::string> held_by = {};  ///< groups that hold the resource here
  std::int32_t bundles_fitting = 0;       ///< how many of this shape fit here now

  /// `node gpu-1: gpu wanted 4, free 2 (held by train, eval)`.
  std::string to_string() const;
};

enum class GroupState : std::uint8_t { kActive, kWaiting, kInfeasible, kRejected, kUnknown };
std::string_view group_state_name(GroupState state);

struct Explanation {
  std::string group;
  GroupState state = GroupState::kUnknown;
  WaitReason wait = WaitReason::kNone;
  std::size_t position = 0;             ///< in the queue, from 1; 0: not queued
  std::vector<std::string> ahead = {};  ///< queued groups that are tried before it
  std::vector<Refusal> nodes = {};      ///< one per node and shape that does not fit there
  std::vector<Refusal> domains = {};    ///< of the request's level, when a strict rule fails
  std::vector<std::string> would_run_when = {};  ///< groups whose end would make room, fewest found
  std::string summary = {};                      ///< one sentence
  std::optional<Error> error = {};               ///< when infeasible or rejected

  /// Several lines, for people; at most `refusals_max` of nodes and of domains.
  std::string to_string(std::size_t refusals_max = 20) const;
};

/// Looks the group up in the queue, then among the active ones.
Explanation explain(const Cluster& cluster, const Scheduler& scheduler,
                    std::span<const QueuedGroup> queue, std::string_view group);

/// What is missing so that the nodes could ever hold the request: the closest node or domain, the
/// resource, wanted and found. kResourceExhausted. Call it when the search proved kNone.
Error describe_infeasible(const Cluster& cluster, const GroupRequest& request,
                          const std::map<std::int32_t, BundlePlacement>& kept);

}  // namespace troupe::placement
