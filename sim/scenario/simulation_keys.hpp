#pragma once

// The keys of the section `simulation`: what a real run finds out by itself and a simulated one has
// to be told.
//
// They are part of the schema of `troupe train`, so that one file serves both; a real run checks
// them, says that it leaves them alone, and does.
// **Threads:** pure functions.
// **Invariants:** defaults are no claim: what decides the outcome and has no honest default (the
// device, how long answers are) must be given before a run is simulated (scenario.hpp).

#include "runtime/config/config.hpp"
#include "runtime/config/schema.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::sim {

void declare_simulation(runtime::Schema& schema);

/// Keys of the section that were given, `key = value` each; for a real run to say what it ignores.
std::vector<std::string> given_simulation_keys(const runtime::Config& config);

/// What is asked of a report.
struct SampleKeys {
  std::int64_t steps = 1;          ///< that are simulated
  std::int64_t warm_up_steps = 1;  ///< that numbers leave out
  std::int64_t samples = 16;       ///< runs with other seeds and constants
};
SampleKeys sample_keys(const runtime::Config& config);

}  // namespace troupe::sim
