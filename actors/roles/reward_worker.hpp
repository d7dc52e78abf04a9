#pragma once

// The reward rank: decodes responses and applies the rule of each row's data source.
//
// **Ownership:** borrows the tokenizer and the registry; both are immutable while it lives.
// **Threads:** the engine thread of its rank only.

#include "actors/reward/reward.hpp"
#include "actors/text/tokenizer.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/group/dispatch.hpp"

#include <string>
#include <tuple>
#include <utility>

namespace troupe::actors {

class RewardWorker {
 public:
  /// `rule` applies to every row; empty: the rule of the row's data source.
  RewardWorker(const Tokenizer& tokenizer, const RewardRegistry& rules, std::string rule = {})
      : tokenizer_(tokenizer), rules_(rules), rule_(std::move(rule)) {}

  /// `responses`, `data_source`, `ground_truth`, `extra_info` → `scores` f32, `acc` f32 (the
  /// rule's `acc`, or its score where it has none), `answers` text; metrics `reward/<extra>/mean`.
  result<runtime::Batch> score(const runtime::Batch& batch);

  static constexpr auto methods() {
    using namespace runtime;
    return std::tuple{
        method<&RewardWorker::score>("score", args(scatter), returns(concat)).keep_columns()};
  }

 private:
  const Tokenizer& tokenizer_;
  const RewardRegistry& rules_;
  std::string rule_;
};

}  // namespace troupe::actors
