#pragma once

// The critic rank: a decoder with a value head, trained on returns.
//
// **Ownership:** as TrainWorker.
// **Threads:** the engine thread of its rank only.
// **Invariants:** as PolicyWorker.

#include "actors/algorithm/value_loss.hpp"
#include "actors/roles/role_wire.hpp"
#include "actors/roles/train_worker.hpp"

#include <memory>
#include <tuple>
#include <utility>

namespace troupe::actors {

struct ValueUpdateSettings {
  ValueLossOptions options;
  double loss_scale_factor = 0;

  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("options", &ValueUpdateSettings::options),
                      field("loss_scale_factor", &ValueUpdateSettings::loss_scale_factor)};
  }
};

class CriticWorker : public TrainWorker {
 public:
  static result<std::unique_ptr<CriticWorker>> create(runtime::WorkerContext& context,
                                                      const TrainWorkerOptions& options);

  /// `prompts`, `responses` → `values`, jagged f32.
  result<runtime::Batch> values(const runtime::Batch& batch);
  /// One optimizer step on `returns` and `values`; metrics as in TrainEngine::update_value.
  result<runtime::Metrics> update(const runtime::Batch& batch, const ValueUpdateSettings& settings);
  /// A streamed step, as PolicyWorker's.
  result<runtime::Metrics> accumulate(const runtime::Batch& batch,
                                      const ValueUpdateSettings& settings);
  result<runtime::Metrics> finish_step();
  result<void> abandon_step();

  static constexpr auto methods() {
    using namespace runtime;
    return std::tuple{
        method<&CriticWorker::values>("values", args(scatter), returns(concat))
            .phase("values")
            .keep_columns(),
        method<&CriticWorker::update>("update", args(scatter, broadcast), returns(reduce(kMerge)))
            .phase("train"),
        method<&CriticWorker::accumulate>("accumulate", args(scatter, broadcast),
                                          returns(reduce(kMerge)))
            .phase("train"),
        method<&CriticWorker::finish_step>("finish_step", args(), returns(reduce(kMerge)))
            .phase("train"),
        method<&CriticWorker::abandon_step>("abandon_step", args(), returns(none)),
        method<&CriticWorker::state>("state", args(broadcast), returns(all)),
        method<&CriticWorker::load_state>("load_state", args(broadcast), returns(none))
            .phase("train")};
  }

 private:
  using TrainWorker::TrainWorker;
};

}  // namespace troupe::actors
