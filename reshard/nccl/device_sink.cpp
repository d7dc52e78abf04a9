#include "reshard/nccl/device_sink.hpp"

namespace troupe::reshard::nccl {

result<std::unique_ptr<DeviceSink>> DeviceSink::create(
    const CudaDevice& device, const std::vector<std::int64_t>& buffer_bytes, WeightVersion active) {
  std::unique_ptr<DeviceSink> sink(new DeviceSink(active));
  for (auto& set : sink->sets_) {
    for (const std::int64_t bytes : buffer_bytes) {
      std::unique_ptr<CudaBuffer> buffer;
      if (bytes > 0) {
        TROUPE_TRY(buffer, device.allocate(bytes));
      }
      set.push_back(std::move(buffer));
    }
  }
  return sink;
}

result<void> DeviceSink::begin(WeightVersion version, bool from_active) {
  if (from_active) return fail(ErrorCode::kUnsupported, "device sink: no deltas");
  filling_ = version;
  open_ = true;
  return {};
}

std::span<std::byte> DeviceSink::buffer(std::int32_t index) {
  const auto& one = sets_[1 - active_set_][static_cast<std::size_t>(index)];
  return one == nullptr ? std::span<std::byte>() : one->bytes();
}

std::span<std::byte> DeviceSink::active_buffer(std::int32_t index) const {
  const auto& one = sets_[active_set_][static_cast<std::size_t>(index)];
  return one == nullptr ? std::span<std::byte>() : one->bytes();
}

result<void> DeviceSink::write(const TensorInfo& tensor, const Box& box, const std::byte* data,
                               std::int64_t row_stride) {
  (void)data, (void)row_stride;
  return fail(ErrorCode::kUnsupported, "device sink: {} {} from the host", tensor.name,
              box_text(box));
}

result<void> DeviceSink::commit() {
  if (!open_) return fail(ErrorCode::kConflict, "device sink: nothing to commit");
  open_ = false;
  active_set_ = 1 - active_set_;
  version_ = filling_.value;
  return {};
}

}  // namespace troupe::reshard::nccl
