#include "actors/roles/policy_worker.hpp"

#include "actors/algorithm/ratio_metrics.hpp"
#include "actors/loops/columns.hpp"
#include "actors/roles/batch_pack.hpp"
#include "actors/roles/update_columns.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::Reduction;

namespace {

/// How far the trainer's view of the sampled tokens is from the rollout engine's, in probability:
/// stale weights or a template bug show here first.
result<void> compare_log_probs(const Batch& batch, const PackedBatch& packed,
                               std::span<const float> trainer, Metrics& metrics) {
  TROUPE_TRY(const std::vector<float> rollout,
             token_values(batch, column::kRolloutLogProbs, packed));
  TROUPE_TRY(const std::vector<std::uint8_t> mask, response_mask(batch, packed));
  double sum = 0;
  double count = 0;
  double largest = 0;
  double largest_log = 0;
  for (std::size_t t = 0; t < trainer.size(); ++t) {
    if (mask[t] == 0) continue;
    const double difference = std::abs(std::exp(static_cast<double>(trainer[t])) -
                                       std::exp(static_cast<double>(rollout[t])));
    sum += difference;
    count += 1;
    largest = std::max(largest, difference);
    largest_log = std::max(
        largest_log, std::abs(static_cast<double>(trainer[t]) - static_cast<double>(rollout[t])));
  }
  if (count == 0) return {};
  metrics.add("training/rollout_probs_diff_mean", sum / count, Reduction::kMean, count);
  metrics.add("training/rollout_probs_diff_max", largest, Reduction::kMax);
  metrics.add("training/rollout_log_probs_diff_max", largest_log, Reduction::kMax);
  std::vector<std::int64_t> offsets(packed.response_lengths.size() + 1, 0);
  std::partial_sum(packed.response_lengths.begin(), packed.response_lengths.end(),
                   offsets.begin() + 1);
  return add_ratio_metrics(TokenBatchView{.offsets = offsets, .mask = mask}, trainer, rollout,
                           "rollout_corr", metrics);
}

}  // namespace

PolicyWorker::PolicyWorker(runtime::WorkerContext& context, std::shared_ptr<TrainEngine> engine,
                           const PolicyLossRegistry* losses, WeightSeat seat)
    : TrainWorker(context, std::move(engine)),
      losses_(losses),
      door_(std::move(seat), fmt::format("{} rank {}", context.group(), context.rank().value)) {}

result<std::unique_ptr<PolicyWorker>> PolicyWorker::create(runtime::WorkerContext& context,
                                                           const TrainWorkerOptions& options,
                                                           WeightSeat seat) {
  TROUPE_TRY(auto engine, make_engine(context, options));
  std::unique_ptr<PolicyWorker> worker(
      new PolicyWorker(context, std::move(engine), options.losses, std::move(seat)));
  TROUPE_TRY_VOID(worker->enter(options.memory));
  return worker;
}

result<Batch> PolicyWorker::log_probs(const Batch& batch, const LogProbRequest& request) {
  TROUPE_TRY(const Batch local, batch.resolve());
  TROUPE_TRY(const PackedBatch packed, pack_batch(local));
  SamplingTransform transform = request.cut;
  transform.temperature = static_cast<double>(request.temperature);
  TROUPE_TRY(TokenLogProbs output, engine_->log_probs(packed.pack.view(), transform));
  Batch out(batch.rows());
  if (request.compare)
    TROUPE_TRY_VOID(compare_log_probs(local, packed, output.log_probs, out.metrics()));
  TROUPE_TRY_VOID(out.set(request.column,
                          Column::jagged(std::move(output.log_probs), packed.response_lengths)));
  return out;
}

result<Metrics> PolicyWorker::update(const Batch& batch, const PolicyUpdateSettings& settings) {
  if (losses_ == nullptr)
    return fail(ErrorCode::kUnsupported, "update: this rank was given no policy losses");
  TROUPE_TRY(PolicyLoss loss, update_loss(*losses_, settings));
  TROUPE_TRY(const Batch local, batch.resolve());
  TROUPE_TRY(const UpdateColumns columns, UpdateColumns::read(local, settings));
  const PolicyUpdate update = columns.update(std::move(loss), settings);
  TROUPE_TRY(const auto lease, start_update());
  return engine_->update_policy(columns.packed.pack.view(), update);
}

result<Metrics> PolicyWorker::accumulate(const Batch& batch, const PolicyUpdateSettings& settings) {
  if (losses_ == nullptr)
    return fail(ErrorCode::kUnsupported, "accumulate: this rank was given no policy losses");
  TROUPE_TRY(PolicyLoss loss, update_loss(*losses_, settings));
  TROUPE_TRY(const Batch local, batch.resolve());
  TROUPE_TRY(const UpdateColumns columns, UpdateColumns::read(local, settings));
  const PolicyUpdate update = columns.update(std::move(loss), settings);
  return engine_->accumulate_policy(columns.packed.pack.view(), update);
}

result<Metrics> PolicyWorker::finish_step() {
  TROUPE_TRY(const auto lease, start_update());
  return engine_->finish_step();
}

result<void> PolicyWorker::abandon_step() {
  engine_->abandon_step();
  return {};
}

result<Metrics> PolicyWorker::update_sft(const Batch& batch) {
  TROUPE_TRY(const Batch local, batch.resolve());
  TROUPE_TRY(const PackedBatch packed, pack_batch(local));
  TROUPE_TRY(const std::vector<std::uint8_t> mask, response_mask(local, packed));
  TROUPE_TRY(const auto lease, start_update());
  return engine_->update_sft(packed.pack.view(), mask);
}

result<Metrics> PolicyWorker::sft_loss(const Batch& batch) {
  TROUPE_TRY(const Batch local, batch.resolve());
  TROUPE_TRY(const PackedBatch packed, pack_batch(local));
  TROUPE_TRY(const std::vector<std::uint8_t> mask, response_mask(local, packed));
  TROUPE_TRY(const double loss, engine_->sft_loss(packed.pack.view(), mask));
  Metrics metrics;
  metrics.add("val/loss", loss, Reduction::kLast);
  return metrics;
}

result<std::unique_ptr<reshard::UpdateLease>> PolicyWorker::start_update() {
  if (source_ == nullptr) return std::unique_ptr<reshard::UpdateLease>();
  return source_->start_update(context_.deadline());
}

result<void> PolicyWorker::load_state(const EngineState& state) {
  TROUPE_TRY(const auto lease, start_update());
  return TrainWorker::load_state(state);
}

result<WeightLayout> PolicyWorker::weight_layout() {
  return WeightLayout{
      .tensors = engine_->tensors(), .layout = engine_->layout(), .host = door_.host()};
}

result<void> PolicyWorker::open_publication(const PublicationSetup& setup) {
  source_.reset();
  TROUPE_TRY(auto plan, door_.open(setup));
  std::vector<std::span<const std::byte>> buffers;
  for (const std::span<const float> buffer : engine_->buffers())
    buffers.push_back(std::as_bytes(buffer));
  source_ = std::make_unique<reshard::PublicationSource>(std::move(plan), context_.rank().value,
                                                         std::move(buffers), door_.port());
  return {};
}

result<reshard::Reply> PolicyWorker::publication(const reshard::Command& command) {
  if (source_ == nullptr) return no_publication(door_);
  return source_->handle(command);
}

result<void> PolicyWorker::release_gradients() {
  if (engine_->step_is_open()) return {};
  engine_->offload();
  return entries_->dropped("gradients");
}

}  // namespace troupe::actors
