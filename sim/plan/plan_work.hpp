#pragma once

// The work of a step in expectation, and what one engine takes for its share of it.
//
// An engine's share is laid out without drawing: lengths are quantiles in an order that is even in
// every stretch, admitted as slots and KV cache last, one change of membership after the other. The
// longest of them is what the longest of the whole batch is expected to be.
// **Threads:** pure.
// **Invariants:** more KV cache or slots never admit less; tokens are those of the lengths.

#include "runtime/base/result.hpp"
#include "sim/cost/decode_cost.hpp"
#include "sim/cost/train_cost.hpp"
#include "sim/world/sim_job.hpp"

#include <cstdint>
#include <vector>

namespace troupe::sim {

/// Of one step.
struct PlanWork {
  std::int64_t samples = 0;
  std::int64_t group = 1;
  double prompt_mean = 0;
  double answer_mean = 0;
  double answer_longest = 0;        ///< of a batch, as expected
  double residence = 0;             ///< Σ L² / (2 Σ L): mean tokens that a running sample has
  std::int64_t tokens_longest = 0;  ///< prompt and answer, bounds of both
  std::vector<double> answers{};    ///< quantiles at (i + ½)/n
  TrainWork pass{};                 ///< of all samples, once
  TrainWork update{};               ///< with its epochs and optimizer steps
  double reward_s = 0;              ///< of rules

  static result<PlanWork> create(const SimJob& job);
};

/// What an engine has to hold its samples.
struct EngineRoom {
  std::int64_t kv_tokens = 0;
  std::int64_t sequences_max = 256;
  double watermark = 0.01;
  bool share_prompt = true;
};

struct EngineTime {
  double span_s = 0;    ///< for its share of one batch, alone
  double steady_s = 0;  ///< a batch, when the next one's samples fill gaps
  double longest_s = 0;
  std::int64_t running_most = 0;
  std::int64_t preemptions = 0;
};

/// `samples`: of one batch on this engine; `ahead`: steps that rollout may be ahead.
EngineTime engine_time(const PlanWork& work, const DecodeCost& cost, const EngineRoom& room,
                       std::int64_t samples, std::int64_t ahead);

}  // namespace troupe::sim
