#pragma once

// Keys of rewards that are commands in a sandbox, and of environments: declaration, rules, reading.
//
// **Threads:** pure functions, but for looking at files that a command names.
// **Invariants:** keys of what is not asked for are checked and otherwise ignored; a combination
// that cannot work is a kConfig error that names its key and both values.

#include "actors/roles/judge_specs.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/schema.hpp"

#include <optional>
#include <vector>

namespace troupe::apps {

/// Declares `reward_model.sandbox.*`, `environment.*`, and their rules.
void declare_judges(runtime::Schema& schema);

/// The reward command, if there is one.
std::vector<actors::CommandRewardSpec> reward_commands(const runtime::Config& config);
/// True when samples have turns.
bool wants_environment(const runtime::Config& config);
std::optional<actors::EnvironmentOptions> environment_options(const runtime::Config& config);
/// The environment that is a command, if there is one.
std::vector<actors::CommandEnvironmentSpec> environment_commands(const runtime::Config& config);

}  // namespace troupe::apps
