// Parsing the front of a GGUF file, and the rules that its byte ranges must obey.

#include "actors/model/gguf.hpp"
#include "actors/model/weight_set.hpp"
#include "runtime/base/utf8.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

namespace troupe::actors {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr std::size_t kDimensionsMax = 4;
// The least that one of them takes: key size, key, kind, value; name size, sizes, type, offset.
constexpr std::uint64_t kPairBytesMin = 8 + 1 + 4 + 1;
constexpr std::uint64_t kTensorBytesMin = 8 + 1 + 4 + 8 + 4 + 8;

/// Bytes of one item; 0 for kinds without a fixed size.
constexpr std::array<std::uint64_t, 13> kKindBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/// Reads forward through the image; an offset and both sizes are in each refusal.
class Cursor {
 public:
  Cursor(std::span<const std::byte> file, std::string_view place) : file_(file), place_(place) {}

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return file_.size() - at_; }
  std::string_view place() const { return place_; }

  result<std::span<const std::byte>> take(std::uint64_t count, std::string_view what) {
    if (count > left())
      return fail(ErrorCode::kCorrupt, "{}: byte {}: {} takes {} bytes, but {} are left", place_,
                  at_, what, count, left());
    const auto bytes = file_.subspan(at_, count);
    at_ += count;
    return bytes;
  }

