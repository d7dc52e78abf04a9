#include "apps/troupe/config_command.hpp"

#include "runtime/base/log.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

namespace troupe::apps {

using runtime::Config;

namespace {

/// With `resume` it starts from the run folder's config.yaml.
result<Config> load_config(const ConfigOptions& options, const TrainingRegistries& registries) {
  TROUPE_TRY(ConfigWords words, sort_words(options.words));
  if (!options.resume.empty()) {
    if (!words.file.empty())
      return fail(ErrorCode::kConfig, "command line: --resume {} and {}: give one of them",
                  options.resume, words.file);
    words.file = (std::filesystem::path(options.resume) / "config.yaml").string();
    words.overrides.insert(words.overrides.begin(), "trainer.default_local_dir=" + options.resume);
    words.overrides.insert(words.overrides.begin(), "trainer.resume_mode=auto");
    words.overrides.insert(words.overrides.begin(), "trainer.resume_from_path=null");
    TROUPE_TRY(const auto newest, runtime::Checkpoint::latest(options.resume));
    if (!newest)
      return fail(ErrorCode::kNotFound, "--resume {}: no complete checkpoint there",
                  options.resume);
  }
  TROUPE_TRY(Config config, Config::load(schema_for(registries), words.file, words.overrides));
  const auto level = config.get<std::string>("trainer.log_level");
  if (level == "debug") log::set_up(log::Level::kDebug);
  if (level == "warn") log::set_up(log::Level::kWarn);
  if (level == "error") log::set_up(log::Level::kError);
  return config;
}

/// True when the command was only asked to print something, which this has done then.
bool print_only(const ConfigOptions& options, const Config& config,
                const TrainingRegistries& registries) {
  if (options.help_config) {
    fmt::print("{}", schema_for(registries).describe());
    return true;
  }
  if (options.dry_run) fmt::print("{}", config.to_yaml(true));
  return options.dry_run;
}

}  // namespace

std::shared_ptr<ConfigOptions> add_config_options(CLI::App& command, bool with_resume) {
  auto options = std::make_shared<ConfigOptions>();
  command.add_option("words", options->words, "CONFIG.yaml and key.path=value overrides");
  command.add_flag("--dry-run", options->dry_run, "print the resolved configuration and stop");
  command.add_flag("--help-config", options->help_config, "list every key with its default");
  if (with_resume)
    command.add_option("--resume", options->resume,
                       "run folder: take its config.yaml and go on from its newest checkpoint");
  return options;
}

int run_configured(const ConfigOptions& options, const ConfiguredWork& work) {
  const TrainingRegistries registries;
  const auto config = load_config(options, registries);
  if (!config) return exit_with(config.error());
  if (print_only(options, *config, registries)) return kExitDone;
  return work(*config, registries);
}

}  // namespace troupe::apps
