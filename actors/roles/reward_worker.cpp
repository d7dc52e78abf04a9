#include "actors/roles/reward_worker.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;
using runtime::Reduction;

namespace {

/// Rows that batch rules get at once; between two such lots the rank says that it gets on.
constexpr std::int64_t kRowsAtOnce = 256;

result<void> add_columns(Batch& out, const std::vector<RewardOutcome>& outcomes,
                         bool report_failed) {
  std::vector<float> scores;
  std::vector<float> accuracy;
  std::vector<std::string> answers;
  std::vector<std::uint8_t> failed;
  for (const RewardOutcome& one : outcomes) {
    const auto score = static_cast<float>(one.score.score);
    const auto found = one.score.extras.find("acc");
    scores.push_back(score);
    accuracy.push_back(found == one.score.extras.end() ? score : static_cast<float>(found->second));
    answers.push_back(one.score.answer);
    failed.push_back(one.dropped ? 1 : 0);
  }
  TROUPE_TRY_VOID(out.set(std::string(column::kScores), Column::dense(std::move(scores))));
  TROUPE_TRY_VOID(out.set(std::string(column::kAccuracy), Column::dense(std::move(accuracy))));
  TROUPE_TRY_VOID(out.set(std::string(column::kAnswers), Column::strings(answers)));
  if (!report_failed) return {};
  return out.set(std::string(column::kScoreFailed), Column::dense(std::move(failed)));
}

void add_metrics(Batch& out, const std::vector<RewardOutcome>& outcomes) {
  for (const RewardOutcome& one : outcomes) {
    for (const auto& [name, value] : one.score.extras)
      out.metrics().add("reward/" + name + "/mean", value, Reduction::kMean);
    if (one.failure.empty()) continue;
    out.metrics().add("reward/failed", 1, Reduction::kSum);
    out.metrics().add("reward/failed/" + one.failure, 1, Reduction::kSum);
  }
}

}  // namespace

result<Batch> RewardWorker::score(const Batch& batch) {
  std::vector<std::string> names{std::string(column::kResponses), std::string(column::kDataSource),
                                 std::string(column::kGroundTruth),
                                 std::string(column::kExtraInfo)};
  if (rules_.any_batch() && batch.has(column::kPrompts)) names.emplace_back(column::kPrompts);
  TROUPE_TRY(const Batch needed, batch.select(names));
  TROUPE_TRY(const Batch local, needed.resolve());
  TROUPE_TRY(const std::vector<RewardOutcome> made, outcomes(local));
  Batch out(batch.rows());
  add_metrics(out, made);
  TROUPE_TRY_VOID(add_columns(out, made, options_.report_failed));
  return out;
}

result<std::vector<RewardOutcome>> RewardWorker::outcomes(const Batch& local) {
  const Column& responses = local.column(column::kResponses);
  const Column& sources = local.column(column::kDataSource);
  const Deadline deadline =
      options_.context != nullptr ? options_.context->deadline() : Deadline::by_default();
  std::vector<RewardOutcome> all;
  for (std::int64_t begin = 0; begin < local.rows(); begin += kRowsAtOnce) {
    const std::int64_t end = std::min(begin + kRowsAtOnce, local.rows());
    std::vector<std::string> texts(static_cast<std::size_t>(2 * (end - begin)));
    std::vector<RewardInput> inputs;
    for (std::int64_t row = begin; row < end; ++row) {
      std::string& text = texts[static_cast<std::size_t>(2 * (row - begin))];
      std::string& prompt = texts[static_cast<std::size_t>(2 * (row - begin) + 1)];
      text = tokenizer_.decode(responses.row<std::int32_t>(row), {.skip_special = true});
      const std::string_view rule = options_.rule.empty() ? sources.text(row) : options_.rule;
      if (local.has(column::kPrompts) && rules_.is_batch(rule))
        prompt = tokenizer_.decode(local.column(column::kPrompts).row<std::int32_t>(row));
      inputs.push_back({.data_source = sources.text(row),
                        .solution = text,
                        .ground_truth = local.column(column::kGroundTruth).text(row),
                        .extra_info = local.column(column::kExtraInfo).text(row),
                        .prompt = prompt});
    }
    TROUPE_TRY(std::vector<RewardOutcome> some,
               rules_.score_all(inputs, deadline, options_.rule, begin));
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (some[i].dropped && !options_.report_failed)
        return fail(ErrorCode::kAborted,
                    "reward: row {} ({}): its rule gives the answer up ({}), but this loop cannot "
                    "drop a group",
                    begin + static_cast<std::int64_t>(i), inputs[i].data_source, some[i].failure);
      all.push_back(std::move(some[i]));
    }
    if (options_.context != nullptr) options_.context->progress();
  }
  return all;
}

}  // namespace troupe::actors
