#pragma once

// Sentences about candidates: what binds one, and what is missing when there is none.
//
// **Threads:** pure.

#include "sim/plan/plan.hpp"
#include "sim/plan/search.hpp"

#include <string>

namespace troupe::sim {

/// The longest part of a step and what binds it.
std::string why_of(RoleTimes& times, const Candidate& candidate, const Estimate& estimate);

/// Nothing fits: the least bytes of the roles that are too large, and the nearest number of
/// devices that would do, if any within sixteen times as many does.
Error infeasible(const PlanRequest& request);

}  // namespace troupe::sim