  template <class T>
  result<T> number(std::string_view what) {
    TROUPE_TRY(const auto bytes, take(sizeof(T), what));
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  result<std::string_view> text(std::string_view what, std::uint64_t bytes_max) {
    TROUPE_TRY(const auto size, number<std::uint64_t>(what));
    if (size > bytes_max)
      return fail(ErrorCode::kCorrupt, "{}: byte {}: {} takes {} bytes, at most {} are allowed",
                  place_, at_, what, size, bytes_max);
    TROUPE_TRY(const auto bytes, take(size, what));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  /// A text that names something: not empty, and fit to be shown.
  result<std::string_view> name(std::string_view what, std::uint64_t bytes_max) {
    const std::uint64_t begin = at_;
    TROUPE_TRY(const std::string_view name, text(what, bytes_max));
    const bool has_control = std::any_of(name.begin(), name.end(),
                                         [](char c) { return static_cast<unsigned char>(c) < 32; });
    if (name.empty() || has_control || !is_valid_utf8(name))
      return fail(ErrorCode::kCorrupt,
                  "{}: byte {}: {} of {} bytes is empty, holds control characters or is not UTF-8",
                  place_, begin, what, name.size());
    return name;
  }

  /// A count of things, each of which takes `bytes_min` bytes that must be there.
  result<std::uint64_t> count(std::string_view what, std::uint64_t bytes_min) {
    const std::uint64_t begin = at_;
    TROUPE_TRY(const auto value, number<std::uint64_t>(what));
    if (value > left() / bytes_min)
      return fail(ErrorCode::kCorrupt,
                  "{}: byte {}: {} is {}, but the {} bytes left hold {} at most", place_, begin,
                  what, value, left(), left() / bytes_min);
    return value;
  }

  result<void> pad_to(std::uint64_t alignment, std::string_view what) {
    const std::uint64_t excess = at_ % alignment;
    if (excess == 0) return {};
    return take(alignment - excess, what).map([](auto&&) {});
  }

 private:
  std::span<const std::byte> file_;
  std::string place_;
  std::uint64_t at_ = 0;
};

result<GgufKind> read_kind(Cursor& cursor, std::string_view key) {
  const std::uint64_t begin = cursor.at();
  TROUPE_TRY(const auto number, cursor.number<std::uint32_t>("a kind of value"));
  if (number >= kKindBytes.size())
    return fail(ErrorCode::kCorrupt, "{}: byte {}: key {} has kind {}, wanted 0 to {}",
                cursor.place(), begin, key, number, kKindBytes.size() - 1);
  return static_cast<GgufKind>(number);
}

result<GgufValue> read_value(Cursor& cursor, std::span<const std::byte> file,
                             std::string_view key) {
  GgufValue value;
  TROUPE_TRY(value.kind, read_kind(cursor, key));
  if (value.kind == GgufKind::kArray) {
    value.is_array = true;
    TROUPE_TRY(value.kind, read_kind(cursor, key));
    if (value.kind == GgufKind::kArray)
      return fail(ErrorCode::kUnsupported, "{}: key {}: arrays of arrays are not supported",
                  cursor.place(), key);
    const std::uint64_t least =
        std::max<std::uint64_t>(kKindBytes[static_cast<std::size_t>(value.kind)], 1);
    const std::uint64_t item_bytes = value.kind == GgufKind::kString ? 8 : least;
    TROUPE_TRY(value.count, cursor.count(fmt::format("the length of {}", key), item_bytes));
  }
  const std::uint64_t begin = cursor.at();
  if (value.kind == GgufKind::kString) {
    for (std::uint64_t i = 0; i < value.count; ++i)
      TROUPE_TRY_VOID(cursor.text(key, std::numeric_limits<std::uint64_t>::max()));
  } else {
    TROUPE_TRY_VOID(
        cursor.take(kKindBytes[static_cast<std::size_t>(value.kind)] * value.count, key));
  }
  value.bytes = file.subspan(begin, cursor.at() - begin);
  if (value.kind == GgufKind::kBool)
    for (const std::byte byte : value.bytes)
      if (byte > std::byte{1})
        return fail(ErrorCode::kCorrupt, "{}: key {}: a bool is {}, wanted 0 or 1", cursor.place(),
                    key, static_cast<unsigned int>(byte));
  return value;
}

tl::unexpected<Error> broken(const Cursor& cursor, std::string_view tensor,
                             const std::string& what) {
  return fail(ErrorCode::kCorrupt, "{}: tensor {}: {}", cursor.place(), tensor, what);
}

result<GgmlType> read_type(Cursor& cursor, std::string_view tensor) {
  TROUPE_TRY(const auto number, cursor.number<std::uint32_t>("a tensor type"));
  if (const auto type = ggml_type_of(number)) return *type;
  if (const std::string_view name = foreign_ggml_type_name(number); !name.empty())
    return fail(ErrorCode::kUnsupported, "{}: tensor {}: type {} is not supported", cursor.place(),
                tensor, name);
  return broken(cursor, tensor, fmt::format("type {} is unknown", number));
}

/// Sizes innermost first, turned round.
result<std::vector<std::int64_t>> read_shape(Cursor& cursor, std::string_view tensor) {
  TROUPE_TRY(const auto dimensions, cursor.number<std::uint32_t>("a number of dimensions"));
  if (dimensions < 1 || dimensions > kDimensionsMax)
    return broken(cursor, tensor,
                  fmt::format("{} dimensions, wanted 1 to {}", dimensions, kDimensionsMax));
  std::vector<std::int64_t> shape;
  std::int64_t elements = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    TROUPE_TRY(const auto size, cursor.number<std::uint64_t>("a size"));
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (size < 1 || size > kMax ||
        __builtin_mul_overflow(elements, static_cast<std::int64_t>(size), &elements))
      return broken(cursor, tensor,
                    fmt::format("size {} of dimension {} is 0 or too large", size, i));
    shape.insert(shape.begin(), static_cast<std::int64_t>(size));
  }
  return shape;
}

result<GgufTensor> read_tensor(Cursor& cursor) {
  GgufTensor tensor;
  TROUPE_TRY(tensor.name, cursor.name("a tensor name", kGgufNameBytesMax));
  TROUPE_TRY(tensor.shape, read_shape(cursor, tensor.name));
  TROUPE_TRY(tensor.type, read_type(cursor, tensor.name));
  TROUPE_TRY(tensor.offset, cursor.number<std::uint64_t>("an offset"));
  const auto row = static_cast<std::uint64_t>(tensor.shape.back());
  const std::uint64_t block = ggml_block_elements(tensor.type);
  if (row % block != 0)
    return broken(cursor, tensor.name,
                  fmt::format("rows of {} are not whole blocks of {} of {}", row,
                              ggml_type_name(tensor.type), block));
  const auto blocks = static_cast<std::uint64_t>(tensor.element_count()) / block;
  if (__builtin_mul_overflow(blocks, ggml_block_bytes(tensor.type), &tensor.bytes))
    return broken(cursor, tensor.name,
                  fmt::format("the byte size of shape {} of {} overflows", shape_text(tensor.shape),
                              ggml_type_name(tensor.type)));
  return tensor;
}

/// Tensors sorted by offset follow each other, padded, to the end of the file.
result<void> check_tiling(const Cursor& cursor, const GgufHeader& header) {
  const std::uint64_t data_bytes = cursor.left();
  std::uint64_t expected = 0;
  std::uint64_t end = 0;
  std::string_view before = "the start";
  for (const GgufTensor& tensor : header.tensors) {
    if (tensor.offset != expected)
      return broken(cursor, tensor.name,
                    fmt::format("begins at byte {} of the data, wanted {} after {}", tensor.offset,
                                expected, before));
    if (tensor.bytes > data_bytes - expected)
      return broken(cursor, tensor.name,
                    fmt::format("{} bytes from {} reach beyond the {} bytes of data", tensor.bytes,
                                tensor.offset, data_bytes));
    before = tensor.name;
    end = expected + tensor.bytes;
    // Padding of the last tensor may be left out by the writer.
    const std::uint64_t excess = end % header.alignment;
    expected = std::min(data_bytes, excess == 0 ? end : end + header.alignment - excess);
  }
  if (expected != data_bytes)
    return fail(ErrorCode::kCorrupt, "{}: {} bytes of data, but the last tensor {} ends at {}",
                cursor.place(), data_bytes, before, end);
  return {};
}

result<void> read_front(Cursor& cursor, std::uint32_t& version) {
  TROUPE_TRY(const auto magic, cursor.take(4, "the magic number"));
  if (std::memcmp(magic.data(), "GGUF", 4) != 0)
    return fail(ErrorCode::kCorrupt, "{}: does not start with GGUF", cursor.place());
  TROUPE_TRY(version, cursor.number<std::uint32_t>("the version"));
  if (version == 2 || version == 3) return {};
  const bool is_swapped = version == 0x02000000U || version == 0x03000000U;
  return fail(version == 1 || is_swapped ? ErrorCode::kUnsupported : ErrorCode::kCorrupt,
              "{}: version {} is not supported, only 2 and 3{}", cursor.place(), version,
              is_swapped ? " (the file is big-endian)" : "");
}

result<std::uint64_t> read_alignment(const GgufMetadata& metadata) {
  TROUPE_TRY(const std::int64_t alignment, metadata.integer("general.alignment", 32));
  if (alignment < 8 || alignment > std::int64_t{kGgufAlignmentMax} ||
      !std::has_single_bit(static_cast<std::uint64_t>(alignment)))
    return fail(ErrorCode::kCorrupt,
                "{}: general.alignment is {}, wanted a power of two from 8 to {}", metadata.place(),
                alignment, kGgufAlignmentMax);
  return static_cast<std::uint64_t>(alignment);
}

}  // namespace

