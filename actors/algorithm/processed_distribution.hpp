#pragma once

// Log-probs of the distribution that a token was really drawn from: softmax(logits / temperature)
// cut down by min-p, top-k and top-p and renormalised. An importance ratio compares two such
// log-probs, so both sides must be of the same kind; one side only, and the ratio is off by the
// kept mass (top_p 0.8: about 0.9 on average) even where the policies are equal.
//
// The rollout engine reports both kinds of every token (generate_request.hpp): `full_log_probs`
// without the cut, and `log_probs` with it. `log_prob_rule` says which to use, and what the trainer
// must compute. Rules and reasons: docs/algorithms.md.
// **Threads:** pure functions; a `RowProcessor` is one thread's.
// **Cost:** O(V) a row; top-k adds a selection, top-p a sort of what can stay.

#include "actors/algorithm/token_batch.hpp"
#include "runtime/base/result.hpp"
#include "runtime/wire/wire_traits.hpp"

#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

namespace troupe::actors {

/// What sampling did to the logits; meanings, order and ties as in the rollout's SamplingOptions:
/// temperature, min-p, top-k (ties stay), top-p (ties by id).
struct SamplingTransform {
  double temperature = 1;
  double top_p = 1;
  std::int32_t top_k = 0;  ///< ≤ 0 keeps all
  double min_p = 0;
  bool has_penalties = false;
  bool operator==(const SamplingTransform&) const = default;
  bool has_truncation() const { return top_p < 1 || top_k > 0 || min_p > 0; }
  /// kConfig unless in the ranges of SamplingOptions, and not greedy.
  result<void> check() const;

  static constexpr auto fields() {
    using runtime::field;
    using T = SamplingTransform;
    return std::tuple{field("temperature", &T::temperature), field("top_p", &T::top_p),
                      field("top_k", &T::top_k), field("min_p", &T::min_p),
                      field("has_penalties", &T::has_penalties)};
  }
};

enum class LogProbKind {
  kFull,       ///< of softmax(logits / temperature), both sides
  kProcessed,  ///< of the truncated distribution, both sides
};
/// full, processed; kConfig otherwise.
result<LogProbKind> log_prob_kind_from_name(std::string_view name);

struct LogProbRule {
  LogProbKind rollout = LogProbKind::kFull;  ///< which of GeneratedSequence's two lists to use
  double temperature = 1;                    ///< the trainer divides its logits by it
  bool trainer_filters =
      false;  ///< the trainer cuts its own logits by the same rule (RowProcessor)
  /// The ratio is that of the sampling distributions. False for `full` under truncation, where it
  /// lacks the factor Z_b / Z_a (kept masses) but is 1 where the policies are equal.
  bool exact = true;
};
/// Without truncation both kinds are equal and `full` is taken. Refused (kConfig): greedy, whose
/// token has probability 1, and penalties, which depend on the history and which no trainer redoes.
result<LogProbRule> log_prob_rule(const SamplingTransform& transform, LogProbKind wanted);

/// One row under the transform.
struct ProcessedRow {
  double log_prob = 0;       ///< of the token, renormalised over the kept set; ≤ 0
  double full_log_prob = 0;  ///< of softmax(logits / temperature)
  double kept_mass = 1;      ///< Z: share of the full distribution that the kept set has
  std::int64_t kept = 0;     ///< tokens in the kept set
  bool added = false;        ///< the token was outside this policy's own set and was put in
};

/// Slow and plain: the oracle of what the trainer does with tensors. The kept set comes from *this*
/// policy's logits; the sampled token is always in it, so that its log-prob is finite.
class RowProcessor {
 public:
  /// logits [V] finite, token in [0, V). kInvalidArgument otherwise.
  result<ProcessedRow> process(std::span<const float> logits, std::int32_t token,
                               const SamplingTransform& transform);
  /// The kept set of the last row, [V] of 0 and 1.
  std::span<const std::uint8_t> kept() const { return kept_; }
  /// out[v] = upstream · d log_prob / d logit v of the last row = upstream (1[v = token] - p_v) / T
  /// with p over the kept set, which is a constant: 0 outside. `out` [V].
  void gradient(double upstream, std::span<double> out) const;

 private:
  void keep_min_p(double min_p);
  void keep_top_k(std::int32_t k);
  void keep_top_p(double p);
  double kept_weight() const;

  std::span<const float> logits_;
  std::vector<double> weights_;  // exp((logit - max) / T)
  std::vector<std::uint8_t> kept_;
  std::vector<std::int32_t> order_;
  std::int32_t token_ = 0;
  double temperature_ = 1;
};

/// Z_b = exp(full - processed) of each token, f32 [T] → f32 [T] in (0, 1]; 1 on masked tokens. What
/// the two lists of the engine say about the kept set. kInvalidArgument naming sequence and token
/// where processed < full: the columns are exchanged, or penalties were on.
result<std::vector<float>> kept_masses(const TokenBatchView& batch,
                                       std::span<const float> full_log_probs,
                                       std::span<const float> processed_log_probs);

/// log π_a,full - log Z_b: the processed log-prob of a trainer that does not filter, under the
/// assumption that its kept set has the same mass. Against `processed` rollout log-probs this is
/// the ratio of `full` on both sides.
result<std::vector<float>> log_probs_at_kept_mass(const TokenBatchView& batch,
                                                  std::span<const float> full_log_probs,
                                                  std::span<const float> rollout_full_log_probs,
                                                  std::span<const float> rollout_log_probs);

}  // namespace troupe::actors
