#pragma once

// Commands that judge or play, as values that reach rank processes: which data source they serve,
// how their sandbox is built. The same values make the registries of this process.
//
// **Threads:** plain values.

#include "actors/environment/command_environment.hpp"
#include "actors/environment/environment_server.hpp"
#include "actors/reward/command_reward.hpp"
#include "runtime/wire/wire.hpp"

#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::actors {

struct CommandRewardSpec {
  std::string data_source;  ///< or the start of some ending in `*`
  CommandRewardOptions options;

  bool operator==(const CommandRewardSpec&) const = default;
  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("data_source", &CommandRewardSpec::data_source),
                      field("options", &CommandRewardSpec::options)};
  }
};

struct CommandEnvironmentSpec {
  std::string data_source;
  SandboxOptions sandbox;

  bool operator==(const CommandEnvironmentSpec&) const = default;
  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("data_source", &CommandEnvironmentSpec::data_source),
                      field("sandbox", &CommandEnvironmentSpec::sandbox)};
  }
};

/// What the program of an environment rank is made from.
struct EnvironmentSpec {
  std::string tokenizer_folder;
  EnvironmentOptions options;
  std::vector<CommandEnvironmentSpec> commands;

  bool operator==(const EnvironmentSpec&) const = default;
  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("tokenizer_folder", &EnvironmentSpec::tokenizer_folder),
                      field("options", &EnvironmentSpec::options),
                      field("commands", &EnvironmentSpec::commands)};
  }
};

inline constexpr const char* kEnvironmentProgram = "environment";

/// Opens the sandboxes and registers them. Errors name the data source.
result<void> add_command_rewards(RewardRegistry& registry,
                                 std::span<const CommandRewardSpec> commands);
result<void> add_command_environments(EnvironmentRegistry& registry,
                                      std::span<const CommandEnvironmentSpec> commands);

}  // namespace troupe::actors

namespace troupe::runtime {

/// Sizes travel as plain integers.
template <>
struct WireFields<actors::SandboxLimits> {
  static constexpr auto fields() {
    using T = actors::SandboxLimits;
    return std::tuple{field("sample_wall", &T::sample_wall),
                      field("sample_cpu", &T::sample_cpu),
                      field("start", &T::start),
                      field("memory", &T::memory),
                      field("scratch", &T::scratch),
                      field("answer", &T::answer),
                      field("open_files", &T::open_files),
                      field("processes", &T::processes)};
  }
};

template <>
struct WireFields<actors::SandboxOptions> {
  static constexpr auto fields() {
    using T = actors::SandboxOptions;
    return std::tuple{field("name", &T::name),
                      field("command", &T::command),
                      field("environment", &T::environment),
                      field("hidden_folders", &T::hidden_folders),
                      field("scratch_root", &T::scratch_root),
                      field("limits", &T::limits),
                      field("require_isolation", &T::require_isolation),
                      field("network", &T::network),
                      field("workers", &T::workers),
                      field("samples_per_worker", &T::samples_per_worker),
                      field("samples_ahead", &T::samples_ahead),
                      field("whole_batches", &T::whole_batches),
                      field("failures_at_start_max", &T::failures_at_start_max)};
  }
};

template <>
struct WireFields<actors::CommandRewardOptions> {
  static constexpr auto fields() {
    using T = actors::CommandRewardOptions;
    return std::tuple{field("sandbox", &T::sandbox), field("failure_score", &T::failure_score)};
  }
};

template <>
struct WireFields<actors::EnvironmentOptions> {
  static constexpr auto fields() {
    using T = actors::EnvironmentOptions;
    return std::tuple{field("environment", &T::environment),
                      field("turns_max", &T::turns_max),
                      field("turn_tokens_max", &T::turn_tokens_max),
                      field("state_max", &T::state_max),
                      field("turn_deadline", &T::turn_deadline),
                      field("retries_max", &T::retries_max),
                      field("exhausted_score", &T::exhausted_score),
                      field("failure_score", &T::failure_score),
                      field("before", &T::before),
                      field("after", &T::after)};
  }
};

}  // namespace troupe::runtime
