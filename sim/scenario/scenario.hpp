#pragma once

// From the configuration of a real run to what is simulated.
//
// The keys of `troupe train` say roles, layouts, batches, lengths' bounds and the loop; the section
// `simulation` says the rest (simulation_keys.hpp).
// **Threads:** pure, but for files that keys name (catalogues, lengths, profiles, config.json).
// **Invariants:** a scenario's job has passed `SimJob::check`; every refusal names key, value and
// the nearest possible value; what a real run does and the simulator leaves out stands in `notes`.

#include "runtime/config/config.hpp"
#include "sim/catalogue/catalogue.hpp"
#include "sim/scenario/simulation_keys.hpp"
#include "sim/world/sim_job.hpp"

#include <optional>
#include <string>
#include <vector>

namespace troupe::sim {

/// What the caller reads of the configuration, where its rules for real runs are.
struct ScenarioRoles {
  bool critic = false;
  bool reference = false;
  std::int64_t minibatch_prompts = 1;
  int rollout_devices = 0;  ///< of its own; 0: the trainer's
  SimPacing pacing{};
  bool fits = true;  ///< false: memory is not looked at, for a search of a place that fits
};

struct Scenario {
  /// Its steps go on beyond those of `sampling` by what rollout may run ahead, so that a run that
  /// is cut there does not show how one ends.
  SimJob job{};
  SampleKeys sampling{};
  std::vector<Constant> given{};         ///< constants that the configuration sets
  std::vector<std::string> placement{};  ///< a line a pool
  std::vector<std::string> notes{};      ///< what the simulator leaves out of this run
};

result<Scenario> read_scenario(const runtime::Config& config, const ScenarioRoles& roles);

/// `policy+reference:32:h20`.
struct RoleSet {
  std::vector<std::string> roles{};
  int devices = 0;
  std::string device{};  ///< empty: the kind of `simulation.device`
};
/// kConfig naming the text and what is wrong with it.
result<RoleSet> parse_role_set(const std::string& text);

}  // namespace troupe::sim
