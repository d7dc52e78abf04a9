// Typed access to the metadata of a GGUF file.

#include "actors/model/gguf.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace troupe::actors {
namespace {

constexpr std::array<std::string_view, 13> kKindNames = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

template <class T>
T item_at(const GgufValue& value, std::uint64_t index) {
  T item;
  std::memcpy(&item, value.bytes.data() + index * sizeof item, sizeof item);
  return item;
}

/// Item `index` of an integer kind; none for other kinds and for what exceeds 63 bits.
std::optional<std::int64_t> integer_at(const GgufValue& value, std::uint64_t index) {
  switch (value.kind) {
    case GgufKind::kU8:
      return item_at<std::uint8_t>(value, index);
    case GgufKind::kI8:
      return item_at<std::int8_t>(value, index);
    case GgufKind::kU16:
      return item_at<std::uint16_t>(value, index);
    case GgufKind::kI16:
      return item_at<std::int16_t>(value, index);
    case GgufKind::kU32:
      return item_at<std::uint32_t>(value, index);
    case GgufKind::kI32:
      return item_at<std::int32_t>(value, index);
    case GgufKind::kI64:
      return item_at<std::int64_t>(value, index);
    case GgufKind::kU64: {
      const auto large = item_at<std::uint64_t>(value, index);
      if (large > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
      return static_cast<std::int64_t>(large);
    }
    default:
      return std::nullopt;
  }
}

/// The string at the front of `bytes`, which parsing found whole; `bytes` then begins after it.
std::string_view take_string(std::span<const std::byte>& bytes) {
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof size, size);
  bytes = bytes.subspan(sizeof size + size);
  return text;
}

double shortest_decimal(float value) {
  std::array<char, 64> text;
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  double wide = 0;
  std::from_chars(text.data(), written.ptr, wide);
  return wide;
}

std::string value_text(const GgufValue& value) {
  const std::string_view kind = kKindNames[static_cast<std::size_t>(value.kind)];
  if (value.is_array) return fmt::format("an array of {} {}", value.count, kind);
  if (const auto whole = integer_at(value, 0)) return fmt::format("{} ({})", *whole, kind);
  return fmt::format("of kind {}", kind);
}

}  // namespace

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

tl::unexpected<Error> GgufMetadata::missing(std::string_view key) const {
  return fail(ErrorCode::kNotFound, "{}: key {} is missing", place_, key);
}

tl::unexpected<Error> GgufMetadata::wrong(std::string_view key, std::string_view wanted) const {
  return fail(ErrorCode::kCorrupt, "{}: key {} is {}, wanted {}", place_, key,
              value_text(*find(key)), wanted);
}

result<std::int64_t> GgufMetadata::integer(std::string_view key,
                                           std::optional<std::int64_t> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return missing(key);
  }
  const auto whole = value->is_array ? std::nullopt : integer_at(*value, 0);
  if (!whole) return wrong(key, "an integer of 63 bits");
  return *whole;
}

result<double> GgufMetadata::number(std::string_view key, std::optional<double> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return missing(key);
  }
  if (value->is_array) return wrong(key, "a number");
  double wide = 0;
  if (value->kind == GgufKind::kF32) {
    wide = shortest_decimal(item_at<float>(*value, 0));
  } else if (value->kind == GgufKind::kF64) {
    wide = item_at<double>(*value, 0);
  } else if (const auto whole = integer_at(*value, 0)) {
    wide = static_cast<double>(*whole);
  } else {
    return wrong(key, "a number");
  }
  if (!std::isfinite(wide)) return wrong(key, "a finite number");
  return wide;
}

result<bool> GgufMetadata::flag(std::string_view key, std::optional<bool> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return missing(key);
  }
  if (value->is_array || value->kind != GgufKind::kBool) return wrong(key, "a bool");
  return value->bytes.front() != std::byte{0};
}

result<std::string_view> GgufMetadata::text(std::string_view key,
                                            std::optional<std::string_view> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return missing(key);
  }
  if (value->is_array || value->kind != GgufKind::kString) return wrong(key, "a string");
  auto bytes = value->bytes;
  return take_string(bytes);
}

result<std::vector<std::string_view>> GgufMetadata::texts(std::string_view key) const {
  std::vector<std::string_view> list;
  const GgufValue* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array || value->kind != GgufKind::kString)
    return wrong(key, "an array of strings");
  list.reserve(value->count);
  for (auto bytes = value->bytes; !bytes.empty();) list.push_back(take_string(bytes));
  return list;
}

result<std::vector<std::int64_t>> GgufMetadata::integers(std::string_view key) const {
  std::vector<std::int64_t> list;
  const GgufValue* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array) return wrong(key, "an array of integers");
  list.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto whole = integer_at(*value, i);
    if (!whole) return wrong(key, "an array of integers of 63 bits");
    list.push_back(*whole);
  }
  return list;
}

}  // namespace troupe::actors
