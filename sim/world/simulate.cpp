#include "sim/world/simulate.hpp"

#include "actors/algorithm/advantage.hpp"
#include "actors/loops/synchronous.hpp"
#include "sim/world/sim_world.hpp"
#include "sim/world/step_account.hpp"

#include <utility>

namespace troupe::sim {
namespace {

using runtime::task;

task<bool> synchronous_run(SimWorld& world, actors::Cast<SimWorld>& cast, StepAccounts& accounts,
                           const SimulateOptions& options) {
  for (std::int64_t step = 1; step <= world.job().steps; ++step) {
    actors::StepReport report =
        co_await actors::synchronous_step(cast, world.prompts_of(step), step);
    accounts.end_step(std::move(report));
    if (options.keep_going && !options.keep_going(step)) break;
  }
  co_return true;
}

}  // namespace

result<SimOutcome> simulate(const SimJob& job, const SimulateOptions& options) {
  if (job.mode != SimMode::kSynchronous)
    return fail(ErrorCode::kUnsupported, "simulation: mode {} does not run here yet",
                sim_mode_name(job.mode));
  EventLog log(options.write_event);
  Simulation simulation({.events_max = options.events_max, .log = &log});
  TROUPE_TRY(const auto world, SimWorld::create(simulation, job));
  actors::AdvantageStepOptions advantage_options;
  TROUPE_TRY(advantage_options.estimator,
             actors::default_advantages().find(job.critic ? "gae" : "grpo"));
  advantage_options.keep_returns = job.critic.has_value();
  actors::AdvantageStep advantage(advantage_options);
  actors::Cast<SimWorld> cast = cast_of(*world, advantage);
  SimOutcome outcome;
  StepAccounts accounts(*world, options.keep_phases, outcome);
  TROUPE_TRY([[maybe_unused]] const bool done,
             simulation.run_task(synchronous_run(*world, cast, accounts, options)));
  accounts.end_run();
  outcome.digest = log.digest();
  outcome.events = simulation.events();
  return outcome;
}

}  // namespace troupe::sim
