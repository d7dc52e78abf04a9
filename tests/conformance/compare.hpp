#pragma once

// Published against predicted: with the constants' priors, and after fitting a few of them to one
// row of a system; and the page that shows it.
//
// **Threads:** pure.
// **Invariants:** deterministic, so that the page can be compared byte by byte; the fitted row is
// not counted among those that judge the fit.

#include "tests/conformance/predict.hpp"
#include "tests/conformance/published.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::conformance {

/// One phase of one row.
struct Compared {
  std::string row{};
  std::string phase{};
  double measured_s = 0;
  double prior_s = 0;   ///< with priors
  double fitted_s = 0;  ///< with the system's fitted constants
  bool fit_row = false;
};

/// Errors are |predicted / measured − 1|.
struct Errors {
  double median = 0;
  double worst = 0;
  std::size_t count = 0;
};

/// Whole steps, or the phases that were published beside them.
enum class Part : std::uint8_t { kSteps, kPhases };

struct SystemResult {
  System system{};
  std::vector<Compared> compared{};
  sim::FittedConstants fit{};
  Errors prior(Part part) const;
  Errors held_out(Part part) const;  ///< with fitted constants, rows that were not fitted
};

struct Results {
  std::vector<SystemResult> systems{};
  std::vector<std::pair<Row, std::map<std::string, double>>> blind{};  ///< seconds by phase
  std::vector<std::pair<Transition, double>> transitions{};
  std::vector<std::pair<GenerationTp, std::map<int, double>>> generation_tp{};
  std::vector<std::pair<Training, double>> training{};
  std::vector<std::pair<Placement, std::map<std::string, double>>> placements{};
  std::vector<std::pair<Tail, TailTime>> tails{};
  std::vector<std::pair<MemoryFact, MemoryNeed>> memory{};
  /// Of all systems, with priors and with fits.
  Errors prior(Part part) const;
  Errors held_out(Part part) const;
};

/// Key with the least time; empty for none.
std::string fastest(const std::map<std::string, double>& spans);
/// Whether `name` takes at most 2 % longer than the fastest.
bool ties(const std::map<std::string, double>& spans, const std::string& name);
/// Where generation is fastest, and how much less it takes than at the largest size.
int fastest(const std::map<int, double>& spans);
double saved(const std::map<int, double>& spans, int size);

result<Results> compare(const Published& published);

/// `docs/conformance.md`.
std::string page_of(const Published& published, const Results& results);

}  // namespace troupe::conformance
