#include "sim/world/simulate.hpp"

#include "actors/algorithm/advantage.hpp"
#include "actors/loops/asynchronous.hpp"
#include "actors/loops/synchronous.hpp"
#include "sim/engine/duration.hpp"
#include "sim/world/sim_world.hpp"
#include "sim/world/step_account.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe::sim {
namespace {

using actors::StepReport;
using runtime::task;
using Service = actors::RolloutService<SimWorld>;

/// Longer than any wait of a run that goes on: what would be a hang ends with an error.
constexpr Duration kVeryLong = std::chrono::hours(24) * 30;

/// Often enough for the shortest deadline that is set.
Duration tick_of(const actors::DispatchOptions& dispatch) {
  Duration tick = std::chrono::minutes(1);
  for (const Duration one : {dispatch.hedge_after, dispatch.sample_deadline, dispatch.stall_after,
                             dispatch.score_deadline})
    if (one > Duration::zero())
      tick = std::clamp<Duration>(one / 10, std::chrono::milliseconds(50), tick);
  return tick;
}

actors::ServiceOptions service_options(const SimJob& job) {
  actors::ServiceOptions options;
  options.rollout.ledger = job.pacing.ledger;
  options.rollout.ledger.groups_per_step = job.prompts_per_step;
  options.rollout.dispatch = job.pacing.dispatch;
  options.rollout.order = job.pacing.order;
  if (job.environment) options.rollout.environment_turns_max = job.environment->turns_max;
  // A slice is as long as nothing happens; the calls of rewards and environments are apart, so that
  // each sample goes on when its own answer is there.
  options.slice_steps = std::int64_t{1} << 40;
  options.advance_within = options.score_within = options.turn_within = kVeryLong;
  options.revive_within = options.no_progress_within = options.recall_within = kVeryLong;
  options.revives_max = job.failures.restarts_max;
  options.lend = !job.own_rollout();
  options.scores_in_flight_max = std::max(4, job.reward.workers);
  if (job.reward_model) options.scores_in_flight_max = 1;  // what comes meanwhile fills its batch
  options.turn_rows_max = 1;
  if (job.environment) options.turns_in_flight_max = job.environment->workers;
  options.tick_every = tick_of(job.pacing.dispatch);
  return options;
}

/// Prompts without end, one step's worth at a time.
actors::PromptSource prompts_of(SimWorld& world) {
  return [&world, step = std::int64_t{0}]() mutable -> result<std::optional<runtime::Batch>> {
    return world.prompts_of(++step);
  };
}

class Run {
 public:
  Run(SimWorld& world, actors::Cast<SimWorld>& cast, const SimulateOptions& options,
      SimOutcome& outcome)
      : world_(world),
        cast_(cast),
        options_(options),
        outcome_(outcome),
        accounts_(world, options.keep_phases, outcome) {}

  task<int> all() {
    if (world_.job().mode == SimMode::kSynchronous)
      co_await synchronous();
    else
      co_await beside();
    accounts_.end_run();
    co_return 0;
  }

 private:
  task<void> synchronous() {
    for (std::int64_t step = 1; step <= world_.job().steps; ++step) {
      StepReport report = co_await actors::synchronous_step(cast_, world_.prompts_of(step), step);
      if (!co_await end_step(std::move(report))) break;
    }
  }

  task<void> beside() {
    auto service = runtime::value_or_throw(
        Service::open(cast_, service_options(world_.job()), prompts_of(world_)));
    co_await service->start();
    for (std::int64_t step = 1; step <= world_.job().steps; ++step) {
      std::optional<StepReport> report = co_await step_of(*service, step);
      if (world_.streaming()->failure()) throw runtime::Failure(*world_.streaming()->failure());
      if (!report) break;
      if (!co_await end_step(std::move(*report))) break;
    }
    const actors::StalenessLedger& ledger = service->ledger();
    outcome_.groups = {.issued = static_cast<std::int64_t>(ledger.issued()),
                       .trained = ledger.consumed(),
                       .open = static_cast<std::int64_t>(ledger.open_groups().size())};
    co_await service->stop();
  }

  task<std::optional<StepReport>> step_of(Service& service, std::int64_t step) {
    const SimJob& job = world_.job();
    if (job.mode == SimMode::kOneStepOff) return actors::one_step_off_step(cast_, service, step);
    if (job.mode == SimMode::kPipelined)
      return actors::pipelined_step(cast_, service, step, {job.pacing.groups_per_part});
    return actors::asynchronous_step(cast_, service, step);
  }

  /// What software takes each step, and checkpoints, are part of the step that they follow. False:
  /// enough was seen.
  task<bool> end_step(StepReport report) {
    const std::int64_t step = report.step;
    const double software_s = world_.job().constants[Constant::kIterationHost];
    co_await runtime::sleep_for(to_duration(software_s));
    report.metrics.add("timing_s/software", software_s, runtime::Reduction::kSum);
    const double saved_s = co_await world_.save_behind(step);
    if (saved_s > 0) report.metrics.add("timing_s/checkpoint", saved_s, runtime::Reduction::kSum);
    accounts_.end_step(std::move(report));
    co_return !options_.keep_going || options_.keep_going(step);
  }

  SimWorld& world_;
  actors::Cast<SimWorld>& cast_;
  const SimulateOptions& options_;
  SimOutcome& outcome_;
  StepAccounts accounts_;
};

}  // namespace

result<SimOutcome> simulate(const SimJob& job, const SimulateOptions& options) {
  EventLog log(options.write_event);
  Simulation simulation({.events_max = options.events_max, .log = &log});
  TROUPE_TRY(const auto world, SimWorld::create(simulation, job));
  world->trace().whole = options.trace;
  actors::AdvantageStepOptions advantage_options;
  TROUPE_TRY(advantage_options.estimator,
             actors::default_advantages().find(job.critic ? "gae" : "grpo"));
  advantage_options.keep_returns = job.critic.has_value();
  actors::AdvantageStep advantage(advantage_options);
  actors::Cast<SimWorld> cast = cast_of(*world, advantage);
  SimOutcome outcome;
  Run run(*world, cast, options, outcome);
  const result<int> done = simulation.run_task(run.all());
  // Samples that fit nowhere are the cause of whatever came of it.
  if (!done && world->streaming() != nullptr && world->streaming()->failure())
    return fail(*world->streaming()->failure());
  TROUPE_TRY_VOID(done);
  outcome.digest = log.digest();
  outcome.events = simulation.events();
  return outcome;
}

}  // namespace troupe::sim
