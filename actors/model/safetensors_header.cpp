// The JSON header of a safetensors file and the rules that its byte ranges must obey.

#include "actors/model/safetensors.hpp"
#include "actors/model/weight_set.hpp"
#include "actors/text/strict_json.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <tuple>

namespace troupe::actors {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

using nlohmann::json;

struct TypeInfo {
  TensorType type;
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array kTypes = {
    TypeInfo{TensorType::kF64, "F64", 8}, TypeInfo{TensorType::kF32, "F32", 4},
    TypeInfo{TensorType::kF16, "F16", 2}, TypeInfo{TensorType::kBf16, "BF16", 2},
    TypeInfo{TensorType::kI64, "I64", 8}, TypeInfo{TensorType::kI32, "I32", 4},
    TypeInfo{TensorType::kI16, "I16", 2}, TypeInfo{TensorType::kI8, "I8", 1},
    TypeInfo{TensorType::kU8, "U8", 1},   TypeInfo{TensorType::kBool, "BOOL", 1}};

/// Names of the format that exist but that nothing here computes with.
constexpr std::array<std::string_view, 14> kForeignTypes = {
    "U16",     "U32",     "U64",         "F4",          "F6_E2M3", "F6_E3M2", "F8_E5M2",
    "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64",     "I4",      "U4"};

tl::unexpected<Error> broken(std::string_view place, std::string_view tensor,
                             const std::string& what) {
  return fail(ErrorCode::kCorrupt, "{}: tensor {}: {}", place, tensor, what);
}

result<TensorType> read_type(const json& entry, std::string_view place, std::string_view tensor) {
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string())
    return broken(place, tensor, "dtype is missing or not a string");
  const auto& name = dtype->get_ref<const std::string&>();
  for (const TypeInfo& info : kTypes)
    if (info.name == name) return info.type;
  if (std::find(kForeignTypes.begin(), kForeignTypes.end(), name) != kForeignTypes.end())
    return fail(ErrorCode::kUnsupported, "{}: tensor {}: dtype {} is not supported", place, tensor,
                name);
  return broken(place, tensor, fmt::format("dtype {} is unknown", name));
}

result<std::vector<std::int64_t>> read_shape(const json& entry, std::string_view place,
                                             std::string_view tensor) {
  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array())
    return broken(place, tensor, "shape is missing or not a list");
  std::vector<std::int64_t> sizes;
  for (const json& size : *shape) {
    if (!size.is_number_unsigned() ||
        size.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
      return broken(place, tensor,
                    fmt::format("shape {} holds {}, which is no size", shape->dump(), size.dump()));
    sizes.push_back(size.get<std::int64_t>());
  }
  return sizes;
}

/// The range of one entry, checked against its shape and against the buffer.
result<void> read_range(const json& entry, std::string_view place, std::uint64_t buffer_bytes,
                        TensorEntry& tensor) {
  const auto offsets = entry.find("data_offsets");
  const bool is_pair = offsets != entry.end() && offsets->is_array() && offsets->size() == 2 &&
                       (*offsets)[0].is_number_unsigned() && (*offsets)[1].is_number_unsigned();
  if (!is_pair)
    return broken(place, tensor.name,
                  fmt::format("data_offsets {} is not a pair [begin, end]",
                              offsets == entry.end() ? "(missing)" : offsets->dump()));
  tensor.begin = (*offsets)[0].get<std::uint64_t>();
  tensor.end = (*offsets)[1].get<std::uint64_t>();
  if (tensor.begin > tensor.end)
    return broken(place, tensor.name,
                  fmt::format("bytes {}..{} end before they begin", tensor.begin, tensor.end));
  if (tensor.end > buffer_bytes)
    return broken(place, tensor.name,
                  fmt::format("bytes {}..{} reach beyond the {} bytes of data", tensor.begin,
                              tensor.end, buffer_bytes));
  std::uint64_t needed = tensor_type_bytes(tensor.type);
  bool overflows = false;
  for (const std::int64_t size : tensor.shape)
    overflows |= __builtin_mul_overflow(needed, static_cast<std::uint64_t>(size), &needed);
  if (overflows)
    return broken(place, tensor.name,
                  fmt::format("the byte size of shape {} of {} overflows", shape_text(tensor.shape),
                              tensor_type_name(tensor.type)));
  if (needed != tensor.end - tensor.begin)
    return broken(place, tensor.name,
                  fmt::format("shape {} of {} needs {} bytes, but {}..{} are {}",
                              shape_text(tensor.shape), tensor_type_name(tensor.type), needed,
                              tensor.begin, tensor.end, tensor.end - tensor.begin));
  return {};
}

/// Entries sorted by begin must tile [0, buffer_bytes).
result<void> check_tiling(const SafetensorsHeader& header, std::string_view place,
                          std::uint64_t buffer_bytes) {
  std::uint64_t expected = 0;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& tensor : header.entries) {
    if (tensor.begin < expected)
      return broken(place, tensor.name,
                    fmt::format("bytes {}..{} overlap {} ({}..{})", tensor.begin, tensor.end,
                                before->name, before->begin, before->end));
    if (tensor.begin > expected)
      return broken(
          place, tensor.name,
          fmt::format("begins at byte {} but the data before it ends at {} ({})", tensor.begin,
                      expected, before == nullptr ? "start of the data" : before->name));
    expected = tensor.end;
    before = &tensor;
  }
  if (expected != buffer_bytes)
    return fail(ErrorCode::kCorrupt, "{}: {} bytes of data, but the last tensor {} ends at {}",
                place, buffer_bytes, before == nullptr ? "(none)" : before->name, expected);
  return {};
}

