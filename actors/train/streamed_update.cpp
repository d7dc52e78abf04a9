#include "actors/train/streamed_update.hpp"

#include "actors/train/policy_pass.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {

using runtime::Metrics;
using runtime::Reduction;

namespace {

StreamedStep opened(const TrainEngine::Impl& impl, LossAggregation aggregation,
                    double scale_factor) {
  StreamedStep step;
  step.aggregation = aggregation;
  step.scale_factor = scale_factor;
  step.epoch = impl.world_epoch();
  return step;
}

/// Does the step that is open, if any, take a part like this one.
result<void> check_fits(const TrainEngine::Impl& impl, const StreamedStep& part) {
  TROUPE_TRY_VOID(deferred_scale(part.aggregation, {}, part.scale_factor));
  if (!impl.streamed) return {};
  TROUPE_TRY_VOID(impl.check_streamed());
  const StreamedStep& step = *impl.streamed;
  if (step.aggregation == part.aggregation && step.scale_factor == part.scale_factor) return {};
  return fail(ErrorCode::kConflict,
              "accumulate: a part with {} (scale factor {}) in a step with {} (scale factor {})",
              loss_aggregation_name(part.aggregation), part.scale_factor,
              loss_aggregation_name(step.aggregation), step.scale_factor);
}

/// One rank's share of a part, and the counts of all of it.
struct AgreedPart {
  Shard shard;
  TokenCounts counts;
};

/// make_shard after `check`; all ranks are told what this one thinks of its share.
template <class Check>
result<AgreedPart> agreed_part(TrainEngine::Impl& impl, const PackedSequences& sequences,
                               std::span<const std::uint8_t> mask, const Check& check) {
  const auto checked = [&]() -> result<Shard> {
    TROUPE_TRY_VOID(check());
    return impl.make_shard(sequences, mask, impl.options.micro_batch_tokens_max);
  };
  result<Shard> shard = checked();
  TROUPE_TRY(const TokenCounts counts,
             impl.agree(error_of(shard), shard ? shard->counts : TokenCounts{}));
  return AgreedPart{.shard = std::move(*shard), .counts = counts};
}

}  // namespace

std::int64_t TrainEngine::Impl::world_epoch() const {
  return groups->world() == nullptr ? 0 : groups->world()->epoch();
}

result<void> TrainEngine::Impl::check_streamed() const {
  if (!streamed) return fail(ErrorCode::kInvalidArgument, "finish_step: no streamed step is open");
  if (streamed->failure)
    return fail(ErrorCode::kConflict,
                "a streamed step broke after {} parts and must be abandoned: {}", streamed->parts,
                streamed->failure->to_string());
  if (streamed->epoch != world_epoch())
    return fail(ErrorCode::kConflict,
                "a streamed step of epoch {} of its ranks' collective, which is at {} now, must be "
                "abandoned",
                streamed->epoch, world_epoch());
  return {};
}

result<void> TrainEngine::Impl::add_part(Shard& shard, const SamplingTransform& transform,
                                         const BatchLoss& loss, const StreamedStep& fresh) {
  if (!streamed) {
    decoder->parameters().zero_gradients();
    streamed = fresh;
  }
  const result<void> done = add_gradients(shard, transform, loss);
  const result<TokenCounts> all = agree(error_of(done), shard.counts);
  if (all) return {};
  streamed->failure = all.error();
  return fail(all.error());
}

result<Metrics> TrainEngine::accumulate_policy(const PackedSequences& sequences,
                                               const PolicyUpdate& update) {
  TROUPE_TRY_VOID(impl_->check_trainable(ModelHead::kLanguage, "accumulate_policy"));
  TROUPE_TRY_VOID(impl_->begin());
  const StreamedStep fresh =
      opened(*impl_, update.objective.loss.aggregation.value_or(update.loss.default_aggregation),
             update.loss_scale_factor);
  const auto check = [&]() -> result<void> {
    if (update.loss.selects_tokens())
      return fail(ErrorCode::kUnsupported,
                  "accumulate_policy: this loss selects tokens over the whole step");
    TROUPE_TRY_VOID(check_fits(*impl_, fresh));
    return check_policy_update(sequences, update, true);
  };
  TROUPE_TRY(AgreedPart part, agreed_part(*impl_, sequences, update.mask, check));
  PolicyPass pass(part.shard, update, update.objective,
                  {.global = {}, .scale_factor = update.loss_scale_factor, .deferred = true});
  const BatchLoss loss = [&pass](std::size_t b, ModelValues values) {
    return pass.loss(b, values);
  };
  TROUPE_TRY_VOID(impl_->add_part(part.shard, update.transform(), loss, fresh));
  impl_->streamed->take(part.counts, pass.sums);
  Metrics metrics = std::move(pass.ratios);
  metrics.add("actor/tokens", static_cast<double>(part.shard.counts.tokens), Reduction::kSum);
  metrics.add("actor/micro_batches", static_cast<double>(part.shard.batches.size()),
              Reduction::kSum);
  return metrics;
}

result<Metrics> TrainEngine::accumulate_value(const PackedSequences& sequences,
                                              const ValueUpdate& update) {
  TROUPE_TRY_VOID(impl_->check_trainable(ModelHead::kValue, "accumulate_value"));
  TROUPE_TRY_VOID(impl_->begin());
  const StreamedStep fresh = opened(*impl_, update.options.aggregation, update.loss_scale_factor);
  const auto check = [&]() -> result<void> {
    TROUPE_TRY_VOID(check_fits(*impl_, fresh));
    return check_value_update(sequences, update);
  };
  TROUPE_TRY(AgreedPart part, agreed_part(*impl_, sequences, update.mask, check));
  WeightedSums sums;
  const LossNormaliser normaliser{
      .global = {}, .scale_factor = update.loss_scale_factor, .deferred = true};
  const BatchLoss loss = [&](std::size_t b, ModelValues values) {
    return value_batch_loss(part.shard, update, normaliser, b, values, sums);
  };
  TROUPE_TRY_VOID(impl_->add_part(part.shard, {}, loss, fresh));
  impl_->streamed->take(part.counts, sums);
  return Metrics{};
}

result<Metrics> TrainEngine::finish_step() {
  TROUPE_TRY_VOID(impl_->begin());
  TROUPE_TRY_VOID(impl_->agree(error_of(impl_->check_streamed()), {}));
  StreamedStep& step = *impl_->streamed;
  const auto finish = [&]() -> result<StepReport> {
    TROUPE_TRY(const double scale,
               deferred_scale(step.aggregation, step.counts, step.scale_factor));
    step.sums.settle(scale, static_cast<double>(step.counts.tokens));
    TROUPE_TRY_VOID(impl_->share_sums(step.sums));
    TROUPE_TRY_VOID(impl_->sum_gradients());
    return impl_->apply_gradients(step.counts.tokens == 0, scale);
  };
  const result<StepReport> report = impl_->told(finish());
  if (!report) {
    step.failure = report.error();
    return fail(report.error());
  }
  Metrics metrics;
  add_metrics(step.sums, metrics);
  add_step_metrics(*report, impl_->critic() ? "critic" : "actor", metrics);
  impl_->streamed.reset();
  return metrics;
}

void TrainEngine::abandon_step() { impl_->streamed.reset(); }

bool TrainEngine::step_is_open() const { return impl_->streamed.has_value(); }

}  // namespace troupe::actors
