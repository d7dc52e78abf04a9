#pragma once

// Random numbers of a simulation, keyed by what they are for.
//
// A draw is a pure function of (seed, entity, purpose, index): adding an entity, or drawing more in
// one place, changes nothing elsewhere, so that two placements are compared under the same luck.
// Samplers invert distribution functions, written out here, because those of the standard library
// differ between implementations.
// **Threads:** values.
// **Invariants:** equal keys give equal draws on every machine with IEEE doubles.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::sim {

/// What a number is drawn for. Never renumber: results of saved seeds would change.
enum class Purpose : std::uint16_t {
  kPromptLength = 1,
  kGroupLength = 2,
  kSampleLength = 3,
  kFailure = 4,
  kRepair = 5,
  kReward = 6,
  kEnvironment = 7,
  kStepNoise = 8,
  kConstant = 9,
  kTest = 100,
};

struct DrawKey {
  std::uint64_t seed = 0;
  std::uint64_t entity = 0;
  Purpose purpose = Purpose::kTest;
  std::uint64_t index = 0;
};

/// Uniform in (0, 1), never the ends, with 53 bits.
double uniform(const DrawKey& key);
/// Mean 0, variance 1.
double normal(const DrawKey& key);
/// Mean 1.
double exponential(const DrawKey& key);

/// The standard normal quantile of p in (0, 1); |relative error| < 1e-15 (Wichura 1988, AS 241).
double normal_quantile(double p);
/// The standard normal distribution function.
double normal_cdf(double x);

}  // namespace troupe::sim
