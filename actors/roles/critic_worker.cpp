#include "actors/roles/critic_worker.hpp"

#include "actors/loops/columns.hpp"
#include "actors/roles/batch_pack.hpp"

#include <string>
#include <vector>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;

result<std::unique_ptr<CriticWorker>> CriticWorker::create(runtime::WorkerContext& context,
                                                           const TrainWorkerOptions& options) {
  TROUPE_TRY(auto engine, make_engine(context, options));
  std::unique_ptr<CriticWorker> worker(new CriticWorker(context, std::move(engine)));
  TROUPE_TRY_VOID(worker->enter(options.memory));
  return worker;
}

result<Batch> CriticWorker::values(const Batch& batch) {
  TROUPE_TRY(const Batch local, batch.resolve());
  TROUPE_TRY(const PackedBatch packed, pack_batch(local));
  TROUPE_TRY(std::vector<float> values, engine_->values(packed.pack.view()));
  Batch out(batch.rows());
  TROUPE_TRY_VOID(out.set(std::string(column::kValues),
                          Column::jagged(std::move(values), packed.response_lengths)));
  return out;
}

namespace {

/// What a value update reads of a batch; `update` points into it.
struct ValueColumns {
  PackedBatch packed;
  std::vector<std::uint8_t> mask;
  std::vector<float> returns;
  std::vector<float> old_values;

  ValueUpdate update(const ValueUpdateSettings& settings) const {
    return {.returns = returns,
            .old_values = old_values,
            .mask = mask,
            .options = settings.options,
            .loss_scale_factor = settings.loss_scale_factor};
  }
};

result<ValueColumns> value_columns(const Batch& batch) {
  TROUPE_TRY(const Batch local, batch.resolve());
  ValueColumns columns;
  TROUPE_TRY(columns.packed, pack_batch(local));
  TROUPE_TRY(columns.mask, response_mask(local, columns.packed));
  TROUPE_TRY(columns.returns, token_values(local, column::kReturns, columns.packed));
  TROUPE_TRY(columns.old_values, token_values(local, column::kValues, columns.packed));
  return columns;
}

}  // namespace

result<Metrics> CriticWorker::update(const Batch& batch, const ValueUpdateSettings& settings) {
  TROUPE_TRY(const ValueColumns columns, value_columns(batch));
  return engine_->update_value(columns.packed.pack.view(), columns.update(settings));
}

result<Metrics> CriticWorker::accumulate(const Batch& batch, const ValueUpdateSettings& settings) {
  TROUPE_TRY(const ValueColumns columns, value_columns(batch));
  return engine_->accumulate_value(columns.packed.pack.view(), columns.update(settings));
}

result<Metrics> CriticWorker::finish_step() { return engine_->finish_step(); }

result<void> CriticWorker::abandon_step() {
  engine_->abandon_step();
  return {};
}

}  // namespace troupe::actors
