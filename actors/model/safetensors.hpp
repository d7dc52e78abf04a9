#pragma once

// The safetensors file format: a mapped, fully checked reader and an atomic writer.
//
// Layout: u64 little-endian N, N bytes of JSON, then the byte buffer; each entry has a dtype, a
// shape and a range of the buffer; the ranges tile the buffer without holes or overlap
// (docs/format of huggingface/safetensors). Every violation is one error that names the file, the
// tensor and both values. Memory of reader and writer is bounded by header plus one small chunk.
// **Ownership:** a `SafetensorsFile` owns its read-only mapping; spans of it die with it.
// **Threads:** a const `SafetensorsFile` may be read from any thread.
// **Invariants:** the writer never changes a file in place (temporary sibling, fsync, rename), so
// mappings of the old file stay valid.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

enum class TensorType { kF64, kF32, kF16, kBf16, kI64, kI32, kI16, kI8, kU8, kBool };

/// Name in the file, e.g. `BF16`.
std::string_view tensor_type_name(TensorType type);
/// Bytes of one element.
std::size_t tensor_type_bytes(TensorType type);

/// One tensor of a file. The range is relative to the start of the byte buffer.
struct TensorEntry {
  std::string name = {};
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape = {};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::int64_t element_count() const;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  ///< sorted by `begin`
  std::map<std::string, std::string> metadata;
  std::uint64_t buffer_offset = 0;  ///< 8 + N
};

inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

/// Checks a whole file image. `place` names it in messages. Errors: kCorrupt naming the tensor,
/// kUnsupported for a dtype that exists but is not read here (F8, F4, …).
result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file,
                                            std::string_view place);

/// `bytes` of `type` to fp32, elementwise; bf16 and f16 exactly, f64 rounded to nearest. `bytes`
/// need not be aligned. Errors: kInvalidArgument for types that are not floating point.
result<void> convert_to_f32(TensorType type, std::span<const std::byte> bytes,
                            std::span<float> target);

/// Round to nearest even; NaN stays NaN (quiet), overflow goes to infinity.
std::uint16_t f32_to_bf16(float value);
std::uint16_t f32_to_f16(float value);
float bf16_to_f32(std::uint16_t bits);  ///< exact
float f16_to_f32(std::uint16_t bits);   ///< exact

class SafetensorsFile {
 public:
  /// Maps and checks `path`. Errors: kNotFound, kIo, and those of parse_safetensors.
  static result<SafetensorsFile> open(const std::filesystem::path& path);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::filesystem::path& path() const;
  std::span<const TensorEntry> entries() const;
  const std::map<std::string, std::string>& metadata() const;
  /// Null when there is no such tensor.
  const TensorEntry* find(std::string_view name) const;
  /// The raw bytes, little-endian, row-major; possibly misaligned for the type.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;
  /// Upcasts a floating-point tensor into `target` (size = element_count).
  result<void> read_f32(const TensorEntry& entry, std::span<float> target) const;
  /// Copies a tensor of exactly this type, whatever its alignment.
  /// Errors: kNotFound, kInvalidArgument when the dtype differs. T: float, double, (u)int types.
  template <class T>
  result<std::vector<T>> read(std::string_view name) const;

 private:
  struct Mapping;
  explicit SafetensorsFile(std::unique_ptr<Mapping> mapping);
  std::unique_ptr<Mapping> mapping_;
};

/// A tensor to write: `bytes` holds shape-product elements of `type`, row-major.
struct TensorView {
  std::string name = {};
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> bytes = {};
};

struct SafetensorsWriteOptions {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  /// Store F32 tensors as this floating-point type instead (kBf16 and kF16 round to even).
  TensorType f32_as = TensorType::kF32;
};

/// Writes `path` atomically; order in the file: element size descending, then name.
/// Errors: kInvalidArgument (duplicate or empty name, size against shape), kIo.
result<void> write_safetensors(const std::filesystem::path& path,
                               std::span<const TensorView> tensors,
                               const SafetensorsWriteOptions& options = {});

}  // namespace troupe::actors
