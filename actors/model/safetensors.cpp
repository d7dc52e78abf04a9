#include "actors/model/safetensors.hpp"

#include "actors/model/mapped_file.hpp"

#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace troupe::actors {

struct SafetensorsFile::Mapping {
  MappedFile file;
  SafetensorsHeader header;
  std::unordered_map<std::string_view, const TensorEntry*> by_name;
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  auto mapping = std::make_unique<Mapping>();
  TROUPE_TRY(mapping->file, MappedFile::open(path));
  TROUPE_TRY(mapping->header, parse_safetensors(mapping->file.bytes(), path.string()));
  for (const TensorEntry& entry : mapping->header.entries)
    mapping->by_name.emplace(entry.name, &entry);
  return SafetensorsFile(std::move(mapping));
}

const std::filesystem::path& SafetensorsFile::path() const { return mapping_->file.path(); }

std::span<const TensorEntry> SafetensorsFile::entries() const { return mapping_->header.entries; }

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return mapping_->header.metadata;
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = mapping_->by_name.find(name);
  return found == mapping_->by_name.end() ? nullptr : found->second;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return mapping_->file.bytes().subspan(mapping_->header.buffer_offset + entry.begin,
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
