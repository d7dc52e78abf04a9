#include "actors/algorithm/ratio_metrics.hpp"

#include "actors/algorithm/token_math.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace troupe::actors {

using runtime::Metrics;
using runtime::Reduction;

result<void> add_ratio_metrics(const TokenBatchView& batch, std::span<const float> a,
                               std::span<const float> b, std::string_view prefix,
                               Metrics& metrics) {
  TROUPE_TRY_VOID(batch.check());
  const std::string at(prefix);
  TROUPE_TRY_VOID(check_log_probs(batch, a, at + ": log_probs"));
  TROUPE_TRY_VOID(check_log_probs(batch, b, at + ": rollout_log_probs"));
  const std::string ratio = at + "/ratio";
  double squares = 0;
  double kl = 0;
  double k3 = 0;
  double second = 0;
  double difference = 0;
  double difference_max = 0;
  double tokens = 0;
  for_each_token(batch, [&](std::size_t, std::size_t t) {
    const double log_rho = log_ratio(a[t], b[t]).value;
    const double rho = std::exp(log_rho);
    metrics.add(ratio, rho, Reduction::kHistogram);
    squares += rho * rho;
    kl -= log_rho;
    k3 += std::expm1(log_rho) - log_rho;
    second += log_rho * log_rho;
    difference += std::abs(log_rho);
    difference_max = std::max(difference_max, std::abs(log_rho));
    ++tokens;
  });
  if (tokens == 0) return {};
  const runtime::MetricEntry extremes = *metrics.find(ratio);
  metrics.add(at + "/ratio_min", extremes.min, Reduction::kMin);
  metrics.add(at + "/ratio_max", extremes.max, Reduction::kMax);
  const std::pair<const char*, double> means[] = {{"/ratio_squared", squares},
                                                  {"/kl", kl},
                                                  {"/k3_kl", k3},
                                                  {"/second_moment", second},
                                                  {"/log_probs_diff_mean", difference}};
  for (const auto& [name, sum] : means)
    metrics.add(at + name, sum / tokens, Reduction::kMean, tokens);
  metrics.add(at + "/log_probs_diff_max", difference_max, Reduction::kMax);
  return {};
}

std::optional<double> effective_sample_share(double mean, double mean_of_squares) {
  if (!(mean_of_squares > 0)) return std::nullopt;
  return mean * mean / mean_of_squares;
}

void finish_ratio_metrics(std::string_view prefix, Metrics& metrics) {
  const std::string at(prefix);
  const auto add_share = [&](const char* name, const std::optional<double>& mean,
                             const std::optional<double>& squares) {
    if (!mean || !squares) return;
    if (const auto share = effective_sample_share(*mean, *squares))
      metrics.add(at + name, *share, Reduction::kLast);
  };
  add_share("/ratio_ess", metrics.value(at + "/ratio"), metrics.value(at + "/ratio_squared"));
  add_share("/ess", metrics.value(at + "/weight_mean"), metrics.value(at + "/weight_squared"));
  const runtime::MetricEntry* ratio = metrics.find(at + "/ratio");
  if (ratio == nullptr) return;
  const runtime::Histogram histogram = ratio->histogram;  // adding may move the entry
  for (const auto& [name, share] :
       {std::pair{"/ratio_p50", 0.5}, std::pair{"/ratio_p95", 0.95}, std::pair{"/ratio_p99", 0.99}})
    if (const auto found = histogram.quantile(share))
      metrics.add(at + name, *found, Reduction::kLast);
}

}  // namespace troupe::actors
