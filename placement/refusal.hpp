#pragma once

// Which resource of a node or domain is short for a shape of bundle, in words.
//
// **Threads:** belongs to one owner. For the .cpp files of this folder.

#include "placement/constraints.hpp"
#include "placement/explain.hpp"
#include "placement/problem.hpp"
#include "placement/search_state.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::placement {

/// One resource of a node that is too small for one bundle.
struct ShortResource {
  Constraint constraint = Constraint::kFits;
  std::string name = {};    ///< `gpu`, `cpu`, `memory` or the named resource
  std::string wanted = {};  ///< with unit, e.g. `64.0 GiB`
  std::string found = {};
  double share = 0;  ///< found / wanted
};

/// All that is too small on a node; empty when one bundle fits. At socket and device level what the
/// best of them has.
std::vector<ShortResource> short_resources(const Problem& problem, const SiteList& sites,
                                           SearchState& state, const Shape& shape,
                                           std::size_t position);

/// Marks where bundles may go by labels, draining and (if the rules have any) strict affinities.
void set_eligible(Problem& problem, const NodeRules& rules);

/// What a shape is called in messages: `gpu 1, cpu 8`.
std::string shape_text(const Problem& problem, const Shape& shape);

}  // namespace troupe::placement
