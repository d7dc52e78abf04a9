#include "reshard/layout.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>

namespace troupe::reshard {

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kF8:
      return "f8";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
  }
  return "unknown";
}

std::int64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kF8:
    case DType::kU8:
      return 1;
  }
  return 1;
}

std::string_view side_name(Side side) { return side == Side::kSource ? "source" : "target"; }

Box whole(const TensorInfo& tensor) { return {0, tensor.rows, 0, tensor.cols}; }

Box intersect(const Box& a, const Box& b) {
  return {std::max(a.row_begin, b.row_begin), std::min(a.row_end, b.row_end),
          std::max(a.col_begin, b.col_begin), std::min(a.col_end, b.col_end)};
}

std::string box_text(const Box& box) {
  return fmt::format("[{}, {}) x [{}, {})", box.row_begin, box.row_end, box.col_begin, box.col_end);
}

Region region_of(const Segment& segment, const Box& box) {
  TROUPE_DCHECK(segment.box.contains(box), "segment {} does not hold {}", box_text(segment.box),
                box_text(box));
  return {.buffer = segment.buffer,
          .offset = segment.offset + (box.row_begin - segment.box.row_begin) * segment.row_stride +
                    (box.col_begin - segment.box.col_begin),
          .row_stride = segment.row_stride,
          .rows = box.rows(),
          .cols = box.cols()};
}

}  // namespace troupe::reshard
