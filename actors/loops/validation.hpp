#pragma once

// Held-out evaluation: n samples per prompt, scored, summed up per data source.
//
// **Threads:** controller's thread.
// **Invariants:** a pure function of the published weights and the sampling seed; leaves no trace
// in the training state.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/episodes.hpp"
#include "actors/loops/sample_numbering.hpp"
#include "actors/loops/world.hpp"
#include "runtime/task/failure.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Sums scores of samples by data source and prompt.
class ValidationTally {
 public:
  explicit ValidationTally(std::int64_t samples_per_prompt) : samples_(samples_per_prompt) {}

  /// Rows `data_source`, `group`, `scores`, `acc`, `responses` (lengths); groups are whole.
  result<void> add(const runtime::Batch& batch);

  /// `val-core/<source>/acc/mean@n`, `…/acc/best@n` (n > 1: any sample right, pass@n),
  /// `val-aux/<source>/reward/mean@n`, `val-aux/<source>/response_length/mean`.
  runtime::Metrics metrics() const;

 private:
  struct Source {
    double prompts = 0, samples = 0, accuracy = 0, best = 0, reward = 0, tokens = 0;
  };
  std::int64_t samples_;
  std::map<std::string, Source> sources_;
};

/// Samples of one turn with their scores.
template <World W>
runtime::task<runtime::Batch> judged_samples(typename W::Rollout& rollout,
                                             typename W::Reward& reward, runtime::Batch samples,
                                             SamplingOptions sampling) {
  runtime::Batch batch = co_await rollout.generate(std::move(samples), std::move(sampling));
  runtime::Batch scores = co_await reward.score(batch);
  runtime::value_or_throw(batch.merge(scores));
  co_return batch;
}

/// Whole episodes with their scores; the environment's own count before rules.
template <World W>
runtime::task<runtime::Batch> judged_episodes(typename W::Rollout& rollout,
                                              typename W::Reward& reward,
                                              typename EnvironmentOf<W>::type& environment,
                                              runtime::Batch samples, SamplingOptions sampling) {
  Episodes episodes =
      co_await play_episodes<W>(rollout, environment, std::move(samples), std::move(sampling));
  runtime::Batch batch = runtime::value_or_throw(episodes.batch());
  runtime::Batch scores = co_await reward.score(batch);
  scores = runtime::value_or_throw(episodes.scores(std::move(scores)));
  runtime::value_or_throw(batch.merge(scores));
  co_return batch;
}

/// Generates `samples_per_prompt` samples for every prompt of `batches` and scores them. When
/// `keep` is given, finished batches (with `answers`) are put there, for people to look at. With an
/// environment a sample is an episode.
template <World W>
runtime::task<runtime::Metrics> validate(typename W::Rollout& rollout, typename W::Reward& reward,
                                         std::vector<runtime::Batch> batches,
                                         std::int64_t samples_per_prompt, SamplingOptions sampling,
                                         std::vector<runtime::Batch>* keep = nullptr,
                                         typename EnvironmentOf<W>::type* environment = nullptr) {
  ValidationTally tally(samples_per_prompt);
  for (const runtime::Batch& prompts : batches) {
    runtime::Batch samples = runtime::value_or_throw(number_samples(prompts, samples_per_prompt));
    auto judging =
        environment == nullptr
            ? judged_samples<W>(rollout, reward, std::move(samples), sampling)
            : judged_episodes<W>(rollout, reward, *environment, std::move(samples), sampling);
    runtime::Batch batch = co_await std::move(judging);
    runtime::value_or_throw(tally.add(batch));
    if (keep != nullptr) keep->push_back(batch);
  }
  co_return tally.metrics();
}

}  // namespace troupe::actors
