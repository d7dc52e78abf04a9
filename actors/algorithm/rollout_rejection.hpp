#pragma once

// Which tokens and sequences are too far from the policy that sampled them to be learnt from:
// criteria over δ = log π_a - log π_b, a the proximal (or current) policy and b the behaviour one.
//
// A rejected token gets weight 0 and **stays in the loss's denominator**, so rejecting never makes
// the gradient of the others larger. What is rejected is a constant of the loss.
// **Threads:** pure functions.
// **Invariants:** δ = 0 everywhere rejects nothing; each criterion looks at one sequence only, but
// for the second moment (M2PO), which looks at the whole batch it is given.

#include "actors/algorithm/token_batch.hpp"
#include "runtime/base/result.hpp"
#include "runtime/wire/wire_traits.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace troupe::actors {

/// verl's `rollout_rs` names (Liu et al. 2025, "When speed kills stability"). With ρ = e^δ:
/// k1 compares a ratio with [low, high]; k2 = δ²/2 and k3 = ρ - 1 - δ compare with `high`.
enum class RejectionCriterion {
  kTokenK1,    ///< token: ρ
  kTokenK2,    ///< token: k2
  kTokenK3,    ///< token: k3
  kSeqSumK1,   ///< sequence: Π ρ
  kSeqSumK2,   ///< sequence: Σ k2
  kSeqSumK3,   ///< sequence: Σ k3
  kSeqMeanK1,  ///< sequence: exp(mean δ), the geometric mean
  kSeqMeanK2,  ///< sequence: mean k2
  kSeqMeanK3,  ///< sequence: mean k3
  kSeqMaxK2,   ///< sequence: its largest k2
  kSeqMaxK3,   ///< sequence: its largest k3
};
std::string_view rejection_criterion_name(RejectionCriterion criterion);

struct Rejection {
  RejectionCriterion criterion = RejectionCriterion::kTokenK1;
  double low = 0;   ///< of k1: least ratio kept; 0 sets none
  double high = 0;  ///< largest value kept
  bool operator==(const Rejection&) const = default;
  /// kConfig unless 0 ≤ low ≤ 1 ≤ high for k1, low = 0 < high for k2 and k3.
  result<void> check() const;

  static constexpr auto fields() {
    using runtime::field;
    using T = Rejection;
    return std::tuple{field("criterion", &T::criterion), field("low", &T::low),
                      field("high", &T::high)};
  }
};

/// A bound as users of verl write it: "2.0", or "0.5_5.0" for both sides.
struct BoundText {
  double low = 0;
  double high = 0;
  bool two_sided = false;
};
result<BoundText> parse_bound(std::string_view text, std::string_view key);

/// Names and bounds joined by commas, e.g. "seq_mean_k1,token_k3" and "0.999_1.001,0.01". One
/// number h as the bound of a k1 means [1/h, h]. kConfig naming the key otherwise.
result<std::vector<Rejection>> parse_rejections(std::string_view names, std::string_view bounds);

/// Clears `kept` where `rejection` rejects; returns how many unmasked tokens it rejects (whether
/// or not they were kept until then). `kept` [T].
std::int64_t reject(const TokenBatchView& batch, std::span<const float> log_probs,
                    std::span<const float> rollout_log_probs, const Rejection& rejection,
                    std::span<std::uint8_t> kept);

/// Drops every sequence with a token of ρ < `least` (slime, verl: 1e-4 to 1e-6).
std::int64_t reject_vetoed(const TokenBatchView& batch, std::span<const float> log_probs,
                           std::span<const float> rollout_log_probs, double least,
                           std::span<std::uint8_t> kept);

/// Off-policy sequence mask (DeepSeek-V3.2 2025; slime's OPSM): drops tokens of advantage < 0 in
/// sequences where mean(log π_b - log π_a) > `kl_max`. Only ever stops pushing down.
std::int64_t reject_negative(const TokenBatchView& batch, std::span<const float> log_probs,
                             std::span<const float> rollout_log_probs,
                             std::span<const float> advantages, double kl_max,
                             std::span<std::uint8_t> kept);

/// M2PO (Zheng et al. 2025, "Prosperity before collapse"): drops tokens of the largest |δ| until
/// the mean of δ² over the rest is at most `moment_max`; tokens of equal |δ| go together, so the
/// choice does not depend on their order. All go when even the smallest δ² is above.
std::int64_t reject_second_moment(const TokenBatchView& batch, std::span<const float> log_probs,
                                  std::span<const float> rollout_log_probs, double moment_max,
                                  std::span<std::uint8_t> kept);

}  // namespace troupe::actors
