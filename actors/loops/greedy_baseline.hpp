#pragma once

// ReMax's baseline: what one greedy sample of each prompt scores.
//
// **Threads:** controller's thread.
// **Invariants:** of the weights that rollout serves now; one row a sample, in the batch's order.

#include "actors/loops/cast.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/sample_numbering.hpp"
#include "runtime/task/failure.hpp"

#include <string>
#include <utility>

namespace troupe::actors {

/// Scores of one greedy sample per prompt, repeated over the group: ReMax's baseline.
template <World W>
runtime::task<runtime::Column> greedy_baseline(Cast<W>& cast, runtime::Batch prompts) {
  SamplingOptions greedy = cast.sampling;
  greedy.temperature = 0;
  runtime::Batch numbered = runtime::value_or_throw(number_samples(prompts, 1));
  runtime::Batch batch = co_await cast.rollout.generate(std::move(numbered), std::move(greedy));
  runtime::Batch scored = co_await cast.reward.score(std::move(batch));
  runtime::Batch one = runtime::value_or_throw(scored.select({std::string(column::kScores)}));
  co_return one.repeat(cast.group_size).column(column::kScores);
}

}  // namespace troupe::actors
