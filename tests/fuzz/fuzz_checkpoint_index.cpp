// No bytes crash the checkpoint index decoder, and what it accepts is consistent: it encodes, and
// comes back equal.

#include "runtime/checkpoint/index_codec.hpp"
#include "tests/fuzz/frame_patch.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe::runtime;
  const std::span<const std::byte> frame(reinterpret_cast<const std::byte*>(data), size);
  (void)decode_index(frame);
  const auto index = decode_index(with_true_size(frame), false);
  if (!index) return 0;
  const auto again = encode_index(*index);
  if (!again) std::abort();
  const auto back = decode_index(*again);
  if (!back || *back != *index) std::abort();
  return 0;
}
