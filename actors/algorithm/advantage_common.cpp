#include "actors/algorithm/advantage_common.hpp"

#include "actors/algorithm/token_math.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe::actors {

result<void> check_advantage(const AdvantageInput& input, const AdvantageOptions& options,
                             std::string_view estimator, OptionsRead read) {
  TROUPE_TRY_VOID(input.tokens.check());
  TROUPE_TRY_VOID(check_tokens(input.tokens, input.rewards, "rewards"));
  if (!(options.gamma >= 0 && options.gamma <= 1))
    return fail(ErrorCode::kConfig, "gamma: {}, wanted 0 to 1", options.gamma);
  if (!(options.lambda >= 0 && options.lambda <= 1))
    return fail(ErrorCode::kConfig, "lambda: {}, wanted 0 to 1", options.lambda);
  if (options.gamma != 1 && !read.gamma)
    return fail(ErrorCode::kConfig, "gamma: {} is set, but {} does not discount", options.gamma,
                estimator);
  if (options.lambda != 1 && !read.lambda)
    return fail(ErrorCode::kConfig, "lambda: {} is set, but {} does not use it", options.lambda,
                estimator);
  if (options.norm_by_std.value_or(false) && !read.norm_by_std)
    return fail(ErrorCode::kConfig,
                "norm_by_std: true is set, but {} does not divide by a standard deviation",
                estimator);
  if (!options.whiten && !read.whiten)
    return fail(ErrorCode::kConfig, "whiten: false is set, but {} does not read it", estimator);
  return {};
}

result<GroupAdvantages> per_group(const TokenBatchView& batch, std::span<const double> scores,
                                  const GroupRule& fill) {
  TROUPE_TRY(const SequenceGroups groups, SequenceGroups::make(batch));
  GroupAdvantages advantages;
  advantages.per_sequence.assign(batch.sequences(), 0.0);
  advantages.compared.assign(batch.sequences(), 0);
  advantages.varied.assign(batch.sequences(), 0);
  advantages.report.groups = static_cast<std::int64_t>(groups.size());
  std::int64_t grouped = 0;
  std::vector<double> scratch;
  std::vector<double> group_scores;
  std::vector<double> filled;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::span<const std::size_t> rows = groups.rows(g);
    grouped += static_cast<std::int64_t>(rows.size());
    if (rows.size() < 2) {
      ++advantages.report.singleton_groups;
      continue;
    }
    group_scores.clear();
    for (const std::size_t row : rows) group_scores.push_back(scores[row]);
    for (const std::size_t row : rows) advantages.compared[row] = 1;
    const GroupStatistics statistics = group_statistics(group_scores, scratch);
    if (statistics.all_equal) {
      ++advantages.report.zero_variance_groups;
      continue;
    }
    filled.assign(rows.size(), 0.0);
    fill(rows, group_scores, statistics, filled);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      advantages.per_sequence[rows[i]] = filled[i];
      advantages.varied[rows[i]] = 1;
    }
  }
  advantages.report.empty_sequences = static_cast<std::int64_t>(batch.sequences()) - grouped;
  return advantages;
}

std::vector<float> to_floats(std::span<const double> values) {
  std::vector<float> floats(values.size());
  std::transform(values.begin(), values.end(), floats.begin(),
                 [](double value) { return static_cast<float>(value); });
  return floats;
}

AdvantageOutput broadcast(const TokenBatchView& batch, const GroupAdvantages& advantages) {
  AdvantageOutput output;
  output.advantages.assign(batch.tokens(), 0.0F);
  for_each_token(batch, [&](std::size_t s, std::size_t t) {
    output.advantages[t] = static_cast<float>(advantages.per_sequence[s]);
  });
  output.returns = output.advantages;
  output.report = advantages.report;
  return output;
}

AdvantageOutput broadcast_whitened(const TokenBatchView& batch, GroupAdvantages advantages) {
  std::vector<double> values(batch.tokens(), 0.0);
  std::vector<std::uint8_t> compared(batch.tokens(), 0);
  for_each_token(batch, [&](std::size_t s, std::size_t t) {
    values[t] = advantages.per_sequence[s];
    compared[t] = advantages.compared[s];
  });
  TokenBatchView whitened = batch;
  whitened.mask = compared;
  AdvantageOutput output;
  output.report = advantages.report;
  output.report.unwhitened_tokens = whiten(whitened, values);
  output.advantages = to_floats(values);
  output.returns = output.advantages;
  return output;
}

std::int64_t whiten(const TokenBatchView& batch, std::span<double> values) {
  std::int64_t count = 0;
  double sum = 0;
  double smallest = std::numeric_limits<double>::infinity();
  double largest = -smallest;
  for_each_token(batch, [&](std::size_t, std::size_t t) {
    ++count;
    sum += values[t];
    smallest = std::min(smallest, values[t]);
    largest = std::max(largest, values[t]);
  });
  if (count == 0) return 0;
  if (count == 1 || smallest == largest) {
    for_each_token(batch, [&](std::size_t, std::size_t t) { values[t] = 0; });
    return count;
  }
  const double mean = sum / static_cast<double>(count);
  double squares = 0;
  for_each_token(batch, [&](std::size_t, std::size_t t) {
    const double difference = values[t] - mean;
    squares += difference * difference;
  });
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(count - 1) + 1e-8);
  for_each_token(batch,
                 [&](std::size_t, std::size_t t) { values[t] = (values[t] - mean) * scale; });
  return 0;
}

void add_report(const AdvantageReport& report, WeightedSums& metrics) {
  const auto add = [&](std::string_view name, std::int64_t count) {
    metrics.add(name, static_cast<double>(count), 1);
  };
  add("critic/groups", report.groups);
  add("critic/singleton_groups", report.singleton_groups);
  add("critic/zero_variance_groups", report.zero_variance_groups);
  add("critic/empty_sequences", report.empty_sequences);
  add("critic/unwhitened_tokens", report.unwhitened_tokens);
}

}  // namespace troupe::actors
