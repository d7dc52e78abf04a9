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

result<Metrics> CriticWorker::update(const Batch& batch, const ValueUpdateSettings& settings) {
  TROUPE_TRY(const Batch local, batch.resolve());
  TROUPE_TRY(const PackedBatch packed, pack_batch(local));
  TROUPE_TRY(const std::vector<std::uint8_t> mask, response_mask(local, packed));
  TROUPE_TRY(const std::vector<float> returns, token_values(local, column::kReturns, packed));
  TROUPE_TRY(const std::vector<float> old_values, token_values(local, column::kValues, packed));
  const ValueUpdate update{.returns = returns,
                           .old_values = old_values,
                           .mask = mask,
                           .options = settings.options,
                           .loss_scale_factor = settings.loss_scale_factor};
  return engine_->update_value(packed.pack.view(), update);
}

}  // namespace troupe::actors
