#pragma once

// Two reports next to each other.
//
// **Threads:** pure.

#include "sim/report/sim_report.hpp"

#include <string>
#include <vector>

namespace troupe::sim {

struct ComparedNumber {
  std::string name{};   ///< as in `SimReport::numbers`
  std::string label{};  ///< for people
  double a = 0;
  double b = 0;
};

/// Numbers that either has, the step first, then its parts by how much they differ.
std::vector<ComparedNumber> compared_numbers(const SimReport& a, const SimReport& b);

/// Sentences: which is faster, which parts make the difference, what devices wait for, and whether
/// the spreads of the two overlap.
std::vector<std::string> reasons(const SimReport& a, const SimReport& b);

}  // namespace troupe::sim
