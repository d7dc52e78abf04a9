#pragma once

// Fits a few constants of the cost models to measured times.
//
// Bounded least squares of ln(predicted / measured), by damped Gauss-Newton steps. A constant moves
// on [0, 1] between its bounds: in its logarithm where the lower bound is positive, else linearly.
// Its prior weighs in as one observation as wide as half of the range, so that what the
// measurements do not determine stays where it was, and is named: a constant counts as identified
// when the measurements halve that width.
// **Threads:** pure; calls predictions one after the other.
// **Invariants:** deterministic; fitted values lie in their ranges; the others keep theirs.
// **Cost:** predictions of (constants + 1) × observations for each of at most `rounds_max` rounds.

#include "runtime/base/result.hpp"
#include "sim/cost/constants.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troupe::sim {

/// A time that was measured, and how the models come to it.
struct Observation {
  std::string name{};
  double measured_s = 0;
  std::function<result<double>(const Constants&)> predict{};
  /// Standard deviation of ln measured; runs and models differ by more than clocks do.
  double noise = 0.02;
};

struct FitOptions {
  int rounds_max = 40;
  std::size_t constants_max = 8;
  double step = 0.01;  ///< of the range, for differences
};

struct FittedConstant {
  Constant constant{};
  double prior = 0;  ///< where it started
  double value = 0;
  double width = 0;  ///< standard deviation left, as a share of the range
  bool identified = false;
  bool at_bound = false;
};

struct FitResidual {
  std::string name{};
  double measured_s = 0;
  double before_s = 0;  ///< predicted with the constants that the fit started from
  double predicted_s = 0;
  double error() const;  ///< predicted over measured, less one
};

struct FittedConstants {
  Constants constants{};
  std::vector<FittedConstant> fitted{};
  std::vector<FitResidual> residuals{};
  int rounds = 0;

  double median_error() const;  ///< of the magnitudes
  double worst_error() const;
  /// Tables of constants and residuals, for people.
  std::string to_text() const;
};

/// kInvalidArgument for no observations, times that are no positive numbers, no constants, more
/// than `constants_max` or one twice; errors of predictions, with the observation's name.
result<FittedConstants> fit(std::span<const Observation> observations,
                            std::span<const Constant> constants, const Constants& start,
                            const FitOptions& options = {});

}  // namespace troupe::sim
