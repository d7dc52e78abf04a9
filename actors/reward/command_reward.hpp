#pragma once

// A reward rule that is somebody else's program, run in a sandbox.
//
// The program reads one JSON object a line and writes one line for each, in order:
//
//     {"id": 3, "data_source": "my/task", "prompt": "…", "response": "…", "ground_truth": "…",
//      "extra_info": {…}}
//     0.5        or  {"id": 3, "score": 0.5, "acc": 1, "answer": "…", "length": 12}
//
// It must flush after every line (`whole_batches`: it reads all lines to the end first). Other
// numbers of the object become extras; an `id` is compared with the one that was asked. What is not
// such a line, a number that is not finite, or one of the sandbox's failures costs that sample
// only: it scores `failure_score`, or its group is dropped, and it is counted by reason.
// **Ownership:** the rule owns the pool; copies of the rule share it.
// **Threads:** may be called from many threads at once.
// **Invariants:** a failure of the sandbox itself is an error, never a score.

#include "actors/reward/reward.hpp"
#include "actors/sandbox/sandbox_pool.hpp"

#include <optional>

namespace troupe::actors {

struct CommandRewardOptions {
  SandboxOptions sandbox = {};
  /// What a sample that failed scores; empty: its group is dropped.
  std::optional<double> failure_score = 0.0;

  bool operator==(const CommandRewardOptions&) const = default;
};

/// Opens the pool. Errors of `SandboxPool::open`.
result<BatchRewardFunction> make_command_reward(CommandRewardOptions options);

/// The same around a pool that the caller owns and that outlives the rule: for its statistics.
BatchRewardFunction command_reward_on(SandboxPool& pool, std::optional<double> failure_score);

}  // namespace troupe::actors
