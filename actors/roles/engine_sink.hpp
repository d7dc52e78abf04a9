#pragma once

// The rollout engine as the target of publications.
//
// **Ownership:** borrows the engine.
// **Threads:** the engine thread of its rank.
// **Invariants:** as WeightSink; boxes go straight into the engine's packed set that does not
// serve.

#include "actors/rollout/rollout_engine.hpp"
#include "reshard/execution/weight_sink.hpp"

#include <functional>
#include <utility>

namespace troupe::actors {

class EngineSink final : public reshard::WeightSink {
 public:
  using Settle = std::function<result<void>()>;
  /// `settle`: lets samples under way come to their end, when an update drains; empty: the engine's
  /// `drain`.
  explicit EngineSink(RolloutEngine& engine, Settle settle = {})
      : engine_(engine), settle_(std::move(settle)) {}

  /// What becomes of samples that are under way when an update is committed.
  void set_update(WeightUpdate update) { update_ = update; }
  WeightVersion active() const override { return engine_.version(); }
  result<void> begin(WeightVersion version, bool from_active) override;
  result<void> write(const reshard::TensorInfo& tensor, const reshard::Box& box,
                     const std::byte* data, std::int64_t row_stride) override;
  result<void> commit() override;
  void abort() override { engine_.abort_update(); }

 private:
  result<void> settle();

  RolloutEngine& engine_;
  Settle settle_;
  WeightUpdate update_ = WeightUpdate::kDrain;
};

}  // namespace troupe::actors
