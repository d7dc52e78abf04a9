// The program behind `troupe` that needs LibTorch: training, evaluation and their kin. It knows the
// commands for clusters and simulations too, so that its help is complete; launcher_main.cpp runs
// those itself.

#include "apps/troupe/command_line.hpp"
#include "apps/troupe/sim_commands.hpp"

int main(int argument_count, char** arguments) {
  using namespace troupe::apps;
  const auto plain = [](Command (*add)(CLI::App&)) {
    return [add](CLI::App& app, const std::atomic<bool>&) { return add(app); };
  };
  std::vector<AddCommand> commands{add_train,           add_sft,           plain(add_eval),
                                   plain(add_generate), plain(add_data),   plain(add_model),
                                   plain(add_convert),  plain(add_report), plain(add_rank)};
  for (AddCommand& add : cluster_commands()) commands.push_back(std::move(add));
  for (AddCommand& add : sim_commands()) commands.push_back(std::move(add));
  return run_command_line(argument_count, arguments, commands);
}
