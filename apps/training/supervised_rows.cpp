#include "apps/training/supervised_rows.hpp"

#include "actors/loops/columns.hpp"

#include <algorithm>
#include <utility>

namespace troupe::apps {

using runtime::Batch;
using runtime::Column;

result<SupervisedRows> SupervisedRows::load(std::span<const std::string> files,
                                            const ModelBundle& model, SupervisedOptions options) {
  options.dataset.row.require_ground_truth = false;
  options.dataset.row.require_response = true;
  TROUPE_TRY(const auto dataset, actors::Dataset::load(files, options.dataset));
  SupervisedRows loaded;
  for (const actors::PromptRow& row : dataset.rows()) {
    TROUPE_TRY(std::vector<std::int32_t> prompt, model.encode_prompt(row.prompt));
    std::vector<std::int32_t> response = model.encode_response(row.response);
    const auto length = static_cast<std::int64_t>(prompt.size() + response.size());
    std::int64_t excess = length - options.tokens_max;
    if (excess > 0 && options.truncation == actors::Truncation::kError)
      return fail(ErrorCode::kInvalidArgument, "{}: row {}: {} tokens, sft.max_length is {}",
                  files.front(), row.prompt_id, length, options.tokens_max);
    if (excess > 0 && options.truncation == actors::Truncation::kLeft) {
      const auto cut = std::min(excess, static_cast<std::int64_t>(prompt.size()) - 1);
      prompt.erase(prompt.begin(), prompt.begin() + cut);
      excess -= cut;
    }
    if (excess > 0)
      response.resize(response.size() -
                      std::min(static_cast<std::size_t>(excess), response.size()));
    if (options.loss_on_prompt) {
      response.insert(response.begin(), prompt.begin() + 1, prompt.end());
      prompt.resize(1);
    }
    if (prompt.empty() || response.empty())
      return fail(ErrorCode::kInvalidArgument,
                  "{}: row {}: {} prompt and {} response tokens, wanted at least 1 of each",
                  files.front(), row.prompt_id, prompt.size(), response.size());
    loaded.rows_.push_back({std::move(prompt), std::move(response)});
  }
  return loaded;
}

std::int64_t SupervisedRows::longest() const {
  std::size_t longest = 0;
  for (const Row& row : rows_) longest = std::max(longest, row.prompt.size() + row.response.size());
  return static_cast<std::int64_t>(longest);
}

Batch SupervisedRows::batch(std::span<const std::int64_t> order, std::int64_t first,
                            std::int64_t count) const {
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::vector<std::int32_t>> responses;
  const auto end = std::min(first + count, static_cast<std::int64_t>(order.size()));
  for (std::int64_t place = first; place < end; ++place) {
    const Row& row = rows_[static_cast<std::size_t>(order[static_cast<std::size_t>(place)])];
    prompts.push_back(row.prompt);
    responses.push_back(row.response);
  }
  Batch out;
  auto set = out.set(std::string(actors::column::kPrompts), Column::jagged(prompts));
  TROUPE_CHECK(set.has_value(), "sft: {}", set.error().message);
  set = out.set(std::string(actors::column::kResponses), Column::jagged(responses));
  TROUPE_CHECK(set.has_value(), "sft: {}", set.error().message);
  return out;
}

}  // namespace troupe::apps
