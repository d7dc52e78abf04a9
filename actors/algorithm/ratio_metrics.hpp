#pragma once

// Diagnostics of importance ratios ρ = exp(log π_a - log π_b), always of the raw ones: before any
// truncation, mask or normalisation.
//
// Every figure has a declared reduction (runtime/observe/metrics.hpp) or is derived from such ones
// by `finish_ratio_metrics`, so parts of a batch on any ranks, merged in any order, give the
// figures of the whole. **Call `finish_ratio_metrics` once, after the last merge.**
// **Threads:** pure functions.
// **Invariants:** masked tokens count nowhere; a batch without tokens adds nothing; log-ratios are
// held within ±20, so all figures are finite. **Cost:** O(T log buckets).

#include "actors/algorithm/token_batch.hpp"
#include "runtime/base/result.hpp"
#include "runtime/observe/metrics.hpp"

#include <optional>
#include <span>
#include <string_view>

namespace troupe::actors {

/// Adds under `prefix`, of a's and b's log-probs, f32 [T] each:
/// `/ratio` (distribution, value its mean), `/ratio_min`, `/ratio_max`, `/ratio_squared`;
/// `/kl` = mean(-log ρ), which is KL(b ‖ a) where b sampled (k1), `/k3_kl` = mean(ρ - 1 - log ρ)
/// (Schulman 2020, "Approximating KL divergence"); `/second_moment` = mean(log² ρ);
/// `/log_probs_diff_mean`, `/log_probs_diff_max` of |log ρ|.
result<void> add_ratio_metrics(const TokenBatchView& batch, std::span<const float> a,
                               std::span<const float> b, std::string_view prefix,
                               runtime::Metrics& metrics);

/// (Σw)² / (N Σw²) from the means of w and w²: 1 when all are equal, 1/N when one has it all. Empty
/// when every weight is 0.
std::optional<double> effective_sample_share(double mean, double mean_of_squares);

/// Adds what no reduction can give: `/ratio_ess`, `/ratio_p50`, `/ratio_p95`, `/ratio_p99` (within
/// 2.5 %), and `/ess` where the weights of `add_correction_metrics` are there too.
void finish_ratio_metrics(std::string_view prefix, runtime::Metrics& metrics);

}  // namespace troupe::actors
