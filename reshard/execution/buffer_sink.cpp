#include "reshard/execution/buffer_sink.hpp"

#include <cstring>

namespace troupe::reshard {

BufferSink::BufferSink(const std::vector<std::int64_t>& buffer_bytes, WeightVersion active)
    : version_(active.value) {
  for (auto& set : sets_) {
    for (const std::int64_t bytes : buffer_bytes) set.emplace_back(static_cast<std::size_t>(bytes));
  }
}

result<void> BufferSink::begin(WeightVersion version, bool from_active) {
  if (open_)
    return fail(ErrorCode::kConflict, "weights: an update to version {} is open", filling_.value);
  if (from_active) {
    for (std::size_t i = 0; i < sets_[0].size(); ++i) {
      const auto& from = sets_[active_set_][i];
      std::memcpy(sets_[1 - active_set_][i].data(), from.data(), from.size());
    }
  }
  open_ = true;
  filling_ = version;
  return {};
}

std::span<std::byte> BufferSink::buffer(std::int32_t index) {
  return sets_[1 - active_set_][static_cast<std::size_t>(index)];
}

result<void> BufferSink::write(const TensorInfo& tensor, const Box& box, const std::byte* /*data*/,
                               std::int64_t /*row_stride*/) {
  return fail(ErrorCode::kUnsupported, "weights: tensor {} {}: written by call into plain buffers",
              tensor.name, box_text(box));
}

result<void> BufferSink::commit() {
  if (!open_) return fail(ErrorCode::kConflict, "weights: no update is open");
  open_ = false;
  active_set_ = 1 - active_set_;
  version_ = filling_.value;
  return {};
}

void BufferSink::abort() { open_ = false; }

std::span<const std::byte> BufferSink::active_buffer(std::int32_t index) const {
  return sets_[active_set_][static_cast<std::size_t>(index)];
}

std::span<std::byte> BufferSink::active_buffer_to_fill(std::int32_t index) {
  return sets_[active_set_][static_cast<std::size_t>(index)];
}

std::vector<std::int64_t> buffer_bytes(const Roster& roster, const RankLayout& layout) {
  std::vector<std::int64_t> element(layout.buffer_elements.size(), 1);
  for (const Segment& segment : layout.segments)
    element[static_cast<std::size_t>(segment.buffer)] =
        element_bytes(roster.tensors[static_cast<std::size_t>(segment.tensor)].dtype);
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < element.size(); ++i)
    bytes.push_back(layout.buffer_elements[i] * element[i]);
  return bytes;
}

}  // namespace troupe::reshard
