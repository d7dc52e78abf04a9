#pragma once

// A world without engines for loop tests: roles answer with made-up columns and note the order in
// which they were called.
// **Threads:** controller's thread.

#include "actors/loops/cast.hpp"
#include "actors/loops/columns.hpp"
#include "runtime/task/failure.hpp"

#include <string>
#include <utility>
#include <vector>

namespace troupe::actors::testing {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::task;
using runtime::value_or_throw;

struct CallLog {
  std::vector<std::string> calls;
  std::vector<SamplingOptions> sampling;
  bool fail_reference = false;
};

inline Column constant_tokens(const Batch& batch, float value) {
  const auto lengths = batch.column(column::kResponses).row_lengths();
  std::vector<std::vector<float>> rows;
  for (const auto length : lengths) rows.emplace_back(static_cast<std::size_t>(length), value);
  return Column::jagged(rows);
}

class FakeRollout {
 public:
  explicit FakeRollout(CallLog& log) : log_(log) {}
  task<Batch> generate(Batch prompts, SamplingOptions sampling) {
    log_.calls.push_back(sampling.is_greedy() ? "generate greedy" : "generate");
    log_.sampling.push_back(sampling);
    std::vector<std::vector<std::int32_t>> responses;
    for (std::int64_t row = 0; row < prompts.rows(); ++row)
      responses.emplace_back(static_cast<std::size_t>(row % 3 + 1), 7);
    value_or_throw(prompts.set(std::string(column::kResponses), Column::jagged(responses)));
    value_or_throw(prompts.set(std::string(column::kStopReason),
                               Column::strings(std::vector<std::string>(
                                   static_cast<std::size_t>(prompts.rows()), "stop_id"))));
    co_return prompts;
  }
  task<void> sleep(bool publication_follows) {
    log_.calls.emplace_back(publication_follows ? "sleep" : "sleep lightly");
    co_return;
  }

 private:
  CallLog& log_;
};

/// Scores a row by its place in its group; greedy samples (group size 1) get 0.25.
class FakeReward {
 public:
  explicit FakeReward(CallLog& log) : log_(log) {}
  task<Batch> score(Batch batch) {
    log_.calls.emplace_back("score");
    std::vector<float> scores;
    for (const auto index : batch.column(column::kSampleIndex).values<std::int64_t>())
      scores.push_back(static_cast<float>(index) + 0.25F);
    Batch out;
    value_or_throw(out.set(std::string(column::kAccuracy), Column::dense(scores)));
    value_or_throw(out.set(std::string(column::kScores), Column::dense(std::move(scores))));
    co_return out;
  }

 private:
  CallLog& log_;
};

class FakeModel {
 public:
  FakeModel(CallLog& log, std::string name, std::string_view column)
      : log_(log), name_(std::move(name)), column_(column) {}
  task<Batch> log_probs(Batch batch) { return answer(std::move(batch)); }
  task<Batch> values(Batch batch) { return answer(std::move(batch)); }
  task<Metrics> update(Batch batch) {
    log_.calls.push_back("update " + name_);
    updated = std::move(batch);
    Metrics metrics;
    metrics.add(name_ + "/loss", 1, runtime::Reduction::kMean);
    co_return metrics;
  }
  Batch updated;

 private:
  task<Batch> answer(Batch batch) {
    log_.calls.push_back(name_);
    if (log_.fail_reference && name_ == "reference")
      throw runtime::Failure(Error{
          .code = ErrorCode::kRankDead, .message = "rank 1 died", .origin = {}, .causes = {}});
    Batch out;
    value_or_throw(out.set(column_, constant_tokens(batch, -0.5F)));
    co_return out;
  }
  CallLog& log_;
  std::string name_;
  std::string column_;
};

class FakeWeights {
 public:
  explicit FakeWeights(CallLog& log) : log_(log) {}
  task<Metrics> publish() {
    log_.calls.emplace_back("publish");
    co_return Metrics{};
  }

 private:
  CallLog& log_;
};

struct FakeWorld {
  using Rollout = FakeRollout;
  using Reward = FakeReward;
  using Policy = FakeModel;
  using Reference = FakeModel;
  using Critic = FakeModel;
  using Weights = FakeWeights;
  const Clock& clock() const { return steady; }

  SteadyClock steady;
  CallLog log;
  FakeRollout rollout{log};
  FakeReward reward{log};
  FakeModel policy{log, "policy", column::kOldLogProbs};
  FakeModel reference{log, "reference", column::kReferenceLogProbs};
  FakeModel critic{log, "critic", column::kValues};
  FakeWeights weights{log};
};
static_assert(World<FakeWorld>);

}  // namespace troupe::actors::testing
