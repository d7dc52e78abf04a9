#include "actors/roles/engine_sink.hpp"

namespace troupe::actors {

result<void> EngineSink::begin(WeightVersion version, bool from_active) {
  if (from_active)
    return fail(ErrorCode::kUnsupported,
                "rollout engine: version {} as a delta; packed weights are written whole",
                version.value);
  TROUPE_TRY_VOID(engine_.wake(MemoryTag::kWeights));
  return engine_.begin_update(version);
}

result<void> EngineSink::write(const reshard::TensorInfo& tensor, const reshard::Box& box,
                               const std::byte* data, std::int64_t row_stride) {
  if (tensor.dtype != reshard::DType::kF32)
    return fail(ErrorCode::kUnsupported, "rollout engine: {} is {}, wanted f32", tensor.name,
                reshard::dtype_name(tensor.dtype));
  return engine_.write(tensor.name, box, reinterpret_cast<const float*>(data), row_stride);
}

}  // namespace troupe::actors
