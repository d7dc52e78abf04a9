#include "apps/training/train_app.hpp"

#include "actors/train/train_engine.hpp"
#include "apps/training/async_keys.hpp"
#include "apps/training/judge_keys.hpp"
#include "apps/training/trainer.hpp"
#include "runtime/base/log.hpp"
#include "sim/scenario/simulation_keys.hpp"

namespace troupe::apps {

using runtime::Config;

result<TrainSummary> train(const Config& config, const TrainingRegistries& of_program,
                           const std::atomic<bool>* stop) {
  actors::gemm_self_test();
  for (const std::string& key : ignored_keys(config))
    log::warn("{} has no effect with trainer.mode = sync", key);
  for (const std::string& key : sim::given_simulation_keys(config))
    log::info("{} is for troupe simulate, and has no effect here", key);
  TrainingRegistries registries = of_program;
  TROUPE_TRY_VOID(actors::add_command_rewards(registries.rewards, reward_commands(config)));
  TROUPE_TRY_VOID(
      actors::add_command_environments(registries.environments, environment_commands(config)));
  TROUPE_TRY(const TrainInputs inputs, open_inputs(config, registries));
  const std::int64_t steps = total_steps(config, *inputs.train);
  TROUPE_TRY(const auto options, world_options(config, inputs, registries, steps));
  TROUPE_TRY(const auto advantage, advantage_step_options(config, registries.advantages));
  const auto restarts_max = config.get<std::int64_t>("trainer.restarts_max");
  TrainSummary reached;
  for (std::int64_t restarts = 0;; ++restarts) {
    Trainer trainer(config, inputs, steps, actors::AdvantageStep(advantage), stop);
    auto done = trainer.run(registries, options, restarts == 0 ? nullptr : &reached);
    const bool again = !done && restarts < restarts_max && (stop == nullptr || !stop->load()) &&
                       trainer.lost_ranks(done.error());
    if (!again) return done;
    reached = trainer.summary();
    log::warn("restarting ({} of {}) from the newest checkpoint: {}", restarts + 1, restarts_max,
              done.error().to_string());
  }
}

}  // namespace troupe::apps
