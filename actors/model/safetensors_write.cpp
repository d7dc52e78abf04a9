// Writing a safetensors file: header from the views, then their bytes, converted in small chunks.

#include "actors/model/safetensors.hpp"
#include "actors/model/weight_set.hpp"
#include "runtime/base/file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <set>

namespace troupe::actors {
namespace {

TensorType stored_type(const TensorView& tensor, const SafetensorsWriteOptions& options) {
  return tensor.type == TensorType::kF32 ? options.f32_as : tensor.type;
}

result<void> check_views(const std::filesystem::path& path, std::span<const TensorView> tensors,
                         const SafetensorsWriteOptions& options) {
  const TensorType narrow = options.f32_as;
  if (narrow != TensorType::kF32 && narrow != TensorType::kBf16 && narrow != TensorType::kF16)
    return fail(ErrorCode::kInvalidArgument, "{}: cannot store F32 as {}", path.string(),
                tensor_type_name(narrow));
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == "__metadata__")
      return fail(ErrorCode::kInvalidArgument, "{}: \"{}\" cannot name a tensor", path.string(),
                  tensor.name);
    if (!names.insert(tensor.name).second)
      return fail(ErrorCode::kInvalidArgument, "{}: tensor {} is given twice", path.string(),
                  tensor.name);
    std::uint64_t needed = tensor_type_bytes(tensor.type);
    bool is_wrong = false;
    for (const std::int64_t size : tensor.shape)
      is_wrong |=
          size < 0 || __builtin_mul_overflow(needed, static_cast<std::uint64_t>(size), &needed);
    if (is_wrong || needed != tensor.bytes.size())
      return fail(ErrorCode::kInvalidArgument, "{}: tensor {}: {} bytes given for shape {} of {}",
                  path.string(), tensor.name, tensor.bytes.size(), shape_text(tensor.shape),
                  tensor_type_name(tensor.type));
  }
  return {};
}

/// The 8 bytes of the size and the JSON, padded with spaces to a multiple of 8.
result<std::string> header_text(const std::filesystem::path& path,
                                std::span<const TensorView* const> ordered,
                                const SafetensorsWriteOptions& options) {
  nlohmann::ordered_json document = nlohmann::ordered_json::object();
  if (!options.metadata.empty()) document["__metadata__"] = options.metadata;
  std::uint64_t offset = 0;
  for (const TensorView* tensor : ordered) {
    const TensorType type = stored_type(*tensor, options);
    const std::uint64_t end =
        offset + tensor->bytes.size() / tensor_type_bytes(tensor->type) * tensor_type_bytes(type);
    document[tensor->name] = {{"dtype", tensor_type_name(type)},
                              {"shape", tensor->shape},
                              {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = document.dump();
  } catch (const nlohmann::json::exception&) {
    return fail(ErrorCode::kInvalidArgument, "{}: a tensor name or metadata is not UTF-8",
                path.string());
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kSafetensorsHeaderBytesMax)
    return fail(ErrorCode::kInvalidArgument, "{}: header of {} bytes, more than the {} allowed",
                path.string(), text.size(), kSafetensorsHeaderBytesMax);
  const std::uint64_t size = text.size();
  std::string size_bytes(sizeof size, '\0');
  std::memcpy(size_bytes.data(), &size, sizeof size);
  return size_bytes + text;
}

result<void> write_narrowed(AtomicFile& file, std::span<const std::byte> floats, TensorType type) {
  constexpr std::size_t kChunk = 32 * 1024;
  std::vector<std::uint16_t> chunk(kChunk);
  const std::size_t count = floats.size() / sizeof(float);
  for (std::size_t first = 0; first < count; first += kChunk) {
    const std::size_t length = std::min(kChunk, count - first);
    for (std::size_t i = 0; i < length; ++i) {
      float value;
      std::memcpy(&value, floats.data() + (first + i) * sizeof value, sizeof value);
      chunk[i] = type == TensorType::kBf16 ? f32_to_bf16(value) : f32_to_f16(value);
    }
    TROUPE_TRY_VOID(file.write(std::as_bytes(std::span(chunk).first(length))));
  }
  return {};
}

}  // namespace

result<void> write_safetensors(const std::filesystem::path& path,
                               std::span<const TensorView> tensors,
                               const SafetensorsWriteOptions& options) {
  TROUPE_TRY_VOID(check_views(path, tensors, options));
  std::vector<const TensorView*> ordered;
  for (const TensorView& tensor : tensors) ordered.push_back(&tensor);
  std::sort(ordered.begin(), ordered.end(), [&](const TensorView* a, const TensorView* b) {
    const std::size_t a_bytes = tensor_type_bytes(stored_type(*a, options));
    const std::size_t b_bytes = tensor_type_bytes(stored_type(*b, options));
    return a_bytes != b_bytes ? a_bytes > b_bytes : a->name < b->name;
  });
  TROUPE_TRY(const std::string header, header_text(path, ordered, options));
  TROUPE_TRY(AtomicFile file, AtomicFile::create(path));
  TROUPE_TRY_VOID(file.write(std::as_bytes(std::span(header))));
  for (const TensorView* tensor : ordered) {
    const TensorType type = stored_type(*tensor, options);
    if (type == tensor->type) {
      TROUPE_TRY_VOID(file.write(tensor->bytes));
    } else {
      TROUPE_TRY_VOID(write_narrowed(file, tensor->bytes, type));
    }
  }
  return file.commit();
}

}  // namespace troupe::actors
