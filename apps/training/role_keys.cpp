#include "apps/training/role_keys.hpp"

#include "apps/training/sections.hpp"

#include <algorithm>

namespace troupe::apps {

using runtime::Config;

namespace {

constexpr std::int64_t kMinibatchPrompts = 256;  // verl's default; a smaller batch takes its place

}  // namespace

int run_devices(const Config& config) {
  return config.get<int>("trainer.nnodes") * config.get<int>("trainer.n_gpus_per_node");
}

bool wants_critic(const Config& config) {
  const auto chosen = config.get_optional<bool>("critic.enable");
  return chosen.value_or(config.get<std::string>("algorithm.adv_estimator") == "gae");
}

bool wants_reference(const Config& config) {
  return config.get<bool>("algorithm.use_kl_in_reward") ||
         config.get<bool>(std::string(kActor) + ".use_kl_loss");
}

std::int64_t minibatch_prompts(const Config& config, const std::string& section) {
  auto prompts = config.get_optional<std::int64_t>(std::string(kActor) + ".ppo_mini_batch_size")
                     .value_or(kMinibatchPrompts);
  if (section == kCritic)
    prompts = config.get_optional<std::int64_t>("critic.ppo_mini_batch_size").value_or(prompts);
  return std::min(prompts, config.get<std::int64_t>("data.train_batch_size"));
}

actors::TakeOrder take_order(const Config& config) {
  const bool pipelined = config.get<std::string>("trainer.mode") == "pipelined";
  const auto order =
      config.get_optional<std::string>("async.order").value_or(pipelined ? "issue" : "ready");
  return order == "issue" ? actors::TakeOrder::kIssue : actors::TakeOrder::kReady;
}

}  // namespace troupe::apps
