#include "apps/training/judge_keys.hpp"

#include "apps/training/async_keys.hpp"
#include "apps/training/config_seconds.hpp"

#include <charconv>
#include <filesystem>
#include <string>
#include <utility>

namespace troupe::apps {

using runtime::between;
using runtime::Config;
using runtime::Schema;

namespace {

constexpr const char* kRewardSandbox = "reward_model.sandbox.";
constexpr const char* kEnvironment = "environment.";
constexpr const char* kEnvironmentSandbox = "environment.sandbox.";
constexpr double kDaySeconds = 86400;
constexpr double kMostMegabytes = 1 << 24;

void declare_sandbox(Schema& s, const std::string& at, const std::string& judge) {
  s.text(at + "data_source", "", "rows that the command " + judge + "s; may end in *");
  s.texts(at + "command", {}, "program and arguments; empty: none");
  s.boolean(at + "require_isolation", false, "refuse to run where the kernel gives no namespaces");
  s.boolean(at + "network", false, "leave the host's network reachable");
  s.integer(at + "workers", 2, "warm processes").within(between(1, 1024));
  s.integer(at + "samples_per_worker", 10000, "then a process is replaced")
      .within(between(1, 1 << 30));
  s.integer(at + "samples_ahead", 8, "lines that a process gets before it has answered")
      .within(between(1, 1 << 16));
  s.boolean(at + "whole_batches", false, "a fresh process for each batch");
  s.texts(at + "hidden_folders", {"/run"}, "folders that the command does not see");
  s.texts(at + "environment", {}, "NAME=value, all that the command finds beside the usual");
  s.number(at + "sample_wall_s", 10, "seconds from a sample's turn to its answer")
      .within(between(0.001, kDaySeconds));
  s.number(at + "sample_cpu_s", 10, "CPU seconds of one sample")
      .within(between(0.001, kDaySeconds));
  s.number(at + "start_s", 30, "seconds more for a process's first answer")
      .within(between(0, kDaySeconds));
  s.integer(at + "memory_mb", 1024, "memory of one process, MiB")
      .within(between(1, kMostMegabytes));
  s.integer(at + "scratch_mb", 64, "files it may write, MiB").within(between(1, kMostMegabytes));
  s.integer(at + "answer_kb", 64, "one answer, KiB").within(between(1, 1 << 20));
  s.integer(at + "open_files", 64, "open files of one process").within(between(8, 1 << 20));
  s.integer(at + "processes", 32, "processes and threads of one worker")
      .within(between(1, 1 << 16));
}

void declare_environment(Schema& s) {
  const std::string at = kEnvironment;
  s.text(at + "name", "", "multi-turn environment of all rows; auto: by data source; empty: none");
  s.integer(at + "turns_max", 8, "turns of one sample").within(between(1, 1 << 16));
  s.integer(at + "turn_tokens_max", 256, "tokens that it says in one turn; more is cut")
      .within(between(1, 1 << 24));
  s.number(at + "turn_deadline_s", 60, "seconds of one try of a turn")
      .within(between(0.001, kDaySeconds));
  s.integer(at + "retries_max", 1, "of a turn that failed").within(between(0, 1 << 16));
  s.number(at + "exhausted_score", 0, "score of a sample whose turns are used up");
  s.text(at + "failure_score", "drop", "score of a sample whose environment failed, or drop");
  s.text(at + "before", "", "text before what the environment says");
  s.text(at + "after", "", "text behind it");
  s.integer(at + "workers", 2, "ranks of the environment").within(between(1, 1024));
  declare_sandbox(s, kEnvironmentSandbox, "play");
}

/// A number, or nothing for `drop`.
result<std::optional<double>> failure_score(const Config& config, const std::string& key) {
  const auto text = config.get<std::string>(key);
  if (text == "drop") return std::optional<double>();
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size())
    return config.refuse(key, "is neither a number nor drop");
  return std::optional(value);
}

bool has_command(const Config& config, const std::string& at) {
  return !config.get<std::vector<std::string>>(at + "command").empty();
}

result<void> check_sandbox(const Config& c, const std::string& at) {
  const bool source = !c.get<std::string>(at + "data_source").empty();
  if (has_command(c, at) && !source)
    return c.refuse(at + "data_source", "says no rows for {}command", at);
  if (source && !has_command(c, at))
    return c.refuse(at + "data_source", "has no effect without {}command", at);
  for (const std::string& one : c.get<std::vector<std::string>>(at + "environment")) {
    if (one.find('=') == std::string::npos || one.front() == '=')
      return c.refuse(at + "environment", "'{}' is not NAME=value", one);
  }
  return {};
}

result<void> check_judges(const Config& c) {
  TROUPE_TRY_VOID(check_sandbox(c, kRewardSandbox));
  TROUPE_TRY_VOID(check_sandbox(c, kEnvironmentSandbox));
  const std::string reward_failure = std::string(kRewardSandbox) + "failure_score";
  TROUPE_TRY(const auto reward, failure_score(c, reward_failure));
  if (!reward && has_command(c, kRewardSandbox) && !uses_service(c))
    return c.refuse(reward_failure, "gives a sample's prompt up, which trainer.mode = {} cannot",
                    c.get<std::string>("trainer.mode"));
  const std::string at = kEnvironment;
  TROUPE_TRY_VOID(failure_score(c, at + "failure_score").map([](auto) {}));
  const auto name = c.get<std::string>(at + "name");
  if (name.empty() && has_command(c, kEnvironmentSandbox))
    return c.refuse(std::string(kEnvironmentSandbox) + "command",
                    "has no effect with environment.name = ''; write auto");
  const auto said = c.get<std::int64_t>(at + "turn_tokens_max");
  const auto response = c.get<std::int64_t>("data.max_response_length");
  if (!name.empty() && said >= response)
    return c.refuse(at + "turn_tokens_max",
                    "leaves no answer in data.max_response_length = {}, which holds all turns",
                    response);
  return {};
}

actors::SandboxOptions sandbox_options(const Config& config, const std::string& at,
                                       const std::string& name) {
  actors::SandboxOptions sandbox;
  sandbox.name = name;
  sandbox.command = actors::absolute_command(config.get<std::vector<std::string>>(at + "command"),
                                             std::filesystem::current_path());
  for (const std::string& one : config.get<std::vector<std::string>>(at + "environment")) {
    const std::size_t equals = one.find('=');
    sandbox.environment[one.substr(0, equals)] = one.substr(equals + 1);
  }
  sandbox.hidden_folders = config.get<std::vector<std::string>>(at + "hidden_folders");
  sandbox.limits.sample_wall = seconds_of(config, at + "sample_wall_s");
  sandbox.limits.sample_cpu = seconds_of(config, at + "sample_cpu_s");
  sandbox.limits.start = seconds_of(config, at + "start_s");
  sandbox.limits.memory = mebibytes(config.get<std::int64_t>(at + "memory_mb"));
  sandbox.limits.scratch = mebibytes(config.get<std::int64_t>(at + "scratch_mb"));
  sandbox.limits.answer = Bytes{config.get<std::int64_t>(at + "answer_kb") << 10};
  sandbox.limits.open_files = config.get<std::int64_t>(at + "open_files");
  sandbox.limits.processes = config.get<std::int64_t>(at + "processes");
  sandbox.require_isolation = config.get<bool>(at + "require_isolation");
  sandbox.network = config.get<bool>(at + "network");
  sandbox.workers = config.get<int>(at + "workers");
  sandbox.samples_per_worker = config.get<std::int64_t>(at + "samples_per_worker");
  sandbox.samples_ahead = config.get<int>(at + "samples_ahead");
  sandbox.whole_batches = config.get<bool>(at + "whole_batches");
  return sandbox;
}

}  // namespace

