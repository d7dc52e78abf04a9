// The three kinds of update: policy, value, supervised.
#include "actors/algorithm/ratio_metrics.hpp"
#include "actors/train/train_engine_impl.hpp"
#include "runtime/base/rng.hpp"

#include <torch/torch.h>

#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

using runtime::Metrics;
using runtime::Reduction;

/// The policy's per-token inputs of one micro-batch, packed like it.
struct PolicyPart {
  std::vector<float> old_log_probs;
  std::vector<float> advantages;
  std::vector<float> reference;
  std::vector<float> weights;
  std::vector<float> rollout;
  std::vector<float> alphas;
  std::vector<std::int64_t> sequence_ids;

  PolicyPart(const MicroBatch& batch, const PolicyUpdate& update)
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

  PolicyLossInput loss_input(const Shard& shard, std::size_t batch,
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
};

result<void> check_trainable(const TrainEngineOptions& options, ModelHead head,
                             std::string_view call) {
  if (!options.trainable)
    return fail(ErrorCode::kInvalidArgument, "{}: this engine was created with trainable = false",
                call);
  if (options.head != head)
    return fail(ErrorCode::kInvalidArgument, "{}: this engine has the other head ({})", call,
                options.head == ModelHead::kValue ? "value" : "language model");
  return {};
}

result<void> check_update(const PackedSequences& sequences, const PolicyUpdate& update) {
  const std::int64_t tokens = sequences.response_tokens();
  TROUPE_TRY_VOID(check_size(update.old_log_probs, tokens, "old_log_probs"));
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

/// make_shard after `check`, as one result.
template <class Check>
result<Shard> checked_shard(const TrainEngine::Impl& impl, const PackedSequences& sequences,
                            std::span<const std::uint8_t> mask, const Check& check) {
  TROUPE_TRY(Shard shard, impl.make_shard(sequences, mask, impl.options.micro_batch_tokens_max));
  TROUPE_TRY_VOID(check());
  return shard;
}

/// Stage 1 and 2 of losses that select tokens: one forward pass and two collectives.
result<TokenSelection> select_tokens(TrainEngine::Impl& impl, Shard& shard,
                                     const PolicyUpdate& update,
                                     const PolicyLossOptions& loss_options,
                                     const LossNormaliser& normaliser) {
  const auto collect = [&]() -> result<CovarianceStatistics> {
    TROUPE_TRY(const ShardOutput output, impl.forward_all(shard, update.transform()));
    CovarianceStatistics statistics;
    for (std::size_t b = 0; b < shard.batches.size(); ++b) {
      if (shard.batches[b].rows.empty()) continue;
      const PolicyPart part(shard.batches[b], update);
      const std::vector<float> log_probs =
          shard.batches[b].part(std::span<const float>(output.primary));
      TROUPE_TRY(
          const CovarianceStatistics found,
          update.loss.collect(part.loss_input(shard, b, log_probs, normaliser), loss_options));
      statistics.merge(found);
    }
    return statistics;
  };
  result<CovarianceStatistics> statistics = collect();
  TROUPE_TRY_VOID(impl.agree(error_of(statistics), shard.counts));
  if (runtime::Collective* dp = impl.groups->dp(); dp != nullptr) {
    const std::vector<std::int64_t> mine = statistics->to_words();
    TROUPE_TRY(const auto parts, impl.told(dp->all_gather_variable<std::int64_t>(
                                     std::span<const std::int64_t>(mine), impl.deadline())));
    std::vector<std::int64_t> words;
    for (const std::vector<std::int64_t>& part : parts)
      words.insert(words.end(), part.begin(), part.end());
    statistics = CovarianceStatistics::from_words(words);
    if (!statistics) return fail(std::move(statistics).error());
  }
  if (statistics->size() == 0) return TokenSelection{};
  return update.loss.select(*statistics, loss_options);
}

}  // namespace

result<Metrics> TrainEngine::update_policy(const PackedSequences& sequences,
                                           const PolicyUpdate& update) {
  TROUPE_TRY_VOID(check_trainable(impl_->options, ModelHead::kLanguage, "update_policy"));
  TROUPE_TRY_VOID(impl_->begin());
  result<Shard> shard = checked_shard(*impl_, sequences, update.mask,
                                      [&] { return check_update(sequences, update); });
  TROUPE_TRY(const TokenCounts global,
             impl_->agree(error_of(shard), shard ? shard->counts : TokenCounts{}));
  const LossNormaliser normaliser{.global = global, .scale_factor = update.loss_scale_factor};
  PolicyObjectiveOptions objective = update.objective;
  objective.loss.seed = mix_seed(mix_seed(impl_->options.seed, objective.loss.seed),
                                 static_cast<std::uint64_t>(impl_->steps));
  TokenSelection selection;
  if (update.loss.selects_tokens()) {
    TROUPE_TRY(selection, select_tokens(*impl_, *shard, update, objective.loss, normaliser));
  }
  WeightedSums sums;
  Metrics metrics;
  const auto loss = [&](std::size_t b, ModelValues values) -> result<OutputGradient> {
    const PolicyPart part(shard->batches[b], update);
    if (update.reports_ratios)
      TROUPE_TRY_VOID(
          add_ratio_metrics(shard->view(b), values.primary, part.rollout, "rollout_corr", metrics));
    PolicyObjectiveInput input{.loss = part.loss_input(*shard, b, values.primary, normaliser),
                               .entropy = values.entropy,
                               .reference_log_probs = part.reference};
    if (update.loss.selects_tokens()) input.loss.selection = &selection;
    TROUPE_TRY(PolicyObjectiveOutput out, policy_objective(update.loss, input, objective));
    sums.merge(out.metrics);
    return OutputGradient{.primary = std::move(out.log_prob_gradient),
                          .entropy = std::move(out.entropy_gradient)};
  };
  TROUPE_TRY(const StepReport report,
             impl_->optimize(*shard, update.transform(), global, loss, sums));
  add_metrics(sums, metrics);
  add_step_metrics(report, "actor", metrics);
  metrics.add("actor/tokens", static_cast<double>(shard->counts.tokens), Reduction::kSum);
  metrics.add("actor/micro_batches", static_cast<double>(shard->batches.size()), Reduction::kSum);
  return metrics;
}

result<Metrics> TrainEngine::update_value(const PackedSequences& sequences,
                                          const ValueUpdate& update) {
  TROUPE_TRY_VOID(check_trainable(impl_->options, ModelHead::kValue, "update_value"));
  TROUPE_TRY_VOID(impl_->begin());
  result<Shard> shard = checked_shard(*impl_, sequences, update.mask, [&]() -> result<void> {
    const std::int64_t tokens = sequences.response_tokens();
    TROUPE_TRY_VOID(check_size(update.returns, tokens, "returns"));
    return check_size(update.old_values, tokens, "old_values", update.options.clip <= 0);
  });
  TROUPE_TRY(const TokenCounts global,
             impl_->agree(error_of(shard), shard ? shard->counts : TokenCounts{}));
  WeightedSums sums;
  const auto loss = [&](std::size_t b, ModelValues values) -> result<OutputGradient> {
    const std::vector<float> returns = shard->batches[b].part(update.returns);
    const std::vector<float> old_values = shard->batches[b].part(update.old_values);
    TROUPE_TRY(
        ValueLossOutput out,
        value_loss({.tokens = shard->view(b),
                    .values = values.primary,
                    .old_values = old_values,
                    .returns = returns,
                    .normaliser = {.global = global, .scale_factor = update.loss_scale_factor}},
                   update.options));
    sums.merge(out.metrics);
    return OutputGradient{.primary = std::move(out.loss.gradient), .entropy = {}};
  };
  TROUPE_TRY(const StepReport report, impl_->optimize(*shard, {}, global, loss, sums));
  Metrics metrics;
  add_metrics(sums, metrics);
  add_step_metrics(report, "critic", metrics);
  return metrics;
}

result<Metrics> TrainEngine::update_sft(const PackedSequences& sequences,
                                        std::span<const std::uint8_t> mask) {
  TROUPE_TRY_VOID(check_trainable(impl_->options, ModelHead::kLanguage, "update_sft"));
  TROUPE_TRY_VOID(impl_->begin());
  result<Shard> shard = impl_->make_shard(sequences, mask, impl_->options.micro_batch_tokens_max);
  TROUPE_TRY(const TokenCounts global,
             impl_->agree(error_of(shard), shard ? shard->counts : TokenCounts{}));
  WeightedSums sums;
  const auto loss = [&](std::size_t b, ModelValues values) -> result<OutputGradient> {
    const std::vector<std::uint8_t>& chosen = shard->masks[b];
    const float slope = global.tokens > 0 ? -1.0F / static_cast<float>(global.tokens) : 0.0F;
    OutputGradient gradient;
    gradient.primary.assign(chosen.size(), 0.0F);
    double total = 0;
    double count = 0;
    for (std::size_t t = 0; t < chosen.size(); ++t) {
      if (chosen[t] == 0) continue;
      gradient.primary[t] = slope;
      total -= static_cast<double>(values.primary[t]);
      count += 1;
    }
    sums.add("train/loss", total, count);
    return gradient;
  };
  TROUPE_TRY(const StepReport report, impl_->optimize(*shard, {}, global, loss, sums));
  Metrics metrics;
  add_metrics(sums, metrics);
  add_step_metrics(report, "train", metrics);
  metrics.add("train/tokens", static_cast<double>(shard->counts.tokens), Reduction::kSum);
  return metrics;
}

result<double> TrainEngine::sft_loss(const PackedSequences& sequences,
                                     std::span<const std::uint8_t> mask) {
  TROUPE_TRY_VOID(impl_->begin());
  if (impl_->critic())
    return fail(ErrorCode::kInvalidArgument, "sft_loss: this engine has a value head");
  result<Shard> shard = impl_->make_shard(sequences, mask, impl_->forward_tokens_max());
  TROUPE_TRY(const TokenCounts global,
             impl_->agree(error_of(shard), shard ? shard->counts : TokenCounts{}));
  TROUPE_TRY(const ShardOutput all, impl_->forward_all(*shard, {}));
  double total = 0;
  for (std::size_t t = 0; t < shard->mask.size(); ++t)
    if (shard->mask[t] != 0) total -= static_cast<double>(all.primary[t]);
  if (runtime::Collective* dp = impl_->groups->dp(); dp != nullptr) {
    TROUPE_TRY(total, impl_->told(runtime::all_reduce_value(*dp, total, runtime::ReduceOp::kSum,
                                                            impl_->deadline())));
  }
  return global.tokens == 0 ? 0.0 : total / static_cast<double>(global.tokens);
}

}  // namespace troupe::actors
