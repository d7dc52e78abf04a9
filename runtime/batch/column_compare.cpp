// Bitwise comparison of columns, and rows as text for messages.

#include "runtime/batch/column_storage.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::runtime {
namespace {

/// First of `count` rows at which the blocks differ, or `count`.
std::int64_t first_difference_in(const Storage& a, std::int64_t a_first, const Storage& b,
                                 std::int64_t b_first, std::int64_t count) {
  std::int64_t same_lengths = count;
  if (a.offsets) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (a.length(a_first + i) != b.length(b_first + i)) {
        same_lengths = i;
        break;
      }
    }
  }
  const auto equal = [&](std::int64_t from, std::int64_t rows) {
    const auto left = a.bytes(a_first + from, rows);
    const auto right = b.bytes(b_first + from, rows);
    return left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0;
  };
  if (equal(0, same_lengths)) return same_lengths;
  std::int64_t low = 0;  // rows before `low` are equal; bisect for the first that is not
  std::int64_t high = same_lengths;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (equal(low, middle - low) ? low : high) = middle;
  }
  return low;
}

/// Whether row `a_first` of one storage and `b_first` of the other are the same row, and with them
/// all that follow in both: of one block, or of one column at another owner.
bool same_rows(const Storage& a, std::int64_t a_first, const Storage& b, std::int64_t b_first) {
  if (&a == &b) return a_first == b_first;
  return a.lease && a.lease == b.lease && a.lease_first + a_first == b.lease_first + b_first;
}

template <class T>
void append_elements(std::string& text, std::span<const std::byte> bytes) {
  constexpr std::size_t kShown = 8;
  const std::size_t count = bytes.size() / sizeof(T);
  for (std::size_t i = 0; i < std::min(count, kShown); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    text += fmt::format("{}{}", i == 0 ? "" : ", ", value);
  }
  if (count > kShown) text += fmt::format(", … {} elements", count);
}

}  // namespace

std::optional<std::int64_t> Column::first_difference(const Column& other) const {
  TROUPE_CHECK(type() == other.type(), "column: comparing {} with {}", type().to_string(),
               other.type().to_string());
  const std::int64_t shared = std::min(count_, other.count_);
  const bool same_view = rope_ == other.rope_ && map_ == other.map_ && first_ == other.first_;
  std::int64_t row = same_view ? shared : 0;
  const std::vector<Run> left = same_view ? std::vector<Run>{} : ColumnAccess::runs(*this);
  const std::vector<Run> right = same_view ? std::vector<Run>{} : ColumnAccess::runs(other);
  std::size_t l = 0;
  std::size_t r = 0;
  std::int64_t l_done = 0;  // rows of left[l] already compared
  std::int64_t r_done = 0;
  while (row < shared) {
    const std::int64_t count = std::min(left[l].count - l_done, right[r].count - r_done);
    const Storage& a = **left[l].storage;
    const Storage& b = **right[r].storage;
    const std::int64_t a_first = left[l].first + l_done;
    const std::int64_t b_first = right[r].first + r_done;
    if (!same_rows(a, a_first, b, b_first)) {
      TROUPE_CHECK(!a.lease && !b.lease, "column: row {} is a reference; resolve to compare", row);
      const std::int64_t equal = first_difference_in(a, a_first, b, b_first, count);
      if (equal < count) return row + equal;
    }
    row += count;
    l_done += count;
    r_done += count;
    if (l_done == left[l].count) ++l, l_done = 0;
    if (r_done == right[r].count) ++r, r_done = 0;
  }
  if (count_ != other.count_) return shared;
  return std::nullopt;
}

bool Column::same_view(const Column& other) const {
  if (count_ != other.count_) return false;
  if (rope_ == other.rope_ && map_ == other.map_ && first_ == other.first_) return true;
  const std::vector<Run> left = ColumnAccess::runs(*this);
  const std::vector<Run> right = ColumnAccess::runs(other);
  std::size_t l = 0;
  std::size_t r = 0;
  std::int64_t l_done = 0;  // rows of left[l] already compared
  std::int64_t r_done = 0;
  while (l < left.size() && r < right.size()) {
    if (!same_rows(**left[l].storage, left[l].first + l_done, **right[r].storage,
                   right[r].first + r_done))
      return false;
    const std::int64_t count = std::min(left[l].count - l_done, right[r].count - r_done);
    l_done += count;
    r_done += count;
    if (l_done == left[l].count) ++l, l_done = 0;
    if (r_done == right[r].count) ++r, r_done = 0;
  }
  return true;
}

bool Column::bitwise_equal(const Column& other) const {
  return type() == other.type() && count_ == other.count_ && !first_difference(other);
}

std::string Column::describe_row(std::int64_t i) const {
  constexpr std::size_t kTextShown = 60;
  const auto bytes = row_bytes(i);
  if (kind() == ColumnKind::kText || kind() == ColumnKind::kJson) {
    const std::string_view whole = text(i);
    return whole.size() <= kTextShown
               ? fmt::format("'{}'", whole)
               : fmt::format("'{}…' ({} bytes)", whole.substr(0, kTextShown), whole.size());
  }
  std::string text = "[";
  switch (dtype()) {
    case DType::kF32:
      append_elements<float>(text, bytes);
      break;
    case DType::kF64:
      append_elements<double>(text, bytes);
      break;
    case DType::kI64:
      append_elements<std::int64_t>(text, bytes);
      break;
    case DType::kI32:
      append_elements<std::int32_t>(text, bytes);
      break;
    case DType::kU8:
    case DType::kBool:
      append_elements<std::uint8_t>(text, bytes);
      break;
  }
  return text + "]";
}

}  // namespace troupe::runtime
