#include "actors/loops/advantage_step.hpp"

#include "actors/algorithm/value_loss.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/token_column.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::Reduction;

/// The columns that the step reads, flat and in row order.
struct StepColumns {
  std::vector<std::int64_t> offsets;  ///< [B+1]
  std::vector<std::uint8_t> mask;     ///< [T]
  std::vector<std::int64_t> groups;   ///< [B]
  std::vector<float> scores;          ///< [B]
  std::vector<float> values;          ///< [T] or empty
  std::vector<float> old_log_probs;   ///< [T] or empty
  std::vector<float> reference_log_probs;
  std::vector<float> baselines;  ///< [B] or empty

  TokenBatchView view() const {
    return TokenBatchView{.offsets = offsets, .mask = mask, .groups = groups, .sequence_ids = {}};
  }
};

std::vector<std::string> wanted_columns(const AdvantageStepOptions& options, const Batch& batch) {
  std::vector<std::string> names{std::string(column::kScores), std::string(column::kGroup)};
  const auto add_if = [&](bool wanted, std::string_view name) {
    if (wanted) names.emplace_back(name);
  };
  add_if(batch.has(column::kResponseMask), column::kResponseMask);
  add_if(batch.has(runtime::kValidColumn), runtime::kValidColumn);
  add_if(batch.has(column::kValues), column::kValues);
  add_if(options.kl_in_reward, column::kOldLogProbs);
  add_if(options.kl_in_reward, column::kReferenceLogProbs);
  add_if(options.greedy_baseline, column::kBaselineScores);
  return names;
}

/// A per-token column, flat.
template <class T>
result<std::vector<T>> token_column(const Batch& batch, std::string_view name,
                                    std::span<const std::int64_t> lengths) {
  TROUPE_TRY(const Column found, require_token_column(batch, name, lengths, "advantage"));
  return found.values<T>();
}

result<StepColumns> read_columns(const AdvantageStepOptions& options, const Batch& batch,
                                 runtime::PullMeter* meter) {
  TROUPE_TRY(const Column responses, batch.require(column::kResponses));
  const std::vector<std::int64_t> lengths = responses.row_lengths();
  const std::vector<std::string> names = wanted_columns(options, batch);
  TROUPE_TRY(const Batch selected, batch.select(names));
  TROUPE_TRY(const Batch local, selected.resolve(meter));

  StepColumns columns;
  columns.offsets.assign(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), columns.offsets.begin() + 1);
  const auto tokens = static_cast<std::size_t>(columns.offsets.back());
  columns.scores = local.column(column::kScores).values<float>();
  columns.groups = local.column(column::kGroup).values<std::int64_t>();
  columns.mask.assign(tokens, 1);
  if (local.has(column::kResponseMask)) {
    TROUPE_TRY(columns.mask, token_column<std::uint8_t>(local, column::kResponseMask, lengths));
  }
  if (const Column* valid = local.find(runtime::kValidColumn)) {
    for (std::int64_t row = 0; row < valid->rows(); ++row) {
      if (valid->scalar<bool>(row)) continue;
      const auto i = static_cast<std::size_t>(row);
      std::fill(columns.mask.begin() + columns.offsets[i],
                columns.mask.begin() + columns.offsets[i + 1], std::uint8_t{0});
    }
  }
  if (local.has(column::kValues)) {
    TROUPE_TRY(columns.values, token_column<float>(local, column::kValues, lengths));
  }
  if (options.kl_in_reward) {
    TROUPE_TRY(columns.old_log_probs, token_column<float>(local, column::kOldLogProbs, lengths));
    TROUPE_TRY(columns.reference_log_probs,
               token_column<float>(local, column::kReferenceLogProbs, lengths));
  }
  if (options.greedy_baseline)
    columns.baselines = local.column(column::kBaselineScores).values<float>();
  return columns;
}

/// An estimator may be a program's own: what it returns is checked before it is used.
result<void> check_output(const AdvantageOutput& output, std::size_t tokens, bool needs_returns) {
  if (output.advantages.size() != tokens)
    return fail(ErrorCode::kConflict, "advantage: the estimator returned {} advantages, wanted {}",
                output.advantages.size(), tokens);
  if (output.returns.size() != tokens && (needs_returns || !output.returns.empty()))
    return fail(ErrorCode::kConflict, "advantage: the estimator returned {} returns, wanted {}",
                output.returns.size(), tokens);
  return {};
}

/// Mean, greatest and least of a stream of numbers.
struct Spread {
  double sum = 0;
  double count = 0;
  double max = 0;
  double min = 0;

