#include "reshard/layout.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_set>

namespace troupe::reshard {
namespace {

constexpr std::int64_t kAxisMax = std::numeric_limits<std::int32_t>::max();
/// Of one tensor, and of all buffers of one side: bytes of any move then fit in 64 bits.
constexpr std::int64_t kElementsMax = std::int64_t{1} << 57;

/// One rank of one side while it is checked.
struct RankCheck {
  const Roster& roster;
  const RankLayout& rank;
  Side side;

  const TensorInfo& tensor_of(const Segment& segment) const {
    return roster.tensors[static_cast<std::size_t>(segment.tensor)];
  }
  const Segment& segment(std::int32_t index) const {
    return rank.segments[static_cast<std::size_t>(index)];
  }
  /// `source rank 3: tensor q: box [0, 4) x [0, 8)`.
  std::string place(const Segment& segment) const {
    return fmt::format("{} rank {}: tensor {}: box {}", side_name(side), rank.rank,
                       tensor_of(segment).name, box_text(segment.box));
  }
};

std::int64_t elements_spanned(const Segment& segment) {
  return (segment.box.rows() - 1) * segment.row_stride + segment.box.cols();
}

result<void> check_tensors(const Roster& roster, Side side) {
  std::unordered_set<std::string_view> names;
  for (const TensorInfo& tensor : roster.tensors) {
    if (tensor.name.empty())
      return fail(ErrorCode::kInvalidArgument, "{} tensor {}: has no name", side_name(side),
                  &tensor - roster.tensors.data());
    if (!names.insert(tensor.name).second)
      return fail(ErrorCode::kConflict, "{} tensor {}: is listed twice", side_name(side),
                  tensor.name);
    if (tensor.rows < 1 || tensor.cols < 1)
      return fail(ErrorCode::kInvalidArgument, "{} tensor {}: shape {} x {} holds nothing",
                  side_name(side), tensor.name, tensor.rows, tensor.cols);
    if (tensor.rows > kAxisMax || tensor.cols > kAxisMax)
      return fail(ErrorCode::kUnsupported, "{} tensor {}: shape {} x {} exceeds {} on an axis",
                  side_name(side), tensor.name, tensor.rows, tensor.cols, kAxisMax);
    if (tensor.elements() > kElementsMax)
      return fail(ErrorCode::kUnsupported, "{} tensor {}: shape {} x {} exceeds {} elements",
                  side_name(side), tensor.name, tensor.rows, tensor.cols, kElementsMax);
  }
  return {};
}

result<void> check_buffers(const Roster& roster, Side side) {
  std::int64_t room = kElementsMax;
  for (const RankLayout& rank : roster.ranks) {
    for (const std::int64_t size : rank.buffer_elements) {
      if (size < 0)
        return fail(ErrorCode::kInvalidArgument, "{} rank {}: a buffer of {} elements",
                    side_name(side), rank.rank, size);
      if (size > room)
        return fail(ErrorCode::kUnsupported,
                    "{} rank {}: a buffer of {} elements, all buffers of a side may have {}",
                    side_name(side), rank.rank, size, kElementsMax);
      room -= size;
    }
  }
  return {};
}

result<void> check_box(const RankCheck& check, const Segment& segment) {
  const auto side = side_name(check.side);
  const auto tensor_count = static_cast<std::int64_t>(check.roster.tensors.size());
  if (segment.tensor < 0 || segment.tensor >= tensor_count)
    return fail(ErrorCode::kInvalidArgument, "{} rank {}: segment {}: tensor index {} of {}", side,
                check.rank.rank, &segment - check.rank.segments.data(), segment.tensor,
                tensor_count);
  const TensorInfo& tensor = check.tensor_of(segment);
  if (segment.box.empty())
    return fail(ErrorCode::kInvalidArgument, "{}: is empty", check.place(segment));
  if (!whole(tensor).contains(segment.box))
    return fail(ErrorCode::kInvalidArgument, "{}: exceeds shape {} x {}", check.place(segment),
                tensor.rows, tensor.cols);
  return {};
}

result<void> check_region(const RankCheck& check, const Segment& segment) {
  const auto buffer_count = static_cast<std::int64_t>(check.rank.buffer_elements.size());
  if (segment.buffer < 0 || segment.buffer >= buffer_count)
    return fail(ErrorCode::kInvalidArgument, "{}: buffer {} of {}", check.place(segment),
                segment.buffer, buffer_count);
  const std::int64_t size = check.rank.buffer_elements[static_cast<std::size_t>(segment.buffer)];
  const std::int64_t cols = segment.box.cols();
  const std::int64_t steps = segment.box.rows() - 1;
  if (segment.row_stride < cols)
    return fail(ErrorCode::kInvalidArgument, "{}: row stride {} is less than {} columns",
                check.place(segment), segment.row_stride, cols);
  // Divided rather than multiplied, so that absurd strides cannot overflow.
  const std::int64_t room = size - segment.offset - cols;
  if (segment.offset < 0 || segment.offset > size || room < 0 ||
      (steps > 0 && room / segment.row_stride < steps))
    return fail(ErrorCode::kInvalidArgument,
                "{}: offset {} with row stride {} leaves buffer {} of {} elements",
                check.place(segment), segment.offset, segment.row_stride, segment.buffer, size);
  return {};
}

result<void> check_element_sizes(const RankCheck& check) {
  std::vector<const Segment*> first_of(check.rank.buffer_elements.size(), nullptr);
  for (const Segment& segment : check.rank.segments) {
    const Segment*& first_seen = first_of[static_cast<std::size_t>(segment.buffer)];
    if (first_seen == nullptr) first_seen = &segment;
    const TensorInfo& a = check.tensor_of(*first_seen);
    const TensorInfo& b = check.tensor_of(segment);
    if (element_bytes(a.dtype) != element_bytes(b.dtype))
      return fail(ErrorCode::kConflict, "{}: {} in buffer {} that holds {} of {}",
                  check.place(segment), dtype_name(b.dtype), segment.buffer, dtype_name(a.dtype),
                  a.name);
  }
  return {};
}

/// Order of the segments by `less`; the common case, already sorted, costs one pass.
template <class Less>
std::vector<std::int32_t> sorted_order(const RankCheck& check, Less less) {
  std::vector<std::int32_t> order(check.rank.segments.size());
  std::iota(order.begin(), order.end(), 0);
  const auto by_segment = [&check, &less](std::int32_t a, std::int32_t b) {
    return less(check.segment(a), check.segment(b));
  };
  if (!std::is_sorted(order.begin(), order.end(), by_segment))
    std::sort(order.begin(), order.end(), by_segment);
  return order;
}

result<void> check_numbers_once(const RankCheck& check) {
  const auto order = sorted_order(check, [](const Segment& a, const Segment& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.box.row_begin < b.box.row_begin;
  });
  std::vector<const Segment*> open;  // of the same tensor, and not yet ended above the current row
  for (const std::int32_t index : order) {
    const Segment& segment = check.segment(index);
    std::erase_if(open, [&segment](const Segment* other) {
      return other->tensor != segment.tensor || other->box.row_end <= segment.box.row_begin;
    });
    for (const Segment* other : open) {
      if (!intersect(other->box, segment.box).empty())
        return fail(ErrorCode::kConflict, "{}: overlaps box {} of the same rank",
                    check.place(segment), box_text(other->box));
    }
    open.push_back(&segment);
  }
  return {};
}

/// Whether the elements [begin, end) of the buffer meet a row of `segment`.
bool meets_row(std::int64_t begin, std::int64_t end, const Segment& segment) {
  // The first row that ends after `begin`.
  const std::int64_t ahead = begin - segment.offset - segment.box.cols();
  const std::int64_t row = ahead < 0 ? 0 : ahead / segment.row_stride + 1;
  return row < segment.box.rows() && segment.offset + row * segment.row_stride < end;
}

/// Whether two segments of one buffer share an element; exact for any strides.
bool share_elements(const Segment& a, const Segment& b) {
  const std::int64_t stride = a.row_stride;
  const std::int64_t col_a = a.offset % stride;
  const std::int64_t col_b = b.offset % stride;
  const bool one_grid =
      stride == b.row_stride && col_a + a.box.cols() <= stride && col_b + b.box.cols() <= stride;
  if (one_grid) {  // rectangles of one matrix
    const auto as_box = [stride](const Segment& s, std::int64_t col) {
      const std::int64_t row = s.offset / stride;
      return Box{row, row + s.box.rows(), col, col + s.box.cols()};
    };
    return !intersect(as_box(a, col_a), as_box(b, col_b)).empty();
  }
  const Segment& few = a.box.rows() <= b.box.rows() ? a : b;
  const Segment& many = a.box.rows() <= b.box.rows() ? b : a;
  for (std::int64_t row = 0; row < few.box.rows(); ++row) {
    const std::int64_t begin = few.offset + row * few.row_stride;
    if (meets_row(begin, begin + few.box.cols(), many)) return true;
  }
  return false;
}

result<void> check_elements_once(const RankCheck& check) {
  const auto order = sorted_order(check, [](const Segment& a, const Segment& b) {
    return a.buffer != b.buffer ? a.buffer < b.buffer : a.offset < b.offset;
  });
  std::vector<const Segment*> open;
  for (const std::int32_t index : order) {
    const Segment& segment = check.segment(index);
    std::erase_if(open, [&segment](const Segment* other) {
      return other->buffer != segment.buffer ||
             other->offset + elements_spanned(*other) <= segment.offset;
    });
    for (const Segment* other : open) {
      if (share_elements(*other, segment))
        return fail(ErrorCode::kConflict, "{}: at offset {} of buffer {} overlaps {} {} at {}",
                    check.place(segment), segment.offset, segment.buffer,
                    check.tensor_of(*other).name, box_text(other->box), other->offset);
    }
    open.push_back(&segment);
  }
  return {};
}

result<void> check_rank(const RankCheck& check) {
  for (const Segment& segment : check.rank.segments) {
    TROUPE_TRY_VOID(check_box(check, segment));
    TROUPE_TRY_VOID(check_region(check, segment));
  }
  TROUPE_TRY_VOID(check_element_sizes(check));
  TROUPE_TRY_VOID(check_numbers_once(check));
  if (check.side == Side::kTarget) TROUPE_TRY_VOID(check_elements_once(check));
  return {};
}

}  // namespace

result<void> validate(const Roster& roster, Side side) {
  TROUPE_TRY_VOID(check_tensors(roster, side));
  TROUPE_TRY_VOID(check_buffers(roster, side));
  if (roster.ranks.empty())
    return fail(ErrorCode::kInvalidArgument, "{} roster: has no ranks", side_name(side));
  std::unordered_set<std::int32_t> ids;
  for (const RankLayout& rank : roster.ranks) {
    if (rank.rank < 0 || rank.node < 0)
      return fail(ErrorCode::kInvalidArgument, "{} rank {} on node {}: numbers start at 0",
                  side_name(side), rank.rank, rank.node);
    if (!ids.insert(rank.rank).second)
      return fail(ErrorCode::kConflict, "{} rank {}: is listed twice", side_name(side), rank.rank);
    TROUPE_TRY_VOID(check_rank({roster, rank, side}));
  }
  return {};
}

}  // namespace troupe::reshard
