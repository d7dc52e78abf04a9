#pragma once

// The critic rank: a decoder with a value head, trained on returns.
//
// **Ownership:** owns its engine; borrows the collective of its group.
// **Threads:** the engine thread of its rank only.
// **Invariants:** as PolicyWorker.

#include "actors/algorithm/value_loss.hpp"
#include "actors/roles/policy_worker.hpp"

#include <memory>
#include <tuple>
#include <utility>

namespace troupe::actors {

struct ValueUpdateSettings {
  ValueLossOptions options;
  double loss_scale_factor = 0;
};

class CriticWorker {
 public:
  static result<std::unique_ptr<CriticWorker>> create(runtime::WorkerContext& context,
                                                      const TrainWorkerOptions& options);

  /// `prompts`, `responses` → `values`, jagged f32.
  result<runtime::Batch> values(const runtime::Batch& batch);
  /// One optimizer step on `returns` and `values`; metrics as in TrainEngine::update_value.
  result<runtime::Metrics> update(const runtime::Batch& batch, const ValueUpdateSettings& settings);

  /// Rank 0 writes (all ranks hold the same state); every rank reads.
  result<void> save(const CheckpointTarget& target) {
    return context_.rank() == RankId{0} ? save_engine(*engine_, target) : result<void>{};
  }
  result<void> load(const CheckpointSource& source) { return load_engine(*engine_, source); }

  static constexpr auto methods() {
    using namespace runtime;
    return std::tuple{
        method<&CriticWorker::values>("values", args(scatter), returns(concat))
            .phase("values")
            .keep_columns(),
        method<&CriticWorker::update>("update", args(scatter, broadcast), returns(reduce(kMerge)))
            .phase("train"),
        method<&CriticWorker::save>("save", args(broadcast), returns(none)),
        method<&CriticWorker::load>("load", args(broadcast), returns(none)).phase("train")};
  }

 private:
  CriticWorker(runtime::WorkerContext& context, std::unique_ptr<TrainEngine> engine)
      : context_(context), engine_(std::move(engine)) {}

  runtime::WorkerContext& context_;
  std::unique_ptr<TrainEngine> engine_;
  std::unique_ptr<MemoryEntries> entries_;  // after the engine that it points to
};

}  // namespace troupe::actors
