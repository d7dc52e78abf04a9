#include "apps/troupe/command_line.hpp"

#include "runtime/base/log.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <set>
#include <string>
#include <utility>

namespace troupe::apps {
namespace {

std::atomic<bool> stop_requested{false};

/// The first signal asks the command to stop in good order; the second kills it.
extern "C" void on_signal(int number) {
  if (stop_requested.exchange(true)) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

log::Level to_level(const std::string& name) {
  if (name == "debug") return log::Level::kDebug;
  if (name == "warn") return log::Level::kWarn;
  return name == "error" ? log::Level::kError : log::Level::kInfo;
}

/// Full disks and closed pipes show when the last bytes go out.
int flushed(int code) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return code;
  fmt::print(stderr, "troupe: standard output: cannot write: {}\n", std::strerror(errno));
  return code == kExitDone ? kExitFailed : code;
}

int run(int argument_count, char** arguments, const std::vector<AddCommand>& adders) {
  CLI::App app("Troupe: reinforcement-learning post-training of language models");
  app.require_subcommand(1);
  app.set_version_flag("--version", "troupe 0.1.0");
  std::string level = "info";
  app.add_option("--log-level", level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
  std::vector<std::pair<CLI::App*, Command>> commands;
  for (const AddCommand& add : adders) {
    Command command = add(app, stop_requested);
    commands.emplace_back(app.get_subcommands({}).back(), std::move(command));
  }
  try {
    app.parse(argument_count, arguments);
  } catch (const CLI::RequiredError& error) {
    const std::vector<std::string> extra = app.remaining();
    if (!extra.empty() && app.get_subcommands().empty())
      fmt::print(stderr, "troupe: no command '{}'\n", extra.front());
    app.exit(error);
    return kExitUsage;
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return flushed(code == 0 ? kExitDone : kExitUsage);
  }
  log::set_up(to_level(level));
  static const std::set<std::string> kStoppable{"train", "sft", "head", "node"};
  for (const auto& [subcommand, command] : commands) {
    if (!subcommand->parsed()) continue;
    if (kStoppable.contains(subcommand->get_name())) {
      std::signal(SIGINT, on_signal);
      std::signal(SIGTERM, on_signal);
    }
    return flushed(command());
  }
  return kExitUsage;
}

}  // namespace

CLI::Validator number_within(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value) && !std::isnan(value);
        if (is_number && value >= low && value <= high) return std::string();
        return fmt::format("'{}' is not a number from {} to {}", text, low, high);
      },
      fmt::format("{} to {}", low, high));
}

int exit_usage(const Error& error) {
  fmt::print(stderr, "troupe: {}\n", error.to_report());
  return kExitUsage;
}

int exit_with(const Error& error) {
  fmt::print(stderr, "troupe: {}\n", error.to_report());
  const bool config =
      error.code == ErrorCode::kConfig || error.root_cause().code == ErrorCode::kConfig;
  return config ? kExitUsage : kExitFailed;
}

result<ConfigWords> sort_words(std::span<const std::string> words) {
  ConfigWords sorted;
  for (const std::string& word : words) {
    if (word.find('=') != std::string::npos) {
      sorted.overrides.push_back(word);
    } else if (sorted.file.empty() && !word.empty()) {
      sorted.file = word;
    } else {
      return fail(ErrorCode::kConfig,
                  "command line: '{}' is neither key=value nor the one configuration file ({})",
                  word, sorted.file);
    }
  }
  return sorted;
}

int run_command_line(int argument_count, char** arguments,
                     const std::vector<AddCommand>& commands) {
  try {
    return run(argument_count, arguments, commands);
  } catch (const std::exception& error) {  // the door of `main`
    fmt::print(stderr, "troupe: internal: {}\n", error.what());
    return kExitFailed;
  }
}

std::vector<AddCommand> cluster_commands() {
  const auto plain = [](Command (*add)(CLI::App&)) {
    return [add](CLI::App& app, const std::atomic<bool>&) { return add(app); };
  };
  return {add_head,           add_node,        plain(add_status), plain(add_list),
          plain(add_explain), plain(add_stop), plain(add_cert)};
}

}  // namespace troupe::apps
