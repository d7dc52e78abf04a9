#include "apps/troupe/sim_commands.hpp"

namespace troupe::apps {

std::vector<AddCommand> sim_commands() {
  const auto plain = [](Command (*add)(CLI::App&)) {
    return [add](CLI::App& app, const std::atomic<bool>&) { return add(app); };
  };
  return {plain(add_simulate), plain(add_plan)};
}

}  // namespace troupe::apps