result<void> read_metadata(const json& object, std::string_view place, SafetensorsHeader& header) {
  if (!object.is_object())
    return fail(ErrorCode::kCorrupt, "{}: __metadata__ is a JSON {}, wanted an object", place,
                object.type_name());
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string())
      return fail(ErrorCode::kCorrupt, "{}: __metadata__: {} is {}, wanted a string", place, key,
                  value.dump());
    header.metadata.emplace(key, value.get<std::string>());
  }
  return {};
}

}  // namespace

std::string_view tensor_type_name(TensorType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}

std::size_t tensor_type_bytes(TensorType type) {
  return kTypes[static_cast<std::size_t>(type)].bytes;
}

std::int64_t TensorEntry::element_count() const {
  return static_cast<std::int64_t>((end - begin) / tensor_type_bytes(type));
}

result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file,
                                            std::string_view place) {
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes)
    return fail(ErrorCode::kCorrupt, "{}: {} bytes, too short for the 8 bytes of a header size",
                place, file.size());
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  if (header_bytes > kSafetensorsHeaderBytesMax)
    return fail(ErrorCode::kCorrupt, "{}: header of {} bytes, more than the {} allowed", place,
                header_bytes, kSafetensorsHeaderBytesMax);
  if (header_bytes > file.size() - sizeof header_bytes)
    return fail(ErrorCode::kCorrupt, "{}: header of {} bytes in a file of {}", place, header_bytes,
                file.size());
  const auto rest = file.subspan(sizeof header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), header_bytes);
  if (!text.starts_with('{'))
    return fail(ErrorCode::kCorrupt, "{}: the header does not start with a brace", place);
  TROUPE_TRY(const json document, parse_strict_json(text, place));

  SafetensorsHeader header;
  header.buffer_offset = sizeof header_bytes + header_bytes;
  const std::uint64_t buffer_bytes = file.size() - header.buffer_offset;
  for (const auto& [name, entry] : document.items()) {
    if (name == "__metadata__") {
      TROUPE_TRY_VOID(read_metadata(entry, place, header));
      continue;
    }
    if (!entry.is_object())
      return broken(place, name, fmt::format("is a JSON {}, wanted an object", entry.type_name()));
    TensorEntry tensor{.name = name, .shape = {}};
    TROUPE_TRY(tensor.type, read_type(entry, place, name));
    TROUPE_TRY(tensor.shape, read_shape(entry, place, name));
    TROUPE_TRY_VOID(read_range(entry, place, buffer_bytes, tensor));
    header.entries.push_back(std::move(tensor));
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  TROUPE_TRY_VOID(check_tiling(header, place, buffer_bytes));
  return header;
}

}  // namespace troupe::actors
