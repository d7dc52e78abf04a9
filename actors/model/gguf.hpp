#pragma once

// The GGUF file format, versions 2 and 3: a mapped, fully checked reader.
//
// Layout, little-endian: magic `GGUF`, u32 version, u64 tensors, u64 metadata pairs; the pairs
// (key, kind, value); name, sizes, type and offset of each tensor; padding to `general.alignment`;
// then the tensors, each padded to it. Sizes are stored innermost first and are turned round here,
// so shapes are row-major like everywhere else. Every violation is one error that names the file,
// the byte or tensor, and both values. Memory is bounded by a small multiple of the header: numbers
// and strings stay in the file, and no count is believed before that many bytes are there.
// **Ownership:** a `GgufHeader` views the bytes it was parsed from; an opened `GgufFile` owns both.
// **Threads:** const access from any thread.
// **Invariants:** all ranges lie in the file, are whole blocks, and follow each other with nothing
// but padding between; keys and tensor names are unique UTF-8.

#include "actors/model/dequantize.hpp"
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

/// Kinds of metadata; values are those of the file.
enum class GgufKind : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// One metadata value, or an array of one kind (arrays of arrays are refused).
struct GgufValue {
  GgufKind kind = GgufKind::kU8;  ///< of the items
  bool is_array = false;
  std::uint64_t count = 1;
  std::span<const std::byte> bytes = {};  ///< the items as in the file, one after the other
};

struct GgufTensor {
  std::string_view name = {};
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> shape = {};  ///< row-major; 1 to 4 sizes, none is 0
  std::uint64_t offset = 0;              ///< from the start of the tensor data
  std::uint64_t bytes = 0;
  std::int64_t element_count() const;
};

/// Metadata with typed access. Errors: kCorrupt, `file: key x is …, wanted …`; kNotFound where
/// there is no such key and no fallback.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string_view place = "gguf") : place_(place) {}
  const std::string& place() const { return place_; }
  /// Null when there is no such key.
  const GgufValue* find(std::string_view key) const;
  const std::map<std::string_view, GgufValue>& values() const { return values_; }
  /// False when the key is there already.
  bool add(std::string_view key, GgufValue value) { return values_.emplace(key, value).second; }

  /// Any integer kind; what exceeds 63 bits is refused.
  result<std::int64_t> integer(std::string_view key,
                               std::optional<std::int64_t> fallback = {}) const;
  /// A float, double or integer. A float is taken as the shortest decimal that it stands for: 1e-05
  /// instead of 9.99999974e-06.
  result<double> number(std::string_view key, std::optional<double> fallback = {}) const;
  result<bool> flag(std::string_view key, std::optional<bool> fallback = {}) const;
  result<std::string_view> text(std::string_view key,
                                std::optional<std::string_view> fallback = {}) const;
  /// Arrays; empty when the key is absent.
  result<std::vector<std::string_view>> texts(std::string_view key) const;
  result<std::vector<std::int64_t>> integers(std::string_view key) const;

 private:
  tl::unexpected<Error> missing(std::string_view key) const;
  tl::unexpected<Error> wrong(std::string_view key, std::string_view wanted) const;

  std::string place_;
  std::map<std::string_view, GgufValue> values_;
};

struct GgufHeader {
  std::uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  ///< in the order of their data
  std::uint64_t alignment = 0;
  std::uint64_t data_offset = 0;
};

inline constexpr std::uint64_t kGgufKeyBytesMax = 65535;   ///< of the format
inline constexpr std::uint64_t kGgufNameBytesMax = 64;     ///< of the format, for tensors
inline constexpr std::uint64_t kGgufAlignmentMax = 65536;  ///< of this reader

/// Checks a whole file image, which must outlive the header. `place` names it in messages.
/// Errors: kCorrupt, and kUnsupported for versions, tensor types and nested arrays that exist
/// but are not read here.
result<GgufHeader> parse_gguf(std::span<const std::byte> file, std::string_view place);

class GgufFile {
 public:
  /// Maps and checks `path`. Errors: kNotFound, kIo, and those of parse_gguf.
  static result<GgufFile> open(const std::filesystem::path& path);
  /// The same for bytes in memory, which must outlive it; `place` names them in messages.
  static result<GgufFile> of_image(std::span<const std::byte> image, std::string_view place);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  const GgufMetadata& metadata() const;
  std::span<const GgufTensor> tensors() const;
  /// Null when there is no such tensor.
  const GgufTensor* find(std::string_view name) const;
  /// The tensor's numbers as fp32, row-major, into `target` (size = element_count).
  result<void> read_f32(const GgufTensor& tensor, std::span<float> target) const;

 private:
  struct Mapping;
  explicit GgufFile(std::unique_ptr<Mapping> mapping);
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace troupe::actors