void declare_judges(Schema& schema) {
  declare_sandbox(schema, kRewardSandbox, "judge");
  schema.text(std::string(kRewardSandbox) + "failure_score", "0",
              "score of a sample that the command failed on, or drop: its prompt is given up");
  declare_environment(schema);
  schema.rule(check_judges);
}

std::vector<actors::CommandRewardSpec> reward_commands(const Config& config) {
  const std::string at = kRewardSandbox;
  if (!has_command(config, at)) return {};
  const auto source = config.get<std::string>(at + "data_source");
  const auto score = failure_score(config, at + "failure_score");
  return {{.data_source = source,
           .options = {.sandbox = sandbox_options(config, at, "reward " + source),
                       .failure_score = score.value_or(std::optional<double>(0))}}};
}

bool wants_environment(const Config& config) {
  return !config.get<std::string>(std::string(kEnvironment) + "name").empty();
}

std::optional<actors::EnvironmentOptions> environment_options(const Config& config) {
  if (!wants_environment(config)) return std::nullopt;
  const std::string at = kEnvironment;
  actors::EnvironmentOptions options;
  const auto name = config.get<std::string>(at + "name");
  if (name != "auto") options.environment = name;
  options.turns_max = config.get<std::int64_t>(at + "turns_max");
  options.turn_tokens_max = config.get<std::int64_t>(at + "turn_tokens_max");
  options.turn_deadline = seconds_of(config, at + "turn_deadline_s");
  options.retries_max = config.get<std::int64_t>(at + "retries_max");
  options.exhausted_score = config.get<double>(at + "exhausted_score");
  options.failure_score =
      failure_score(config, at + "failure_score").value_or(std::optional<double>());
  options.before = config.get<std::string>(at + "before");
  options.after = config.get<std::string>(at + "after");
  return options;
}

std::vector<actors::CommandEnvironmentSpec> environment_commands(const Config& config) {
  const std::string at = kEnvironmentSandbox;
  if (!has_command(config, at)) return {};
  const auto source = config.get<std::string>(at + "data_source");
  return {{.data_source = source, .sandbox = sandbox_options(config, at, "environment " + source)}};
}

}  // namespace troupe::apps
