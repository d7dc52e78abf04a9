#pragma once

// The reward rank: decodes responses and applies the rule of each row's data source.
//
// Rules of one answer run row by row; batch rules, such as commands in a sandbox, get all rows that
// are theirs at once, some hundreds at a time, so that their workers are all busy and this rank
// still says that it gets on.
// **Ownership:** borrows the tokenizer and the registry; both are immutable while it lives.
// **Threads:** the engine thread of its rank only.
// **Invariants:** a call ends by its deadline: kDeadline names the row that was next. A rule that
// hangs in this process cannot be ended; untrusted code belongs into a sandbox.

#include "actors/reward/reward.hpp"
#include "actors/text/tokenizer.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/group/dispatch.hpp"
#include "runtime/group/worker_context.hpp"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::actors {

struct RewardWorkerOptions {
  std::string rule = {};  ///< applies to every row; empty: the rule of the row's data source
  /// Adds the column `score_failed`. Without it a rule that gives an answer up is an error, as
  /// nobody would drop its group.
  bool report_failed = false;
  runtime::WorkerContext* context = nullptr;  ///< deadline, progress; null: neither
};

class RewardWorker {
 public:
  RewardWorker(const Tokenizer& tokenizer, const RewardRegistry& rules, std::string rule = {})
      : RewardWorker(tokenizer, rules, RewardWorkerOptions{.rule = std::move(rule)}) {}
  RewardWorker(const Tokenizer& tokenizer, const RewardRegistry& rules, RewardWorkerOptions options)
      : tokenizer_(tokenizer), rules_(rules), options_(std::move(options)) {}

  /// `responses`, `data_source`, `ground_truth`, `extra_info` (batch rules: `prompts`, where there
  /// are) → `scores` f32, `acc` f32 (the rule's `acc`, or its score where it has none), `answers`
  /// text, `score_failed` u8 when asked for; metrics `reward/<extra>/mean`, and
  /// `reward/failed/<reason>` for answers that a batch rule could not score.
  result<runtime::Batch> score(const runtime::Batch& batch);

  static constexpr auto methods() {
    using namespace runtime;
    return std::tuple{
        method<&RewardWorker::score>("score", args(scatter), returns(concat)).keep_columns()};
  }

 private:
  result<std::vector<RewardOutcome>> outcomes(const runtime::Batch& local);

  const Tokenizer& tokenizer_;
  const RewardRegistry& rules_;
  RewardWorkerOptions options_;
};

}  // namespace troupe::actors
