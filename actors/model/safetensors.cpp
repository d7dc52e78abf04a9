#include "actors/model/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace troupe::actors {

struct SafetensorsFile::Mapping {
  std::filesystem::path path;
  void* address = nullptr;
  std::size_t size = 0;
  SafetensorsHeader header;
  std::unordered_map<std::string_view, const TensorEntry*> by_name;

  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (address != nullptr) ::munmap(address, size);
  }
  std::span<const std::byte> image() const {
    return {static_cast<const std::byte*>(address), size};
  }
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: cannot open: {}",
                path.string(), std::strerror(errno));
  struct stat status = {};
  const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  auto mapping = std::make_unique<Mapping>();
  mapping->path = path;
  int reason = 0;
  if (is_file && status.st_size > 0) {
    const auto size = static_cast<std::size_t>(status.st_size);
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    reason = errno;
    if (address != MAP_FAILED) {
      mapping->address = address;
      mapping->size = size;
    }
  }
  ::close(descriptor);
  if (!is_file) return fail(ErrorCode::kIo, "{}: not a regular file", path.string());
  if (status.st_size > 0 && mapping->address == nullptr)
    return fail(ErrorCode::kIo, "{}: cannot map {} bytes: {}", path.string(), status.st_size,
                std::strerror(reason));
  TROUPE_TRY(mapping->header, parse_safetensors(mapping->image(), path.string()));
  for (const TensorEntry& entry : mapping->header.entries)
    mapping->by_name.emplace(entry.name, &entry);
  return SafetensorsFile(std::move(mapping));
}

const std::filesystem::path& SafetensorsFile::path() const { return mapping_->path; }

std::span<const TensorEntry> SafetensorsFile::entries() const { return mapping_->header.entries; }

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return mapping_->header.metadata;
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = mapping_->by_name.find(name);
  return found == mapping_->by_name.end() ? nullptr : found->second;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return mapping_->image().subspan(mapping_->header.buffer_offset + entry.begin,
                                   entry.end - entry.begin);
}

result<void> SafetensorsFile::read_f32(const TensorEntry& entry, std::span<float> target) const {
  if (auto done = convert_to_f32(entry.type, bytes(entry), target); !done)
    return fail(done.error().code, "{}: tensor {}: {}", path().string(), entry.name,
                done.error().message);
  return {};
}

namespace {

template <class T>
bool holds(TensorType type) {
  if constexpr (std::is_same_v<T, double>) return type == TensorType::kF64;
  if constexpr (std::is_same_v<T, float>) return type == TensorType::kF32;
  if constexpr (std::is_same_v<T, std::int64_t>) return type == TensorType::kI64;
  if constexpr (std::is_same_v<T, std::int32_t>) return type == TensorType::kI32;
  if constexpr (std::is_same_v<T, std::int16_t>) return type == TensorType::kI16;
  if constexpr (std::is_same_v<T, std::int8_t>) return type == TensorType::kI8;
  if constexpr (std::is_same_v<T, std::uint8_t>)
    return type == TensorType::kU8 || type == TensorType::kBool;
  return false;
}

}  // namespace

template <class T>
result<std::vector<T>> SafetensorsFile::read(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr)
    return fail(ErrorCode::kNotFound, "{}: no tensor {}", path().string(), name);
  if (!holds<T>(entry->type))
    return fail(ErrorCode::kInvalidArgument, "{}: tensor {}: dtype is {}, not the one asked for",
                path().string(), name, tensor_type_name(entry->type));
  std::vector<T> values(static_cast<std::size_t>(entry->element_count()));
  const auto source = bytes(*entry);
  if (!source.empty()) std::memcpy(values.data(), source.data(), source.size());
  return values;
}

template result<std::vector<double>> SafetensorsFile::read(std::string_view) const;
template result<std::vector<float>> SafetensorsFile::read(std::string_view) const;
template result<std::vector<std::int64_t>> SafetensorsFile::read(std::string_view) const;
template result<std::vector<std::int32_t>> SafetensorsFile::read(std::string_view) const;
template result<std::vector<std::int16_t>> SafetensorsFile::read(std::string_view) const;
template result<std::vector<std::int8_t>> SafetensorsFile::read(std::string_view) const;
template result<std::vector<std::uint8_t>> SafetensorsFile::read(std::string_view) const;

}  // namespace troupe::actors
