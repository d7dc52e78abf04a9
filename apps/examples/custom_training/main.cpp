// Trains with an advantage estimator and a reward of this program's own. Each is one function,
// registered by name; the configuration picks the estimator, and rows with
// `data_source: my/terse` get the reward. Arguments are overrides, as of `troupe train`.

#include "apps/training/train_app.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

using namespace troupe;

namespace {

/// Short answers are good answers.
double terse(const actors::RewardInput& answer) {
  return 1.0 / (1.0 + static_cast<double>(answer.solution.size()));
}

/// +1 for every token of an answer above its batch's mean reward, -1 below it.
result<actors::AdvantageOutput> sign_of_difference(const actors::AdvantageInput& input,
                                                   const actors::AdvantageOptions& options) {
  TROUPE_TRY(actors::AdvantageOutput output, actors::dr_grpo_advantage(input, options));
  for (float& advantage : output.advantages)
    advantage = static_cast<float>((advantage > 0) - (advantage < 0));
  return output;
}

}  // namespace

int main(int count, char** words) {
  apps::TrainingRegistries own;
  if (!own.rewards.add("my/terse", terse) || !own.advantages.add("sign", sign_of_difference))
    return 1;
  std::vector<std::string> overrides{"algorithm.adv_estimator=sign",
                                     "actor_rollout_ref.rollout.n=4",
                                     "actor_rollout_ref.rollout.kv_cache_mb=16",
                                     "data.train_batch_size=4",
                                     "data.max_prompt_length=40",
                                     "data.max_response_length=8",
                                     "trainer.total_training_steps=3"};
  overrides.insert(overrides.end(), words + 1, words + count);
  const auto config = runtime::Config::load(apps::schema_for(own), "", overrides);
  const result<apps::TrainSummary> summary =
      config ? apps::train(*config, own) : fail(config.error());
  if (!summary) {
    fmt::print(stderr, "{}\n", summary.error().to_string());
    return 1;
  }
  fmt::print("trained {} steps; the model is in {}\n", summary->last_step, summary->model.string());
  return 0;
}
