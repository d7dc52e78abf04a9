#include "actors/roles/reward_worker.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"

#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;
using runtime::Reduction;

result<Batch> RewardWorker::score(const Batch& batch) {
  TROUPE_TRY(const Batch needed,
             batch.select({std::string(column::kResponses), std::string(column::kDataSource),
                           std::string(column::kGroundTruth), std::string(column::kExtraInfo)}));
  TROUPE_TRY(const Batch local, needed.resolve());
  const Column& responses = local.column(column::kResponses);
  std::vector<float> scores;
  std::vector<float> accuracy;
  std::vector<std::string> answers;
  Batch out(batch.rows());
  for (std::int64_t row = 0; row < local.rows(); ++row) {
    const std::string text =
        tokenizer_.decode(responses.row<std::int32_t>(row), {.skip_special = true});
    const RewardInput input{.data_source = local.column(column::kDataSource).text(row),
                            .solution = text,
                            .ground_truth = local.column(column::kGroundTruth).text(row),
                            .extra_info = local.column(column::kExtraInfo).text(row)};
    auto scored = rule_.empty() ? rules_.score(input) : rules_.score_as(rule_, input);
    if (!scored)
      return fail(std::move(scored).error().wrap(
          ErrorCode::kInvalidArgument, fmt::format("reward: row {} ({})", row, input.data_source)));
    scores.push_back(static_cast<float>(scored->score));
    const auto found = scored->extras.find("acc");
    accuracy.push_back(
        static_cast<float>(found == scored->extras.end() ? scored->score : found->second));
    for (const auto& [name, value] : scored->extras)
      out.metrics().add("reward/" + name + "/mean", value, Reduction::kMean);
    answers.push_back(std::move(scored->answer));
  }
  TROUPE_TRY_VOID(out.set(std::string(column::kScores), Column::dense(std::move(scores))));
  TROUPE_TRY_VOID(out.set(std::string(column::kAccuracy), Column::dense(std::move(accuracy))));
  TROUPE_TRY_VOID(out.set(std::string(column::kAnswers), Column::strings(answers)));
  return out;
}

}  // namespace troupe::actors
