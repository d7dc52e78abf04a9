#pragma once

// The `World` concept: what a loop program needs of the place it runs in.
//
// A loop is a template over its world, so that the same source runs over worker groups on real
// devices and over cost models on virtual time. Every role method returns something that can be
// awaited and that gives the named type, or throws `runtime::Failure`.
// **Threads:** roles are called on the controller's thread only.
// **Invariants:** calls to one role take effect in the order in which they were made.

#include "actors/rollout/sampling_options.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/task/task.hpp"

#include <concepts>
#include <utility>

namespace troupe::actors {

template <class Role>
concept RolloutRole = requires(Role& role, runtime::Batch batch, SamplingOptions sampling) {
  {
    role.generate(std::move(batch), std::move(sampling))
    } -> std::same_as<runtime::task<runtime::Batch>>;
  { role.sleep(true) } -> std::same_as<runtime::task<void>>;
};

template <class Role>
concept RewardRole = requires(Role& role, runtime::Batch batch) {
  { role.score(std::move(batch)) } -> std::same_as<runtime::task<runtime::Batch>>;
};

template <class Role>
concept ReferenceRole = requires(Role& role, runtime::Batch batch) {
  { role.log_probs(std::move(batch)) } -> std::same_as<runtime::task<runtime::Batch>>;
};

template <class Role>
concept PolicyRole = ReferenceRole<Role> && requires(Role& role, runtime::Batch batch) {
  { role.update(std::move(batch)) } -> std::same_as<runtime::task<runtime::Metrics>>;
};

template <class Role>
concept CriticRole = requires(Role& role, runtime::Batch batch) {
  { role.values(batch) } -> std::same_as<runtime::task<runtime::Batch>>;
  { role.update(std::move(batch)) } -> std::same_as<runtime::task<runtime::Metrics>>;
};

template <class Role>
concept WeightsRole = requires(Role& role) {
  { role.publish() } -> std::same_as<runtime::task<runtime::Metrics>>;
};

template <class W>
concept World = RolloutRole<typename W::Rollout> && RewardRole<typename W::Reward> &&
    PolicyRole<typename W::Policy> && ReferenceRole<typename W::Reference> &&
    CriticRole<typename W::Critic> && WeightsRole<typename W::Weights> && requires(const W& world) {
  { world.clock() } -> std::convertible_to<const Clock&>;
};

}  // namespace troupe::actors
