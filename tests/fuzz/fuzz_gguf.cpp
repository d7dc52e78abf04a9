// No bytes crash the GGUF reader; what it accepts lies inside the file, and whatever model and
// tokenizer it holds convert or are refused with a message that names the place.

#include "actors/model/gguf_model.hpp"
#include "actors/text/tokenizer.hpp"

#include <cstdlib>

namespace {

using namespace troupe::actors;

void must(bool held) {
  if (!held) std::abort();
}

template <class T>
bool holds(const troupe::result<T>& outcome) {
  if (!outcome) must(outcome.error().message.starts_with("fuzz: "));
  return outcome.has_value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span image(reinterpret_cast<const std::byte*>(data), size);
  const auto header = parse_gguf(image, "fuzz");
  if (!holds(header)) return 0;
  std::uint64_t end = header->data_offset;
  for (const GgufTensor& tensor : header->tensors) {
    must(header->data_offset + tensor.offset >= end);
    end = header->data_offset + tensor.offset + tensor.bytes;
    must(end <= size);
  }
  const auto file = GgufFile::of_image(image, "fuzz");
  must(file.has_value());
  if (const auto files = gguf_tokenizer(*file); holds(files))
    (void)holds(Tokenizer::from_json(files->tokenizer_json, files->config_json, "fuzz: tokenizer"));
  const auto config = gguf_config(*file);
  if (!holds(config)) return 0;
  const auto weights = gguf_weights(*file, *config);
  if (holds(weights)) must(weights->element_count() == config->parameter_count());
  return 0;
}
