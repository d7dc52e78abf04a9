#pragma once

// A sink of plain memory: two sets of buffers, one active and one being filled.
//
// **Threads:** as WeightSink; `active_buffer` may be read by any thread while no commit runs.
// **Invariants:** both sets are allocated once and keep their addresses; a commit exchanges them.

#include "reshard/execution/weight_sink.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace troupe::reshard {

class BufferSink final : public WeightSink {
 public:
  /// Zeros at version `active`. Sizes in bytes, one per buffer of the rank's target layout.
  explicit BufferSink(const std::vector<std::int64_t>& buffer_bytes, WeightVersion active = {});

  WeightVersion active() const override { return WeightVersion{version_.load()}; }
  result<void> begin(WeightVersion version, bool from_active) override;
  std::span<std::byte> buffer(std::int32_t index) override;
  result<void> write(const TensorInfo& tensor, const Box& box, const std::byte* data,
                     std::int64_t row_stride) override;
  result<void> commit() override;
  void abort() override;

  std::span<const std::byte> active_buffer(std::int32_t index) const;
  /// For the first version, which nobody publishes.
  std::span<std::byte> active_buffer_to_fill(std::int32_t index);

 private:
  /// Zeros that begin with a page, in huge pages where the system has them for who asks: direct
  /// copies walk over every page of both ends.
  class Memory {
   public:
    explicit Memory(std::int64_t bytes);
    std::span<std::byte> bytes() const { return {data_.get(), bytes_}; }

   private:
    struct Free {
      void operator()(std::byte* data) const;
    };
    std::unique_ptr<std::byte, Free> data_;
    std::size_t bytes_;
  };

  std::array<std::vector<Memory>, 2> sets_;
  std::size_t active_set_ = 0;
  std::atomic<std::int64_t> version_;
  WeightVersion filling_;
  bool open_ = false;
};

/// Sizes of the buffers of `layout` in bytes: elements times the size of what lies in them.
std::vector<std::int64_t> buffer_bytes(const Roster& roster, const RankLayout& layout);

}  // namespace troupe::reshard