  void add(double value) {
    max = count == 0 ? value : std::max(max, value);
    min = count == 0 ? value : std::min(min, value);
    sum += value;
    count += 1;
  }
  void report(Metrics& metrics, const std::string& prefix) const {
    if (count == 0) return;
    metrics.add(prefix + "/mean", sum / count, Reduction::kMean, count);
    metrics.add(prefix + "/max", max, Reduction::kMax);
    metrics.add(prefix + "/min", min, Reduction::kMin);
  }
};

/// Spread of a per-token quantity over unmasked tokens.
void report_tokens(Metrics& metrics, const std::string& prefix, const StepColumns& columns,
                   std::span<const float> values) {
  Spread spread;
  for (std::size_t t = 0; t < values.size(); ++t) {
    if (columns.mask[t] != 0) spread.add(values[t]);
  }
  spread.report(metrics, prefix);
}

/// Spread over non-empty sequences of Σ_t values.
void report_sequences(Metrics& metrics, const std::string& prefix, const TokenBatchView& view,
                      std::span<const float> values) {
  Spread spread;
  for (std::size_t row = 0; row < view.sequences(); ++row) {
    if (valid_length(view, row) == 0) continue;
    const auto begin = values.begin();
    spread.add(std::accumulate(begin + view.offsets[row], begin + view.offsets[row + 1], 0.0));
  }
  spread.report(metrics, prefix);
}

}  // namespace

result<Batch> AdvantageStep::operator()(const Batch& batch, runtime::PullMeter* meter) {
  TROUPE_TRY(StepColumns columns, read_columns(options_, batch, meter));
  Batch out(batch.rows());
  Metrics& metrics = out.metrics();
  const TokenBatchView view = columns.view();
  Spread scores;
  for (std::size_t row = 0; row < columns.scores.size(); ++row) {
    if (valid_length(view, row) > 0) scores.add(columns.scores[row]);
  }
  scores.report(metrics, "critic/score");

  std::vector<float> shaped = columns.scores;
  if (options_.overlong) {
    for (std::size_t row = 0; row < shaped.size(); ++row)
      shaped[row] +=
          static_cast<float>(overlong_penalty(valid_length(view, row), *options_.overlong));
  }
  TROUPE_TRY(PlacedRewards placed, place_rewards(view, shaped));
  std::vector<float> rewards = std::move(placed.rewards);
  if (options_.kl_in_reward) {
    TROUPE_TRY(KlPenalty penalty,
               kl_in_reward(view, rewards, columns.old_log_probs, columns.reference_log_probs,
                            options_.kl_kind, options_.kl_controller.beta));
    rewards = std::move(penalty.rewards);
    const double kl = penalty.kl.weight > 0 ? penalty.kl.sum / penalty.kl.weight : 0.0;
    metrics.add("actor/reward_kl_penalty", kl, Reduction::kMean, penalty.kl.weight);
    metrics.add("actor/reward_kl_penalty_coeff", options_.kl_controller.beta, Reduction::kLast);
    kl_seen_.sum += penalty.kl.sum;
    kl_seen_.weight += penalty.kl.weight;
  }
  report_sequences(metrics, "critic/rewards", view, rewards);

  const AdvantageInput input{
      .tokens = view, .rewards = rewards, .values = columns.values, .baselines = columns.baselines};
  TROUPE_TRY(AdvantageOutput advantage, options_.estimator(input, options_.options));
  TROUPE_TRY_VOID(check_output(advantage, columns.mask.size(),
                               options_.keep_returns || !columns.values.empty()));
  report_tokens(metrics, "critic/advantages", columns, advantage.advantages);
  report_tokens(metrics, "critic/returns", columns, advantage.returns);
  if (!columns.values.empty()) {
    report_tokens(metrics, "critic/values", columns, columns.values);
    TROUPE_TRY(const auto explained, explained_variance(view, columns.values, advantage.returns));
    // Of a step in parts: the mean over them.
    if (explained)
      metrics.add("critic/vf_explained_var", *explained, Reduction::kMean,
                  static_cast<double>(columns.values.size()));
  }
  WeightedSums counts;
  add_report(advantage.report, counts);
  for (const auto& [name, entry] : counts.entries()) metrics.add(name, entry.sum, Reduction::kSum);

  const std::vector<std::int64_t> lengths = batch.column(column::kResponses).row_lengths();
  TROUPE_TRY_VOID(out.set(std::string(column::kAdvantages),
                          Column::jagged(std::move(advantage.advantages), lengths)));
  if (options_.keep_returns)
    TROUPE_TRY_VOID(out.set(std::string(column::kReturns),
                            Column::jagged(std::move(advantage.returns), lengths)));
  return out;
}

void AdvantageStep::end_step() {
  if (kl_seen_.weight > 0)
    options_.kl_controller.update(kl_seen_.sum / kl_seen_.weight,
                                  static_cast<std::int64_t>(kl_seen_.weight));
  kl_seen_ = {};
}

}  // namespace troupe::actors
