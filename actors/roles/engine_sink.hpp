#pragma once

// The rollout engine as the target of publications.
//
// **Ownership:** borrows the engine.
// **Threads:** the engine thread of its rank.
// **Invariants:** as WeightSink; boxes go straight into the engine's packed set that does not
// serve.

#include "actors/rollout/rollout_engine.hpp"
#include "reshard/execution/weight_sink.hpp"

namespace troupe::actors {

class EngineSink final : public reshard::WeightSink {
 public:
  explicit EngineSink(RolloutEngine& engine) : engine_(engine) {}

  WeightVersion active() const override { return engine_.version(); }
  result<void> begin(WeightVersion version, bool from_active) override;
  result<void> write(const reshard::TensorInfo& tensor, const reshard::Box& box,
                     const std::byte* data, std::int64_t row_stride) override;
  result<void> commit() override { return engine_.commit_update(); }
  void abort() override { engine_.abort_update(); }

 private:
  RolloutEngine& engine_;
};

}  // namespace troupe::actors
