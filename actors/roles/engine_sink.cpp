#include "actors/roles/engine_sink.hpp"

namespace troupe::actors {

result<void> EngineSink::begin(WeightVersion version, bool from_active) {
  if (from_active)
    return fail(ErrorCode::kUnsupported,
                "rollout engine: version {} as a delta; packed weights are written whole",
                version.value);
  const bool in_place = engine_.options().weight_memory == WeightMemory::kInPlace;
  // What serves is overwritten before the commit, so it must have served to the end.
  if (in_place && engine_.has_weights()) TROUPE_TRY_VOID(settle());
  TROUPE_TRY_VOID(engine_.wake(MemoryTag::kWeights));
  return engine_.begin_update(version);
}

result<void> EngineSink::commit() {
  if (engine_.has_weights()) TROUPE_TRY_VOID(settle());
  return engine_.commit_update(update_);
}

result<void> EngineSink::settle() {
  if (update_ != WeightUpdate::kDrain) return {};
  return settle_ ? settle_() : engine_.drain();
}

result<void> EngineSink::write(const reshard::TensorInfo& tensor, const reshard::Box& box,
                               const std::byte* data, std::int64_t row_stride) {
  if (tensor.dtype != reshard::DType::kF32)
    return fail(ErrorCode::kUnsupported, "rollout engine: {} is {}, wanted f32", tensor.name,
                reshard::dtype_name(tensor.dtype));
  return engine_.write(tensor.name, box, reinterpret_cast<const float*>(data), row_stride);
}

}  // namespace troupe::actors
