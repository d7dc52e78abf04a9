#pragma once

// A real run's configuration as a simulated one.
//
// **Threads:** pure, but for files that keys name.
// **Invariants:** the schema is that of `troupe train` with the built-in names, so that a file
// which one accepts the other does too.

#include "runtime/config/config.hpp"
#include "runtime/config/schema.hpp"
#include "sim/scenario/scenario.hpp"

namespace troupe::apps {

runtime::Schema simulate_schema();

/// The run that `troupe simulate` simulates: roles, devices and pacing are read as `troupe train`
/// reads them.
result<sim::Scenario> simulated_scenario(const runtime::Config& config);
/// Its job alone.
result<sim::SimJob> simulated_job(const runtime::Config& config);

/// The same, whether it fits its devices or not: what a search of placements begins with.
result<sim::SimJob> unplaced_job(const runtime::Config& config);

}  // namespace troupe::apps
