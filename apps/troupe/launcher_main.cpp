// `troupe`: runs commands for clusters and simulations itself, within milliseconds, and hands every
// other command to troupe-torch, which lies beside it: loading LibTorch takes a third of a second
// and 200 MiB, which a head, an agent or `troupe status` should not pay.

#include "apps/troupe/command_line.hpp"
#include "apps/troupe/sim_commands.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

constexpr std::array<std::string_view, 9> kOwn{"head", "node", "status",   "list", "explain",
                                               "stop", "cert", "simulate", "plan"};

std::vector<troupe::apps::AddCommand> own_commands() {
  std::vector<troupe::apps::AddCommand> commands = troupe::apps::cluster_commands();
  for (auto& add : troupe::apps::sim_commands()) commands.push_back(std::move(add));
  return commands;
}

/// The first word that is no option: the command. Options before it take no value but --log-level.
std::string_view command_of(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = arguments[i];
    if (word == "--log-level") {
      ++i;
    } else if (!word.starts_with('-')) {
      return word;
    }
  }
  return {};
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string_view command = command_of(argument_count, arguments);
  for (const std::string_view own : kOwn) {
    if (command == own) {
      return troupe::apps::run_command_line(argument_count, arguments, own_commands());
    }
  }
  std::error_code failure;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
  const std::string sibling = (self.parent_path() / "troupe-torch").string();
  if (!failure && ::access(sibling.c_str(), X_OK) == 0) {
    arguments[0] = const_cast<char*>(sibling.c_str());
    ::execv(sibling.c_str(), arguments);
    fmt::print(stderr, "troupe: cannot run {}\n", sibling);
    return troupe::apps::kExitFailed;
  }
  if (command.empty()) {  // --help, --version, or nothing: of a build without LibTorch
    return troupe::apps::run_command_line(argument_count, arguments, own_commands());
  }
  fmt::print(stderr, "troupe: {}: not in this build, which has no LibTorch ({} is not there)\n",
             command, sibling);
  return troupe::apps::kExitUsage;
}
