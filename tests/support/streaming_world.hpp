#pragma once

// A world whose rollout streams, on a model that generates in milliseconds; samples that are run
// through its replicas slice by slice; and deaths at a chosen point of a publication.
// **Threads:** one, but for `StrikeAt`, whose blow comes from the thread that ends a call.

#include "actors/loops/columns.hpp"
#include "actors/roles/group_world.hpp"
#include "runtime/group/call_trace.hpp"
#include "runtime/task/executor.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_world.hpp"
#include "tests/support/world_steps.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

/// One trainer rank, and `replicas` rollout engines of one rank on devices of their own.
inline actors::WorldOptions streaming_options(const actors::ModelConfig& model,
                                              const actors::WeightSet& weights,
                                              const std::string& tokenizer_folder, int replicas) {
  actors::WorldOptions options = tiny_world_options(model, weights, tokenizer_folder, 1);
  options.rollout_devices_own = replicas;
  options.streaming = true;
  options.policy.plan.rows = 64;
  options.publication.canary_tokens = 4;
  return options;
}

/// `count` samples of one prompt, none of them begun.
inline std::vector<actors::Trajectory> fresh_samples(std::uint32_t count,
                                                     std::int32_t tokens = 24) {
  actors::SamplingOptions sampling;
  sampling.max_new_tokens = tokens;
  sampling.seed = 7;
  sampling.ignore_eos = true;
  std::vector<actors::Trajectory> samples;
  for (std::uint32_t i = 0; i < count; ++i)
    samples.push_back(actors::Trajectory::begin(1, 5, i, WeightVersion{0}, {11, 12, 13}, sampling));
  return samples;
}

/// Runs `samples` to their end on one replica; at most `slices` slices.
inline runtime::task<std::vector<actors::Trajectory>> finish_samples(
    actors::GroupStreamingRollout& rollout, RankId replica, std::vector<actors::Trajectory> samples,
    std::uint64_t first_attempt = 1, int slices = 1000) {
  actors::AdvanceRequest request;
  for (std::size_t i = 0; i < samples.size(); ++i)
    request.starts.push_back({.attempt = first_attempt + i, .trajectory = samples[i]});
  std::size_t left = samples.size();
  while (left > 0 && slices-- > 0) {
    request.steps_max = 4;
    const actors::AdvanceReply reply = co_await rollout.advance(replica, std::move(request));
    request = actors::AdvanceRequest();
    for (const actors::SampleNews& news : reply.news) {
      actors::Trajectory& sample = samples[static_cast<std::size_t>(news.attempt - first_attempt)];
      const std::optional<actors::StopReason> ended =
          news.ended && news.outcome == actors::AttemptOutcome::kFinished
              ? std::optional(news.reason)
              : std::nullopt;
      runtime::value_or_throw(sample.extend(news.from, news.piece, ended, news.text));
      if (news.ended) --left;
    }
  }
  co_return samples;
}

/// What a sample says, to the bit.
struct Said {
  std::vector<std::int32_t> tokens;
  std::vector<float> log_probs;
  std::vector<std::int64_t> versions;
  bool operator==(const Said&) const = default;
};
inline std::vector<Said> said(const std::vector<actors::Trajectory>& samples) {
  std::vector<Said> all;
  for (const actors::Trajectory& sample : samples) {
    Said one{.tokens = sample.tokens, .log_probs = sample.full_log_probs, .versions = {}};
    for (const WeightVersion version : sample.versions) one.versions.push_back(version.value);
    all.push_back(std::move(one));
  }
  return all;
}

inline std::vector<int> numbers(const std::vector<actors::ReplicaInfo>& replicas) {
  std::vector<int> found;
  for (const actors::ReplicaInfo& one : replicas) found.push_back(one.replica.value);
  return found;
}

/// The replicas that serve are `replicas`; each says the same (`says(replica)`: three samples of 24
/// tokens), all of it under `version`.
template <class Says>
void expect_all_say(actors::GroupStreamingRollout& rollout, const std::vector<int>& replicas,
                    std::int64_t version, const Says& says) {
  ASSERT_EQ(numbers(rollout.replicas()), replicas);
  std::optional<std::vector<Said>> first_said;
  for (const int replica : replicas) {
    const std::vector<Said> now = says(replica);
    ASSERT_EQ(now.size(), 3U);
    EXPECT_EQ(now[0].versions, std::vector<std::int64_t>(24, version)) << "replica " << replica;
    if (!first_said) first_said = now;
    EXPECT_EQ(now, *first_said) << "replica " << replica;
  }
}

/// A prompt batch of `rows` prompts.
inline runtime::Batch streaming_prompts(std::int64_t rows) {
  using runtime::Column;
  using runtime::value_or_throw;
  namespace column = actors::column;
  runtime::Batch batch;
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::int64_t> ids;
  for (std::int64_t row = 0; row < rows; ++row) {
    prompts.emplace_back(static_cast<std::size_t>(3 + 2 * (row % 3)),
                         static_cast<std::int32_t>(10 + row));
    ids.push_back(row);
  }
  const auto count = static_cast<std::size_t>(rows);
  const std::vector<std::string> source(count, "any"), truth(count, "a"), extra(count, "{}");
  value_or_throw(batch.set(std::string(column::kPrompts), Column::jagged(prompts)));
  value_or_throw(batch.set(std::string(column::kPromptIds), Column::dense(ids)));
  value_or_throw(batch.set(std::string(column::kDataSource), Column::strings(source)));
  value_or_throw(batch.set(std::string(column::kGroundTruth), Column::strings(truth)));
  value_or_throw(batch.set(std::string(column::kExtraInfo), Column::json(extra)));
  return value_or_throw(actors::number_samples(batch, 2));
}

/// One optimizer step on samples that the world generates, scores and weighs by their rows.
inline runtime::task<void> learn_something(actors::GroupWorld& world, runtime::Batch prompts) {
  actors::SamplingOptions sampling;
  sampling.max_new_tokens = 12;
  runtime::Batch batch = co_await world.rollout().generate(std::move(prompts), sampling);
  runtime::Batch old = co_await world.policy().log_probs(batch);
  runtime::value_or_throw(batch.merge(old));
  std::vector<std::vector<float>> advantages;
  const runtime::Column responses = batch.column(actors::column::kResponses);
  for (std::int64_t row = 0; row < batch.rows(); ++row)
    advantages.emplace_back(static_cast<std::size_t>(responses.row_length(row)),
                            row % 2 == 0 ? 1.0F : -1.0F);
  runtime::value_or_throw(
      batch.set(std::string(actors::column::kAdvantages), runtime::Column::jagged(advantages)));
  co_await world.policy().update(batch);
}

/// Strikes once, at the end of the n-th call of `method` on `group` from the time it is armed.
class StrikeAt final : public runtime::CallTrace {
 public:
  void arm(std::string group, std::string method, int nth, std::function<void()> blow) {
    const std::lock_guard lock(mutex_);
    group_ = std::move(group);
    method_ = std::move(method);
    left_ = nth;
    blow_ = std::move(blow);
  }
  bool struck() const {
    const std::lock_guard lock(mutex_);
    return left_ == 0;
  }
  void on_call(const runtime::CallSpan& span) override {
    std::function<void()> blow;
    {
      const std::lock_guard lock(mutex_);
      if (left_ <= 0 || span.group != group_ || span.method != method_ || --left_ > 0) return;
      blow = blow_;
    }
    blow();
  }

 private:
  mutable std::mutex mutex_;  // guards the following
  std::string group_, method_;
  int left_ = -1;
  std::function<void()> blow_;
};

}  // namespace troupe::testing
