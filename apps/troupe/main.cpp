// The `troupe` command line: parses it, sets up logging and signals, runs one command.

#include "apps/troupe/commands.hpp"
#include "runtime/base/log.hpp"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <utility>

namespace {

std::atomic<bool> stop_requested{false};

/// The first signal asks the run to stop after its step; the second kills it.
extern "C" void on_signal(int number) {
  if (stop_requested.exchange(true)) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

int run(int argument_count, char** arguments) {
  using namespace troupe::apps;
  CLI::App app("Troupe: reinforcement-learning post-training of language models");
  app.require_subcommand(1);
  app.set_version_flag("--version", "troupe 0.1.0");
  std::string level = "info";
  app.add_option("--log-level", level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
  std::vector<std::pair<CLI::App*, Command>> commands;
  const auto add = [&](Command command) {
    commands.emplace_back(app.get_subcommands({}).back(), std::move(command));
  };
  add(add_train(app, stop_requested));
  add(add_sft(app, stop_requested));
  add(add_eval(app));
  add(add_generate(app));
  add(add_data(app));
  add(add_model(app));
  add(add_convert(app));
  add(add_report(app));
  try {
    app.parse(argument_count, arguments);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? kExitDone : kExitUsage;
  }
  const auto to_level = [&] {
    if (level == "debug") return troupe::log::Level::kDebug;
    if (level == "warn") return troupe::log::Level::kWarn;
    return level == "error" ? troupe::log::Level::kError : troupe::log::Level::kInfo;
  };
  troupe::log::set_up(to_level());
  for (const auto& [subcommand, command] : commands) {
    if (!subcommand->parsed()) continue;
    if (subcommand->get_name() == "train" || subcommand->get_name() == "sft") {
      std::signal(SIGINT, on_signal);
      std::signal(SIGTERM, on_signal);
    }
    return command();
  }
  return kExitUsage;
}

}  // namespace

namespace troupe::apps {

int exit_usage(const Error& error) {
  fmt::print(stderr, "troupe: {}\n", error.to_string());
  return kExitUsage;
}

int exit_with(const Error& error) {
  fmt::print(stderr, "troupe: {}\n", error.to_string());
  return error.root_cause().code == ErrorCode::kConfig ? kExitUsage : kExitFailed;
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

}  // namespace troupe::apps

int main(int argument_count, char** arguments) {
  try {
    return run(argument_count, arguments);
  } catch (const std::exception& error) {  // the door of `main`
    fmt::print(stderr, "troupe: internal: {}\n", error.what());
    return troupe::apps::kExitFailed;
  }
}
