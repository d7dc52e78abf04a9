#pragma once

// The cast of a training loop: who plays which role, and the settings that the loop itself reads.
//
// **Ownership:** borrows its roles; the world that made them outlives the cast.
// **Threads:** controller's thread.

#include "actors/loops/advantage_step.hpp"
#include "actors/loops/correction_step.hpp"
#include "actors/loops/environment_role.hpp"
#include "actors/loops/streaming.hpp"
#include "actors/loops/world.hpp"
#include "runtime/batch/column_ref.hpp"

#include <cstdint>

namespace troupe::actors {

template <World W>
struct Cast {
  W& world;
  typename W::Rollout& rollout;
  typename W::Reward& reward;
  typename W::Policy& policy;
  typename W::Reference* reference = nullptr;  ///< absent: no KL term anywhere
  typename W::Critic* critic = nullptr;        ///< absent: the estimator needs no values
  typename W::Weights& weights;
  AdvantageStep& advantage;
  SamplingOptions sampling;              ///< of training samples; its seed is the run's
  std::int64_t group_size = 1;           ///< G, samples per prompt
  std::int64_t critic_warmup_steps = 0;  ///< steps that update only the critic
  /// Passes of policy, reference and critic are asked for together, and so are updates: for roles
  /// that do not share devices. Those that do take turns as their devices let them.
  bool side_by_side = false;
  runtime::PullMeter* meter = nullptr;         ///< counts what the controller reads
  const CorrectionStep* correction = nullptr;  ///< absent: data is taken as on-policy
  /// Rollout by slices; asynchronous loops need it.
  typename StreamingOf<W>::type* streaming = nullptr;
  /// Absent: a sample is one turn. Asynchronous loops only.
  typename EnvironmentOf<W>::type* environment = nullptr;
};

}  // namespace troupe::actors
