#include "actors/train/policy_pass.hpp"

#include "actors/algorithm/ratio_metrics.hpp"

#include <cmath>
#include <utility>

namespace troupe::actors {

result<void> check_policy_update(const PackedSequences& sequences, const PolicyUpdate& update,
                                 bool own_proximal) {
  const std::int64_t tokens = sequences.response_tokens();
  TROUPE_TRY_VOID(check_size(update.old_log_probs, tokens, "old_log_probs", own_proximal));
  TROUPE_TRY_VOID(check_size(update.advantages, tokens, "advantages"));
  TROUPE_TRY_VOID(check_size(update.reference_log_probs, tokens, "reference_log_probs", true));
  TROUPE_TRY_VOID(check_size(update.rollout_weights, tokens, "rollout_weights", true));
  const bool reads_rollout = update.loss.reads_rollout || update.reports_ratios;
  TROUPE_TRY_VOID(
      check_size(update.rollout_log_probs, tokens, "rollout_log_probs", !reads_rollout));
  TROUPE_TRY_VOID(check_size(update.proximal_alphas, tokens, "proximal_alphas", true));
  if (update.cut.has_truncation()) TROUPE_TRY_VOID(update.transform().check());
  if (!(update.temperature > 0) || !std::isfinite(update.temperature))
    return fail(ErrorCode::kInvalidArgument, "update_policy: temperature {} is not positive",
                update.temperature);
  if (!update.loss.apply)
    return fail(ErrorCode::kInvalidArgument, "update_policy: no loss function is set");
  const auto ids = static_cast<std::int64_t>(update.sequence_ids.size());
  if (ids != sequences.count() && (ids != 0 || update.loss.selects_tokens()))
    return fail(ErrorCode::kInvalidArgument, "update_policy: {} sequence ids for {} sequences", ids,
                sequences.count());
  return {};
}

result<void> check_value_update(const PackedSequences& sequences, const ValueUpdate& update) {
  const std::int64_t tokens = sequences.response_tokens();
  TROUPE_TRY_VOID(check_size(update.returns, tokens, "returns"));
  return check_size(update.old_values, tokens, "old_values", update.options.clip <= 0);
}

PolicyPart::PolicyPart(const MicroBatch& batch, const PolicyUpdate& update)
    : old_log_probs(batch.part(update.old_log_probs)),
      advantages(batch.part(update.advantages)),
      reference(batch.part(update.reference_log_probs)),
      weights(batch.part(update.rollout_weights)),
      rollout(batch.part(update.rollout_log_probs)),
      alphas(batch.part(update.proximal_alphas)) {
  if (!update.sequence_ids.empty())
    for (const std::int64_t s : batch.sequences)
      sequence_ids.push_back(update.sequence_ids[static_cast<std::size_t>(s)]);
}

PolicyLossInput PolicyPart::loss_input(const Shard& shard, std::size_t batch,
                                       std::span<const float> log_probs,
                                       const LossNormaliser& normaliser) const {
  return {.tokens = shard.view(batch, sequence_ids),
          .log_probs = log_probs,
          .old_log_probs = old_log_probs,
          .advantages = advantages,
          .rollout_weights = weights,
          .normaliser = normaliser,
          .selection = nullptr,
          .rollout_log_probs = rollout,
          .proximal_alphas = alphas};
}

result<OutputGradient> PolicyPass::loss(std::size_t batch, ModelValues values) {
  PolicyPart part(shard_.batches[batch], update_);
  // Only a streamed part may come without: its weights are still those of the step's start.
  if (update_.old_log_probs.empty())
    part.old_log_probs.assign(values.primary.begin(), values.primary.end());
  if (update_.reports_ratios)
    TROUPE_TRY_VOID(add_ratio_metrics(shard_.view(batch), values.primary, part.rollout,
                                      "rollout_corr", ratios));
  PolicyObjectiveInput input{.loss = part.loss_input(shard_, batch, values.primary, normaliser_),
                             .entropy = values.entropy,
                             .reference_log_probs = part.reference};
  input.loss.selection = selection_;
  TROUPE_TRY(PolicyObjectiveOutput out, policy_objective(update_.loss, input, objective_));
  sums.merge(out.metrics);
  return OutputGradient{.primary = std::move(out.log_prob_gradient),
                        .entropy = std::move(out.entropy_gradient)};
}

result<OutputGradient> value_batch_loss(const Shard& shard, const ValueUpdate& update,
                                        const LossNormaliser& normaliser, std::size_t batch,
                                        ModelValues values, WeightedSums& sums) {
  const std::vector<float> returns = shard.batches[batch].part(update.returns);
  const std::vector<float> old_values = shard.batches[batch].part(update.old_values);
  TROUPE_TRY(ValueLossOutput out, value_loss({.tokens = shard.view(batch),
                                              .values = values.primary,
                                              .old_values = old_values,
                                              .returns = returns,
                                              .normaliser = normaliser},
                                             update.options));
  sums.merge(out.metrics);
  return OutputGradient{.primary = std::move(out.loss.gradient), .entropy = {}};
}

}  // namespace troupe::actors
