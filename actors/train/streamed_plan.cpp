// What can be said of a streamed update before there is an engine; needs no LibTorch.

#include "actors/train/streamed_update.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace troupe::actors {

bool advantage_is_group_local(std::string_view estimator) {
  static constexpr std::array<std::string_view, 6> kLocal = {"grpo", "dr_grpo", "grpo_passk",
                                                             "rloo", "remax",   "opo"};
  return std::ranges::find(kLocal, estimator) != kLocal.end();
}

result<void> check_streamed_update(const StreamedUpdatePlan& plan) {
  std::vector<std::string> obstacles;
  if (plan.minibatch_rows != plan.step_rows)
    obstacles.push_back(fmt::format("mini-batches of {} samples in steps of {}, wanted one a step",
                                    plan.minibatch_rows, plan.step_rows));
  if (plan.epochs != 1)
    obstacles.push_back(fmt::format("{} epochs over each step, wanted 1", plan.epochs));
  if (!plan.advantage_is_local && !advantage_is_group_local(plan.advantage))
    obstacles.push_back(
        fmt::format("advantages '{}' normalise over the whole step", plan.advantage));
  if (plan.loss_selects)
    obstacles.push_back(fmt::format("loss '{}' selects tokens over the whole step", plan.loss));
  if (plan.adaptive_kl)
    obstacles.emplace_back("an adaptive KL coefficient follows the mean KL of the whole step");
  for (const std::string& name : plan.batch_wide)
    obstacles.push_back(fmt::format("{} reads the whole step", name));
  if (obstacles.empty()) return {};
  return fail(ErrorCode::kConfig, "streamed update: {}", fmt::join(obstacles, "; "));
}

}  // namespace troupe::actors
