#pragma once

// Small tasks with rewards that can be checked, made from a seed: for first runs, tests and
// benchmarks of tiny models that read bytes.
//
//     task       prompt                         answer        data source
//     sort       `sort: 7 3 9 1 4 =`            `1 3 4 7 9`   troupe/sort
//     reverse    `reverse: 7 3 9 =`             `9 3 7`       troupe/reverse
//     copy       `copy: 7 3 9 =`                `7 3 9`       troupe/copy
//     chain-sum  `sum: 7 + 3 - 9 =`             `1`           troupe/chain-sum
//     countdown  `countdown: 3 5 7 -> 22 =`     `3*5+7`       troupe/countdown
//
// `worded` asks the same in a sentence, for language models (`What is 7 + 3 - 9? Answer with the
// number only.`); worded chain sums are troupe/worded-sum, where the last number is the answer.
//
// **Threads:** pure functions of the options.
// **Invariants:** the same options give the same bytes; no prompt occurs twice in all three sets
// together, so what is held out was never seen; the validation set depends on the seed and the
// difficulty only, not on the sizes of the other sets; every countdown row has a solution (its
// `response`).

#include "actors/data/row.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace troupe::actors {

enum class TaskKind { kSort, kReverse, kCopy, kChainSum, kCountdown };

/// `sort`, `reverse`, `copy`, `chain-sum`, `countdown`; kNotFound lists them.
result<TaskKind> task_kind_from_name(std::string_view name);
std::string_view task_kind_name(TaskKind kind);

struct TaskOptions {
  TaskKind kind = TaskKind::kSort;
  std::int64_t items_min = 5;  ///< numbers per prompt; chain-sum and countdown: operands
  std::int64_t items_max = 5;
  std::int64_t value_min = 0;  ///< each number; countdown needs at least 1
  std::int64_t value_max = 9;
  bool distinct_values = false;   ///< no number twice in one prompt
  std::int64_t target_max = 100;  ///< countdown: targets are 1 … target_max
  bool subtraction = true;        ///< chain-sum: also minus signs
  bool worded = false;            ///< questions in English instead of the short form
  std::int64_t train_rows = 4096;
  std::int64_t validation_rows = 256;
  std::int64_t warmup_rows = 1024;  ///< supervised rows
  std::uint64_t seed = 0;
};

struct TaskRows {
  std::vector<PromptRow> train;
  std::vector<PromptRow> validation;
  std::vector<PromptRow> warmup;
};

/// Makes the rows; all have `response` set and `extra_info` {split, index}. kInvalidArgument when
/// an option is out of range or the difficulty has too few distinct prompts, naming how many were
/// found.
result<TaskRows> make_task_rows(const TaskOptions& options);

}  // namespace troupe::actors
