#pragma once

// The search: branch and bound over partitions, devices, layouts and loops.
//
// A shape is a partition of the roles with a loop. Of each shape the best candidates are found by
// giving devices to one set after the other; what is left to give is bounded from below by the
// least that each remaining set could take in each stage. `search_all` looks at every candidate
// instead and finds the same best.
// **Threads:** one.
// **Invariants:** deterministic; of equally good candidates the first in order of shapes, devices
// (more first) and layouts is kept.

#include "sim/plan/set_options.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace troupe::sim {

struct Found {
  Candidate candidate{};
  Estimate estimate{};
};

/// A partition of the roles, by masks in the order of their first roles, and the loop over it.
struct PlanShape {
  std::vector<RoleMask> sets{};
  SimMode mode = SimMode::kSynchronous;
  std::int64_t staleness = 0;
};

/// All partitions of `roles`: as many as Bell numbers say.
std::vector<std::vector<RoleMask>> partitions_of(const std::vector<PlanRole>& roles);
/// Shapes that the request admits: loops that run ahead need rollout on devices of its own, and
/// pipelined ones learn without a critic, once from all samples.
std::vector<PlanShape> shapes_of(const PlanRequest& request);

struct SearchOptions {
  std::size_t best = 16;     ///< candidates wanted
  std::size_t of_shape = 2;  ///< of one shape, at most
  /// Which shapes are looked at; empty: all.
  std::function<bool(const PlanShape&)> wanted{};
  bool halves = false;  ///< all sets of a shape have equally many devices, all that there are
};

struct Searched {
  std::vector<Found> best{};    ///< by the objective
  std::uint64_t looked_at = 0;  ///< combinations whose estimate was made
};

/// May be empty: nothing fits.
result<Searched> search(SetOptions& options, const SearchOptions& wanted = {});

/// The best by estimating every candidate there is: for small requests only.
result<std::optional<Found>> search_all(RoleTimes& times);

}  // namespace troupe::sim
