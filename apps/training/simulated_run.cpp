#include "apps/training/simulated_run.hpp"

#include "actors/reward/reward.hpp"
#include "apps/training/async_keys.hpp"
#include "apps/training/role_keys.hpp"
#include "apps/training/sections.hpp"
#include "apps/training/train_schema.hpp"

#include <utility>

namespace troupe::apps {

using runtime::Config;

namespace {

sim::SimPacing pacing_of(const Config& config) {
  sim::SimPacing pacing;
  actors::SamplingOptions sampling;
  sampling.max_new_tokens =
      static_cast<std::int32_t>(config.get<std::int64_t>("data.max_response_length"));
  pacing.ledger = ledger_options(config, config.get<std::int64_t>("simulation.steps"));
  pacing.dispatch = dispatch_options(config, sampling);
  pacing.order = take_order(config);
  pacing.groups_per_part = config.get<std::int64_t>("async.groups_per_part");
  if (config.get<std::string>("async.on_update") == "recompute")
    pacing.kv = sim::KvAtUpdate::kRecompute;
  return pacing;
}

sim::ScenarioRoles roles_of(const Config& config) {
  return {.critic = wants_critic(config),
          .reference = wants_reference(config),
          .minibatch_prompts = minibatch_prompts(config, kActor),
          .rollout_devices = rollout_devices(config),
          .pacing = pacing_of(config)};
}

}  // namespace

runtime::Schema simulate_schema() {
  return train_schema({.rewards = actors::default_rewards().names()});
}

result<sim::Scenario> simulated_scenario(const Config& config) {
  return sim::read_scenario(config, roles_of(config));
}

result<sim::SimJob> simulated_job(const Config& config) {
  TROUPE_TRY(sim::Scenario scenario, simulated_scenario(config));
  return std::move(scenario.job);
}

result<sim::SimJob> unplaced_job(const Config& config) {
  sim::ScenarioRoles roles = roles_of(config);
  roles.fits = false;
  TROUPE_TRY(sim::Scenario scenario, sim::read_scenario(config, roles));
  return std::move(scenario.job);
}

}  // namespace troupe::apps
