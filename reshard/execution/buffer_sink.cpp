#include "reshard/execution/buffer_sink.hpp"

#include "runtime/base/check.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace troupe::reshard {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

BufferSink::Memory::Memory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
  if (bytes_ == 0) return;
  const std::size_t unit = bytes_ < kHugePage ? kLine : kHugePage;
  const std::size_t size = (bytes_ + unit - 1) / unit * unit;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(unit, size)));
  TROUPE_CHECK(data_ != nullptr, "weights: no memory for a buffer of {} bytes", bytes);
  if (unit == kHugePage) ::madvise(data_.get(), size, MADV_HUGEPAGE);  // advice: may be refused
  std::memset(data_.get(), 0, bytes_);
}

void BufferSink::Memory::Free::operator()(std::byte* data) const { std::free(data); }

BufferSink::BufferSink(const std::vector<std::int64_t>& buffer_bytes, WeightVersion active)
    : version_(active.value) {
  for (auto& set : sets_) {
    for (const std::int64_t bytes : buffer_bytes) set.emplace_back(bytes);
  }
}

result<void> BufferSink::begin(WeightVersion version, bool from_active) {
  if (open_)
    return fail(ErrorCode::kConflict, "weights: an update to version {} is open", filling_.value);
  if (from_active) {
    for (std::size_t i = 0; i < sets_[0].size(); ++i) {
      const std::span<const std::byte> from = sets_[active_set_][i].bytes();
      if (!from.empty())
        std::memcpy(sets_[1 - active_set_][i].bytes().data(), from.data(), from.size());
    }
  }
  open_ = true;
  filling_ = version;
  return {};
}

std::span<std::byte> BufferSink::buffer(std::int32_t index) {
  return sets_[1 - active_set_][static_cast<std::size_t>(index)].bytes();
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
  return sets_[active_set_][static_cast<std::size_t>(index)].bytes();
}

std::span<std::byte> BufferSink::active_buffer_to_fill(std::int32_t index) {
  return sets_[active_set_][static_cast<std::size_t>(index)].bytes();
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