std::int64_t GgufTensor::element_count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

result<GgufHeader> parse_gguf(std::span<const std::byte> file, std::string_view place) {
  Cursor cursor(file, place);
  GgufHeader header;
  header.metadata = GgufMetadata(place);
  TROUPE_TRY_VOID(read_front(cursor, header.version));
  TROUPE_TRY(const auto tensors, cursor.count("the number of tensors", kTensorBytesMin));
  TROUPE_TRY(const auto pairs, cursor.count("the number of metadata pairs", kPairBytesMin));
  for (std::uint64_t i = 0; i < pairs; ++i) {
    TROUPE_TRY(const std::string_view key, cursor.name("a metadata key", kGgufKeyBytesMax));
    TROUPE_TRY(const GgufValue value, read_value(cursor, file, key));
    if (!header.metadata.add(key, value))
      return fail(ErrorCode::kCorrupt, "{}: key {} appears twice", place, key);
  }
  TROUPE_TRY(header.alignment, read_alignment(header.metadata));
  std::set<std::string_view> names;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    TROUPE_TRY(GgufTensor tensor, read_tensor(cursor));
    if (!names.insert(tensor.name).second) return broken(cursor, tensor.name, "appears twice");
    header.tensors.push_back(std::move(tensor));
  }
  if (tensors > 0) TROUPE_TRY_VOID(cursor.pad_to(header.alignment, "padding before the tensors"));
  header.data_offset = cursor.at();
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const GgufTensor& a, const GgufTensor& b) { return a.offset < b.offset; });
  if (tensors > 0) TROUPE_TRY_VOID(check_tiling(cursor, header));
  return header;
}

}  // namespace troupe::actors
