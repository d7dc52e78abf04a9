#include "actors/model/gguf.hpp"

#include "actors/model/mapped_file.hpp"

#include <utility>

namespace troupe::actors {

struct GgufFile::Mapping {
  MappedFile file;
  std::span<const std::byte> image;
  GgufHeader header;
  std::map<std::string_view, const GgufTensor*> by_name;
};

GgufFile::GgufFile(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  TROUPE_TRY(MappedFile mapped, MappedFile::open(path));
  TROUPE_TRY(GgufFile file, of_image(mapped.bytes(), path.string()));
  file.mapping_->file = std::move(mapped);
  return file;
}

result<GgufFile> GgufFile::of_image(std::span<const std::byte> image, std::string_view place) {
  auto mapping = std::make_unique<Mapping>();
  mapping->image = image;
  TROUPE_TRY(mapping->header, parse_gguf(image, place));
  for (const GgufTensor& tensor : mapping->header.tensors)
    mapping->by_name.emplace(tensor.name, &tensor);
  return GgufFile(std::move(mapping));
}

const GgufMetadata& GgufFile::metadata() const { return mapping_->header.metadata; }

std::span<const GgufTensor> GgufFile::tensors() const { return mapping_->header.tensors; }

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = mapping_->by_name.find(name);
  return found == mapping_->by_name.end() ? nullptr : found->second;
}

result<void> GgufFile::read_f32(const GgufTensor& tensor, std::span<float> target) const {
  const auto bytes =
      mapping_->image.subspan(mapping_->header.data_offset + tensor.offset, tensor.bytes);
  if (auto done = dequantize(tensor.type, bytes, target); !done)
    return fail(done.error().code, "{}: tensor {}: {}", metadata().place(), tensor.name,
                done.error().message);
  return {};
}

}  // namespace troupe::actors
