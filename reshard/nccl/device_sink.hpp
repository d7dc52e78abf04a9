#pragma once

// A sink of device memory: two sets of buffers, one active and one being filled.
//
// **Threads:** as WeightSink.
// **Invariants:** both sets are allocated once and keep their addresses; a commit exchanges them.
// The spans are device memory: the host never reads them.

#include "reshard/execution/weight_sink.hpp"
#include "reshard/nccl/cuda_runtime.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <vector>

namespace troupe::reshard::nccl {

class DeviceSink final : public WeightSink {
 public:
  /// Sizes in bytes, one per buffer of the rank's target layout; contents are undefined.
  static result<std::unique_ptr<DeviceSink>> create(const CudaDevice& device,
                                                    const std::vector<std::int64_t>& buffer_bytes,
                                                    WeightVersion active = {});

  WeightVersion active() const override { return WeightVersion{version_.load()}; }
  result<void> begin(WeightVersion version, bool from_active) override;
  std::span<std::byte> buffer(std::int32_t index) override;
  /// kUnsupported: boxes of host memory do not come here.
  result<void> write(const TensorInfo& tensor, const Box& box, const std::byte* data,
                     std::int64_t row_stride) override;
  result<void> commit() override;
  void abort() override { open_ = false; }

  std::span<std::byte> active_buffer(std::int32_t index) const;

 private:
  explicit DeviceSink(WeightVersion active) : version_(active.value) {}
  std::array<std::vector<std::unique_ptr<CudaBuffer>>, 2> sets_;
  std::size_t active_set_ = 0;
  std::atomic<std::int64_t> version_;
  WeightVersion filling_;
  bool open_ = false;
};

}  // namespace troupe::reshard::nccl
