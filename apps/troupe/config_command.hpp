#pragma once

// What `train`, `sft` and `eval` have in common: words of configuration, dry run, resuming.
//
// **Threads:** main thread.

#include "apps/training/train_settings.hpp"
#include "apps/troupe/commands.hpp"
#include "runtime/config/config.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::apps {

/// Options of one command, filled by the command line. Shared with the command that runs later.
struct ConfigOptions {
  std::vector<std::string> words;
  bool dry_run = false;
  bool help_config = false;
  std::string resume;  ///< run folder to go on with
};

/// Adds `[CONFIG.yaml] [key=value …]`, `--dry-run`, `--help-config` and, if wanted, `--resume DIR`.
std::shared_ptr<ConfigOptions> add_config_options(CLI::App& command, bool with_resume);

/// What a command does with its configuration; returns the exit code.
using ConfiguredWork = std::function<int(const runtime::Config&, const TrainingRegistries&)>;

/// Resolves the configuration (with `resume` it starts from the run folder's config.yaml), prints
/// what was only asked for, or runs `work`.
int run_configured(const ConfigOptions& options, const ConfiguredWork& work);

}  // namespace troupe::apps
