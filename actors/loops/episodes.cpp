#include "actors/loops/episodes.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/rollout/generate_request.hpp"

#include <algorithm>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;

result<Episodes> Episodes::begin(Batch samples, std::int64_t tokens_max) {
  TROUPE_TRY(samples, samples.resolve());
  TROUPE_TRY(const Column prompts, samples.require(column::kPrompts));
  if (tokens_max < 1)
    return fail(ErrorCode::kInvalidArgument, "episodes: {} tokens each, wanted at least 1",
                tokens_max);
  Episodes episodes(std::move(samples), tokens_max);
  for (std::int64_t row = 0; row < episodes.samples_.rows(); ++row) {
    const auto tokens = prompts.row<std::int32_t>(row);
    episodes.all_.push_back({.prompt = {tokens.begin(), tokens.end()}});
    episodes.open_.push_back(static_cast<std::size_t>(row));
  }
  return episodes;
}

result<Batch> Episodes::prompts() const {
  std::vector<Batch> rows;
  std::vector<std::vector<std::int32_t>> contexts;
  for (const std::size_t index : open_) {
    TROUPE_TRY(Batch row, samples_.slice(static_cast<std::int64_t>(index), 1));
    rows.push_back(std::move(row));
    contexts.push_back(all_[index].prompt);
    contexts.back().insert(contexts.back().end(), all_[index].tokens.begin(),
                           all_[index].tokens.end());
  }
  TROUPE_TRY(Batch batch, Batch::concat(rows));
  TROUPE_TRY_VOID(batch.set(std::string(column::kPrompts), Column::jagged(contexts)));
  return batch;
}

std::int64_t Episodes::room() const {
  std::int64_t least = tokens_max_;
  for (const std::size_t index : open_) least = std::min(least, left(all_[index]));
  return least;
}

result<void> Episodes::sampled(const Batch& generated) {
  TROUPE_TRY(const Batch needed,
             generated.select({std::string(column::kResponses), std::string(column::kStopReason)}));
  TROUPE_TRY(const Batch local, needed.resolve());
  if (std::cmp_not_equal(local.rows(), open_.size()))
    return fail(ErrorCode::kConflict, "episodes: {} rows sampled, {} are open", local.rows(),
                open_.size());
  for (std::size_t i = 0; i < open_.size(); ++i) {
    Episode& one = all_[open_[i]];
    const auto row = static_cast<std::int64_t>(i);
    const auto tokens = local.column(column::kResponses).row<std::int32_t>(row);
    if (tokens.empty())
      return fail(ErrorCode::kConflict, "episodes: nothing was sampled for row {}", open_[i]);
    one.tokens.insert(one.tokens.end(), tokens.begin(), tokens.end());
    // One that was cut for another's sake goes on in the next call.
    const bool cut =
        local.column(column::kStopReason).text(row) == stop_reason_name(StopReason::kLength);
    one.turn_ended = !cut || left(one) <= 0;
  }
  return {};
}

std::vector<EnvironmentTurn> Episodes::turns() const {
  std::vector<EnvironmentTurn> turns;
  for (const std::size_t index : open_) {
    const Episode& one = all_[index];
    if (!one.turn_ended) continue;
    const auto row = static_cast<std::int64_t>(index);
    auto own = samples_.slice(row, 1);
    turns.push_back({.group = static_cast<std::uint64_t>(
                         samples_.column(column::kGroup).scalar<std::int64_t>(row)),
                     .sample_index = static_cast<std::uint32_t>(
                         samples_.column(column::kSampleIndex).scalar<std::int64_t>(row)),
                     .response = {one.tokens.begin() + static_cast<std::ptrdiff_t>(one.turn_begin),
                                  one.tokens.end()},
                     .state = one.state,
                     .row = own ? std::move(*own) : Batch()});
  }
  return turns;
}

result<void> Episodes::answered(std::vector<EnvironmentAnswer> answers) {
  std::size_t next = 0;
  std::vector<std::size_t> still;
  for (const std::size_t index : open_) {
    Episode& one = all_[index];
    if (!one.turn_ended) {
      still.push_back(index);
      continue;
    }
    if (next == answers.size())
      return fail(ErrorCode::kConflict, "episodes: {} answers, wanted more", answers.size());
    EnvironmentAnswer& answer = answers[next++];
    failed_ += answer.failure.empty() ? 0 : 1;
    if (!answer.failure.empty()) answer.score = 0;
    const bool over =
        answer.done || !answer.failure.empty() || answer.tokens.empty() ||
        std::cmp_greater_equal(answer.tokens.size(), std::max<std::int64_t>(0, left(one)));
    if (over) {
      one.score = answer.score;
      continue;
    }
    one.tokens.insert(one.tokens.end(), answer.tokens.begin(), answer.tokens.end());
    one.turn_begin = one.tokens.size();
    one.turn_ended = false;
    one.state = std::move(answer.state);
    still.push_back(index);
  }
  open_ = std::move(still);
  return {};
}

result<Batch> Episodes::batch() const {
  Batch out = samples_;
  std::vector<std::vector<std::int32_t>> responses;
  for (const Episode& one : all_) responses.push_back(one.tokens);
  TROUPE_TRY_VOID(out.set(std::string(column::kResponses), Column::jagged(responses)));
  return out;
}

result<Batch> Episodes::scores(Batch scores) const {
  TROUPE_TRY(scores, scores.resolve());
  if (std::cmp_not_equal(scores.rows(), all_.size()))
    return fail(ErrorCode::kConflict, "episodes: {} scores for {}", scores.rows(), all_.size());
  for (const std::string_view name : {column::kScores, column::kAccuracy}) {
    std::vector<float> values = scores.column(name).values<float>();
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (all_[i].score) values[i] = static_cast<float>(*all_[i].score);
    TROUPE_TRY_VOID(scores.set(std::string(name), Column::dense(std::move(values))));
  }
  return scores;
}

}  // namespace troupe::actors
