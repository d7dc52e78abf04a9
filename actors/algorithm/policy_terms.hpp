#pragma once

// The frame of every policy loss: input checks, token weights, one walk over the tokens, metrics.
// A loss supplies only the term of one token. Internal to actors/algorithm.
//
// **Threads:** pure functions.

#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/token_math.hpp"

#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

namespace troupe::actors {

/// What a loss may read of one token.
struct PolicyToken {
  double log_prob = 0;
  double old_log_prob = 0;
  double advantage = 0;
  double log_ratio = 0;      ///< within ±20; 0 without old log-probs
  bool ratio_inside = true;  ///< the log-ratio was within the bound: it has a gradient
  double ratio = 1;          ///< exp(log_ratio)
  double ratio_slope = 1;    ///< d ratio / d log_prob
  TokenKey key;              ///< sequence id (or index) and position
};

/// ℓ of one token and d ℓ / d log_prob, before weights.
struct PolicyTerm {
  double value = 0;
  double slope = 0;
  bool clipped = false;        ///< counts in actor/pg_clipfrac
  bool clipped_lower = false;  ///< counts in actor/pg_clipfrac_lower
};

/// Layout, columns, options.
result<void> check_policy(const PolicyLossInput& input, const PolicyLossOptions& options,
                          std::string_view loss, bool needs_old = true);

PolicyToken policy_token(const PolicyLossInput& input, std::size_t sequence, std::size_t token);

/// ρ clipped to [1 - ε_l, 1 + ε_h], the larger loss of the two.
PolicyTerm clipped_term(double advantage, double ratio, double ratio_slope,
                        const PolicyLossOptions& options);

/// Sums up what all losses report.
class PolicyMetrics {
 public:
  void add(const PolicyToken& token, const PolicyTerm& term);
  /// Writes actor/… for a part with `local` of the mini-batch's counts and loss `loss`.
  void write(const TokenCounts& local, const LossNormaliser& normaliser, double loss, bool with_kl,
             WeightedSums& metrics) const;

 private:
  double clipped_ = 0;
  double clipped_lower_ = 0;
  double kl_ = 0;
};

/// Adds an aggregate of a part of the mini-batch, weighted with the part's share of its tokens, so
/// that the weights of all parts add up to 1 (deferred: once they are settled).
void add_aggregate(std::string_view name, double value, const TokenCounts& local,
                   const LossNormaliser& normaliser, WeightedSums& metrics);

/// loss = Σ w_t · rollout weight · term(token).value, with its gradient and metrics.
template <class Term>
result<PolicyLossOutput> sum_terms(const PolicyLossInput& input, const PolicyLossOptions& options,
                                   LossAggregation default_mode, Term&& term) {
  const TokenBatchView& batch = input.tokens;
  TROUPE_TRY(
      const TokenWeights weights,
      TokenWeights::make(batch, options.aggregation.value_or(default_mode), input.normaliser));
  PolicyLossOutput output;
  output.gradient.assign(batch.tokens(), 0.0F);
  PolicyMetrics metrics;
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    const double sequence_weight = weights.of_sequence(valid_length(batch, s));
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const PolicyToken token = policy_token(input, s, t);
      const PolicyTerm result = term(token, s);
      const double weight = input.rollout_weights.empty()
                                ? sequence_weight
                                : sequence_weight * input.rollout_weights[t];
      output.loss += weight * result.value;
      output.gradient[t] = static_cast<float>(weight * result.slope);
      metrics.add(token, result);
    }
  }
  metrics.write(count_tokens(batch), input.normaliser, output.loss, !input.old_log_probs.empty(),
                output.metrics);
  return output;
}

}  // namespace troupe::actors
