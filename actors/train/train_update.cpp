// The three kinds of update: policy, value, supervised.
#include "actors/train/policy_pass.hpp"
#include "runtime/base/rng.hpp"

#include <torch/types.h>

#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

using runtime::Metrics;
using runtime::Reduction;

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
  TROUPE_TRY_VOID(impl_->check_update(ModelHead::kLanguage, "update_policy"));
  TROUPE_TRY_VOID(impl_->begin());
  result<Shard> shard = checked_shard(*impl_, sequences, update.mask,
                                      [&] { return check_policy_update(sequences, update); });
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
  PolicyPass pass(*shard, update, objective, normaliser);
  if (update.loss.selects_tokens()) pass.use(selection);
  const auto loss = [&pass](std::size_t b, ModelValues values) { return pass.loss(b, values); };
  TROUPE_TRY(const StepReport report,
             impl_->optimize(*shard, update.transform(), global, loss, pass.sums));
  Metrics metrics = std::move(pass.ratios);
  add_metrics(pass.sums, metrics);
  add_step_metrics(report, "actor", metrics);
  metrics.add("actor/tokens", static_cast<double>(shard->counts.tokens), Reduction::kSum);
  metrics.add("actor/micro_batches", static_cast<double>(shard->batches.size()), Reduction::kSum);
  return metrics;
}

result<Metrics> TrainEngine::update_value(const PackedSequences& sequences,
                                          const ValueUpdate& update) {
  TROUPE_TRY_VOID(impl_->check_update(ModelHead::kValue, "update_value"));
  TROUPE_TRY_VOID(impl_->begin());
  result<Shard> shard = checked_shard(*impl_, sequences, update.mask,
                                      [&] { return check_value_update(sequences, update); });
  TROUPE_TRY(const TokenCounts global,
             impl_->agree(error_of(shard), shard ? shard->counts : TokenCounts{}));
  const LossNormaliser normaliser{.global = global, .scale_factor = update.loss_scale_factor};
  WeightedSums sums;
  const auto loss = [&](std::size_t b, ModelValues values) {
    return value_batch_loss(*shard, update, normaliser, b, values, sums);
  };
  TROUPE_TRY(const StepReport report, impl_->optimize(*shard, {}, global, loss, sums));
  Metrics metrics;
  add_metrics(sums, metrics);
  add_step_metrics(report, "critic", metrics);
  return metrics;
}

result<Metrics> TrainEngine::update_sft(const PackedSequences& sequences,
                                        std::span<const std::uint8_t> mask) {
  TROUPE_TRY_VOID(impl_->check_update(ModelHead::kLanguage, "update_sft"));
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
