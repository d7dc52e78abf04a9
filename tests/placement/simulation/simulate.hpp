#pragma once

// One run of the placement protocol under simulation: head, nodes, clients, ledger and network in
// one thread on virtual time, with faults; invariants after every event, then a liveness phase.
//
// **Threads:** one a call.
// **Invariants:** everything follows from the options; equal options give equal hashes.

#include "placement/node_reservations.hpp"
#include "placement/placement_core.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::placement::simulation {

struct SimOptions {
  std::uint64_t seed = 0;
  CoreMutation core_mutation = CoreMutation::kNone;
  NodeMutation node_mutation = NodeMutation::kNone;
  bool keep_log = false;
};

/// What happened, so that a run which tests nothing is noticed.
struct SimCounts {
  std::uint64_t events = 0;
  std::uint64_t created = 0;
  std::uint64_t refused = 0;
  std::uint64_t activated = 0;
  std::uint64_t moved = 0;
  std::uint64_t lost = 0;
  std::uint64_t resized = 0;
  std::uint64_t removed = 0;
  std::uint64_t head_restarts = 0;
  std::uint64_t node_deaths = 0;
  std::uint64_t passes = 0;
  std::uint64_t stale = 0;     ///< passes and replies that were dropped
  std::uint64_t refusals = 0;  ///< operations that nodes refused
};

struct SimReport {
  std::uint64_t hash = 0;
  SimCounts counts{};
  std::optional<std::string> failure{};  ///< names the invariant and the virtual time
  std::vector<std::string> log{};        ///< the last lines, or all with keep_log
};

SimReport simulate(const SimOptions& options);

}  // namespace troupe::placement::simulation
