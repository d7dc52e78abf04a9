#pragma once

// Where the weights of a model lie: canonical tensors, boxes of them, and the segments of each rank
// that hold those boxes.
//
// A *canonical tensor* is the unfused Hugging Face tensor under its own name, without padding. A
// *segment* says that one box of it lies in one local buffer. Every sharding, fused or not, is a
// finite list of segments; padding has no segment, so nobody reads, sends or writes it. A *roster*
// is the segments of all ranks of one side (trainer or rollout) with the table of tensors that they
// point into. Nothing here knows a memory address: a buffer is a number of elements.
// **Threads:** value types and pure functions.
// **Invariants:** a box is half open and not empty; the elements of a buffer all have one size;
// rank ids number the ranks of both sides, so an id found on both sides is one process with one
// device, and a copy between its two layouts stays inside it.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::reshard {

/// How one number is stored. Plans move bits and never convert.
enum class DType : std::uint8_t { kF32, kBf16, kF16, kF64, kF8, kI64, kI32, kU8 };

std::string_view dtype_name(DType dtype);  ///< `f32`, `bf16`, …
std::int64_t element_bytes(DType dtype);   ///< bytes of one number

/// One canonical tensor. A vector of n numbers is n × 1.
struct TensorInfo {
  std::string name = {};
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 1;
  /// Orders execution: the embedding −1, layer l is l, the final norm and the head the last.
  std::int32_t layer = 0;
  bool operator==(const TensorInfo&) const = default;
  std::int64_t elements() const { return rows * cols; }
  std::int64_t bytes() const { return rows * cols * element_bytes(dtype); }
};

/// Rows [row_begin, row_end) × columns [col_begin, col_end).
struct Box {
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t col_begin = 0;
  std::int64_t col_end = 0;
  auto operator<=>(const Box&) const = default;
  std::int64_t rows() const { return row_end - row_begin; }
  std::int64_t cols() const { return col_end - col_begin; }
  std::int64_t elements() const { return rows() * cols(); }
  bool empty() const { return row_end <= row_begin || col_end <= col_begin; }
  bool contains(const Box& inner) const {
    return row_begin <= inner.row_begin && inner.row_end <= row_end &&
           col_begin <= inner.col_begin && inner.col_end <= col_end;
  }
};

/// All of `tensor`.
Box whole(const TensorInfo& tensor);
/// What both hold; may be `empty()`.
Box intersect(const Box& a, const Box& b);
/// `[0, 4) x [8, 16)`, for messages.
std::string box_text(const Box& box);

/// One box of one tensor in one buffer, row-major: number (r, c) of the tensor is element
/// offset + (r − row_begin)·row_stride + (c − col_begin). All in elements, not bytes.
struct Segment {
  std::int32_t tensor = 0;  ///< index into the roster's `tensors`
  Box box = {};
  std::int32_t buffer = 0;
  std::int64_t offset = 0;
  std::int64_t row_stride = 0;
  bool operator==(const Segment&) const = default;
};

/// What one rank holds. `buffer_elements[b]` is the size of buffer b, padding included.
struct RankLayout {
  std::int32_t rank = 0;
  std::int32_t node = 0;
  std::vector<Segment> segments = {};
  std::vector<std::int64_t> buffer_elements = {};
  bool operator==(const RankLayout&) const = default;
};

/// One side of a move: the table of tensors, and the layout of each rank in any order.
struct Roster {
  std::vector<TensorInfo> tensors = {};
  std::vector<RankLayout> ranks = {};
  bool operator==(const Roster&) const = default;
};

/// A rectangle inside a local buffer, in elements; contiguous when row_stride == cols.
struct Region {
  std::int32_t buffer = 0;
  std::int64_t offset = 0;
  std::int64_t row_stride = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  bool operator==(const Region&) const = default;
  bool contiguous() const { return row_stride == cols || rows == 1; }
};

/// Where `box`, which `segment` must contain, lies in the buffer.
Region region_of(const Segment& segment, const Box& box);

enum class Side : std::uint8_t { kSource, kTarget };

std::string_view side_name(Side side);  ///< `source`, `target`

/// Checks one side alone: unique tensor names and rank ids, sizes in range, boxes inside their
/// tensors and regions inside their buffers, one element size per buffer, no number of a tensor
/// twice on one rank; on the target side also no element of a buffer used twice (a source may show
/// one storage under two names). The side opens each message, which names tensor, box, rank and
/// both values. Errors: kInvalidArgument, kConflict, kUnsupported.
/// **Cost:** O(S log S) for S segments of tensors cut along one axis.
result<void> validate(const Roster& roster, Side side);

}  // namespace troupe::reshard
