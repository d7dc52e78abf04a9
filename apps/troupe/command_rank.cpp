#include "actors/roles/role_programs.hpp"
#include "apps/troupe/commands.hpp"
#include "runtime/cluster/rank_host.hpp"

namespace troupe::apps {

Command add_rank(CLI::App& app) {
  app.add_subcommand("rank", "one rank of a run; started by node agents, not by people");
  return []() -> int {
    runtime::RankPrograms programs;
    actors::add_role_programs(programs);
    return runtime::run_rank(programs);
  };
}

}  // namespace troupe::apps
