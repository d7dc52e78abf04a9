#include "actors/train/allocation_meter.hpp"

#include "actors/model/torch_compat.hpp"

#include <torch/types.h>

#include <algorithm>

namespace troupe::actors {
namespace {

class Counter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*pointer*/, std::int64_t bytes, torch_compat::TotalBytes /*total*/,
                         torch_compat::TotalBytes /*reserved*/, c10::Device device) override {
    if (!device.is_cpu()) return;
    current += bytes;  // negative when freed
    peak = std::max(peak, current);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t current = 0;
  std::int64_t peak = 0;
};

}  // namespace

struct AllocationMeter::Impl {
  Impl()
      : counter(std::make_shared<Counter>()), guard(c10::DebugInfoKind::PROFILER_STATE, counter) {}
  std::shared_ptr<Counter> counter;
  c10::DebugInfoGuard guard;
};

AllocationMeter::AllocationMeter() : impl_(std::make_unique<Impl>()) {}
AllocationMeter::~AllocationMeter() = default;
std::int64_t AllocationMeter::peak_bytes() const { return impl_->counter->peak; }
std::int64_t AllocationMeter::current_bytes() const { return impl_->counter->current; }

}  // namespace troupe::actors
