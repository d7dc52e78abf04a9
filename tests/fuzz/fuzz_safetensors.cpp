// No bytes crash the safetensors reader; what it accepts lies inside the file, tiles it, and reads.

#include "actors/model/safetensors.hpp"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace troupe::actors;

void must(bool held) {
  if (!held) std::abort();
}

void check(std::span<const std::byte> image) {
  const auto header = parse_safetensors(image, "fuzz");
  if (!header) return must(header.error().message.starts_with("fuzz: "));
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : header->entries) {
    must(entry.begin == covered && entry.end >= entry.begin);
    covered = entry.end;
    const auto bytes = image.subspan(header->buffer_offset + entry.begin, entry.end - entry.begin);
    std::vector<float> values(static_cast<std::size_t>(entry.element_count()));
    (void)convert_to_f32(entry.type, bytes, values);
  }
  must(header->buffer_offset + covered == image.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check({reinterpret_cast<const std::byte*>(data), size});
  // Again with a header size that fits: all up to the last brace is the header.
  std::string image(size + 8, '\0');
  if (size > 0) std::memcpy(image.data() + 8, data, size);
  const std::size_t brace = image.rfind('}');
  const std::uint64_t header_bytes = brace == std::string::npos || brace < 8 ? 0 : brace - 7;
  std::memcpy(image.data(), &header_bytes, sizeof header_bytes);
  check(std::as_bytes(std::span(image)));
  return 0;
}
