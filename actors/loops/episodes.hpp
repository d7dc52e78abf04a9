#pragma once

// Whole episodes of an environment, many at once and to their ends: for evaluation, where nobody
// learns from the samples. (Training samples come from the rollout service.)
//
// A turn is sampled as a prompt that is what was said so far, token for token; draws are keyed by
// position, so an episode is the one that the service would have sampled with the same weights.
// **Ownership:** value types; roles are borrowed.
// **Threads:** controller's thread.
// **Invariants:** an episode never has more tokens than `max_new_tokens`, the environment's
// included; each call of the rollout role gives every open episode at least one token.

#include "actors/loops/columns.hpp"
#include "actors/loops/environment_role.hpp"
#include "actors/loops/world.hpp"
#include "runtime/task/failure.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Episodes of numbered samples, and what comes next for each.
class Episodes {
 public:
  /// `samples`: prompts with `group` and `sample_index`. `tokens_max`: of one episode.
  static result<Episodes> begin(runtime::Batch samples, std::int64_t tokens_max);

  bool done() const { return open_.empty(); }
  /// Prompts of the open ones: what was said so far; and how many tokens all of them may add.
  result<runtime::Batch> prompts() const;
  std::int64_t room() const;
  /// What was sampled for `prompts()`, row by row.
  result<void> sampled(const runtime::Batch& generated);
  /// Turns that have ended since, for the environment; may be none.
  std::vector<EnvironmentTurn> turns() const;
  /// Its answers to `turns()`. An episode that it gave up scores 0, and counts in `failed`.
  result<void> answered(std::vector<EnvironmentAnswer> answers);

  std::int64_t failed() const { return failed_; }
  /// The samples with `responses`.
  result<runtime::Batch> batch() const;
  /// `scores` of reward rules, with the environment's in their place where it gave one.
  result<runtime::Batch> scores(runtime::Batch scores) const;

 private:
  struct Episode {
    std::vector<std::int32_t> prompt{};
    std::vector<std::int32_t> tokens{};
    std::size_t turn_begin = 0;
    bool turn_ended = false;
    std::vector<std::byte> state{};
    std::optional<double> score{};
  };
  Episodes(runtime::Batch samples, std::int64_t tokens_max)
      : samples_(std::move(samples)), tokens_max_(tokens_max) {}
  std::int64_t left(const Episode& one) const {
    return tokens_max_ - static_cast<std::int64_t>(one.tokens.size());
  }

  runtime::Batch samples_;
  std::int64_t tokens_max_;
  std::vector<Episode> all_;
  std::vector<std::size_t> open_;  ///< indices, rising
  std::int64_t failed_ = 0;
};

/// Plays all to their ends. Throws `Failure`.
template <World W>
runtime::task<Episodes> play_episodes(typename W::Rollout& rollout,
                                      typename EnvironmentOf<W>::type& environment,
                                      runtime::Batch samples, SamplingOptions sampling) {
  Episodes episodes =
      runtime::value_or_throw(Episodes::begin(std::move(samples), sampling.max_new_tokens));
  while (!episodes.done()) {
    SamplingOptions turn = sampling;
    turn.max_new_tokens = static_cast<std::int32_t>(episodes.room());
    runtime::Batch prompts = runtime::value_or_throw(episodes.prompts());
    runtime::Batch generated = co_await rollout.generate(std::move(prompts), std::move(turn));
    runtime::value_or_throw(episodes.sampled(generated));
    std::vector<EnvironmentTurn> turns = episodes.turns();
    if (turns.empty()) continue;
    std::vector<EnvironmentAnswer> answers = co_await environment.turn(std::move(turns));
    runtime::value_or_throw(episodes.answered(std::move(answers)));
  }
  co_return episodes;
}

}  // namespace troupe::actors
