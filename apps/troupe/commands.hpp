#pragma once

// The commands of `troupe`, one source each. Every one adds itself to the command line and returns
// what to run when it is chosen.
//
// **Threads:** main thread.
// **Invariants:** exit codes: 0 done, 1 failed (one line on stderr), 2 wrong command line or
// configuration, 3 stopped by a signal with a checkpoint; of `status` 3 unhealthy, of `explain` 3
// waiting and 4 can never fit.

#include "runtime/base/result.hpp"

#include <CLI/CLI.hpp>

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troupe::apps {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitStopped = 3;
inline constexpr int kExitUnhealthy = 3;
inline constexpr int kExitInfeasible = 4;

/// Runs a chosen command; the returned number is the process's exit code.
using Command = std::function<int()>;

Command add_train(CLI::App& app, const std::atomic<bool>& stop);
Command add_sft(CLI::App& app, const std::atomic<bool>& stop);
Command add_eval(CLI::App& app);
Command add_generate(CLI::App& app);
Command add_data(CLI::App& app);
Command add_model(CLI::App& app);
Command add_convert(CLI::App& app);
Command add_report(CLI::App& app);
Command add_rank(CLI::App& app);

// Clusters; torch-free, in the library apps_cluster.
Command add_head(CLI::App& app, const std::atomic<bool>& stop);
Command add_node(CLI::App& app, const std::atomic<bool>& stop);
Command add_status(CLI::App& app);
Command add_list(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_stop(CLI::App& app);
Command add_cert(CLI::App& app);

/// Prints the error; for values of options that are out of range.
int exit_usage(const Error& error);

/// Prints the error as `troupe: …` and returns the exit code for it.
int exit_with(const Error& error);

/// CONFIG.yaml and key=value words of a command line, in any order.
struct ConfigWords {
  std::string file;  ///< empty: defaults and overrides only
  std::vector<std::string> overrides;
};
/// At most one word may be a file; kConfig names a word that is neither.
result<ConfigWords> sort_words(std::span<const std::string> words);

/// A number in [low, high]; unlike CLI::Range it refuses NaN.
CLI::Validator number_within(double low, double high);

}  // namespace troupe::apps
