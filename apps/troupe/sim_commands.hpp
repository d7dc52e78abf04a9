#pragma once

// Commands of the simulator, which need neither a cluster nor LibTorch.
//
// **Threads:** main thread.

#include "apps/troupe/command_line.hpp"

#include <vector>

namespace troupe::apps {

Command add_simulate(CLI::App& app);
Command add_plan(CLI::App& app);

std::vector<AddCommand> sim_commands();

}  // namespace troupe::apps
