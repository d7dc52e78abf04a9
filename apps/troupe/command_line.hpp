#pragma once

// The command line as such: parses it, sets up logging and signals, runs one command. Shared by the
// two programs behind `troupe` (see launcher_main.cpp).
//
// **Threads:** main thread.
// **Invariants:** the first SIGINT or SIGTERM sets the flag that a command was given, for commands
// that look at it; the second kills.

#include "apps/troupe/commands.hpp"

#include <atomic>
#include <functional>
#include <vector>

namespace troupe::apps {

/// Adds a command; `stop` is set by the first signal.
using AddCommand = std::function<Command(CLI::App&, const std::atomic<bool>& stop)>;

/// What cluster operators need; no LibTorch.
std::vector<AddCommand> cluster_commands();

/// Runs the chosen command and returns its exit code. Exceptions end here.
int run_command_line(int argument_count, char** arguments, const std::vector<AddCommand>& commands);

}  // namespace troupe::apps
