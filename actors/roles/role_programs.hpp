#pragma once

// The roles as programs of a rank process: policy, ref, critic, rollout, reward,
// environment.
//
//   int main(…) {
//     RankPrograms programs;
//     add_role_programs(programs, {.losses = default_policy_losses(), .rewards =
//     default_rewards()}); if (auto code = maybe_run_rank(programs)) return *code; …
//   }
//
// Also gives ranks their collectives (Gloo), and their turns and memory book at the node's agent.
// An app with losses or rewards of its own registers them here as it does for `train`.
// **Ownership:** `programs` keeps the registries.
// **Threads:** called before the rank runs.
// **Invariants:** one worker a process.

#include "actors/algorithm/policy_loss.hpp"
#include "actors/environment/environment.hpp"
#include "actors/reward/reward.hpp"
#include "runtime/group/rank_programs.hpp"

namespace troupe::actors {

struct RoleRegistries {
  PolicyLossRegistry losses = default_policy_losses();
  RewardRegistry rewards = default_rewards();
  EnvironmentRegistry environments = default_environments();
};

void add_role_programs(runtime::RankPrograms& programs, RoleRegistries registries = {});

}  // namespace troupe::actors
