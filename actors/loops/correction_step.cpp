#include "actors/loops/correction_step.hpp"

#include "actors/algorithm/ratio_metrics.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/token_column.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;
using runtime::Reduction;

constexpr std::string_view kPrefix = "rollout_corr";

/// The columns that weights are made of, flat and in row order.
struct CorrectionColumns {
  std::vector<std::int64_t> lengths;     ///< [B]
  std::vector<std::int64_t> offsets;     ///< [B+1]
  std::vector<std::uint8_t> mask;        ///< [T]
  std::vector<float> old_log_probs;      ///< [T]
  std::vector<float> rollout_log_probs;  ///< [T]
  std::vector<float> advantages;         ///< [T] or empty

  CorrectionInput input() const {
    return {.tokens = TokenBatchView{.offsets = offsets, .mask = mask},
            .log_probs = old_log_probs,
            .rollout_log_probs = rollout_log_probs,
            .advantages = advantages};
  }
};

template <class T>
result<std::vector<T>> token_column(const Batch& batch, std::string_view name,
                                    std::span<const std::int64_t> lengths) {
  TROUPE_TRY(const Column found, require_token_column(batch, name, lengths, "correction"));
  return found.values<T>();
}

/// Padding takes part in nothing.
void mask_padding(const Batch& batch, CorrectionColumns& columns) {
  const Column* valid = batch.find(runtime::kValidColumn);
  if (valid == nullptr) return;
  for (std::int64_t row = 0; row < valid->rows(); ++row) {
    if (valid->scalar<bool>(row)) continue;
    const auto i = static_cast<std::size_t>(row);
    std::fill(columns.mask.begin() + columns.offsets[i],
              columns.mask.begin() + columns.offsets[i + 1], std::uint8_t{0});
  }
}

result<CorrectionColumns> read_columns(const Batch& batch, bool with_advantages,
                                       runtime::PullMeter* meter) {
  TROUPE_TRY(const Column responses, batch.require(column::kResponses));
  CorrectionColumns columns;
  columns.lengths = responses.row_lengths();
  columns.offsets.assign(columns.lengths.size() + 1, 0);
  std::partial_sum(columns.lengths.begin(), columns.lengths.end(), columns.offsets.begin() + 1);
  std::vector<std::string> names{std::string(column::kOldLogProbs),
                                 std::string(column::kRolloutLogProbs)};
  if (with_advantages) names.emplace_back(column::kAdvantages);
  for (const std::string_view name : {column::kResponseMask, runtime::kValidColumn})
    if (batch.has(name)) names.emplace_back(name);
  TROUPE_TRY(const Batch selected, batch.select(names));
  TROUPE_TRY(const Batch local, selected.resolve(meter));
  columns.mask.assign(static_cast<std::size_t>(columns.offsets.back()), 1);
  if (local.has(column::kResponseMask)) {
    TROUPE_TRY(columns.mask,
               token_column<std::uint8_t>(local, column::kResponseMask, columns.lengths));
  }
  mask_padding(local, columns);
  TROUPE_TRY(columns.old_log_probs,
             token_column<float>(local, column::kOldLogProbs, columns.lengths));
  TROUPE_TRY(columns.rollout_log_probs,
             token_column<float>(local, column::kRolloutLogProbs, columns.lengths));
  if (with_advantages) {
    TROUPE_TRY(columns.advantages,
               token_column<float>(local, column::kAdvantages, columns.lengths));
  }
  return columns;
}

void add_sums(const WeightedSums& sums, runtime::Metrics& metrics) {
  for (const auto& [name, entry] : sums.entries()) {
    // Raw ratios are reported by whoever has both log-probs, whether or not they are corrected.
    if (entry.weight == 0 || name.ends_with("/kl") || name.ends_with("/k3_kl")) continue;
    metrics.add(name, entry.sum / entry.weight, Reduction::kMean, entry.weight);
  }
}

}  // namespace

result<void> CorrectionStep::begin(Batch& batch) const {
  if (options_.log_probs == LogProbKind::kProcessed && batch.has(column::kProcessedLogProbs)) {
    TROUPE_TRY(const Column processed, batch.require(column::kProcessedLogProbs));
    TROUPE_TRY_VOID(batch.set(std::string(column::kRolloutLogProbs), processed));
  }
  if (options_.correction.proximal == ProximalSource::kRecompute) return {};
  TROUPE_TRY(const Column rollout, batch.require(column::kRolloutLogProbs));
  return batch.set(std::string(column::kOldLogProbs), rollout);
}

result<Batch> CorrectionStep::weights(const Batch& batch, runtime::PullMeter* meter) const {
  Batch out(batch.rows());
  if (!computes_weights()) {
    if (!options_.in_loss) out.metrics().add("rollout_corr/masked_fraction", 0, Reduction::kMean);
    return out;
  }
  TROUPE_TRY(const CorrectionColumns columns,
             read_columns(batch, options_.correction.negative_kl_max.has_value(), meter));
  TROUPE_TRY(CorrectionOutput found, rollout_correction(columns.input(), options_.correction));
  add_sums(found.metrics, out.metrics());
  TROUPE_TRY_VOID(out.set(std::string(column::kRolloutWeights),
                          Column::jagged(std::move(found.weights), columns.lengths)));
  return out;
}

void finish_correction(runtime::Metrics& metrics) {
  finish_ratio_metrics(kPrefix, metrics);
  const auto copy = [&](std::string_view from, std::string_view to) {
    if (const std::optional<double> value = metrics.value(from))
      metrics.add(to, *value, Reduction::kLast);
  };
  copy("rollout_corr/log_probs_diff_mean", "sampling_logp_difference/mean");
  copy("rollout_corr/log_probs_diff_max", "sampling_logp_difference/max");
}

}  // namespace troupe::actors
