// No bytes crash the envelope decoder, and what it accepts can be sent on unchanged.

#include "runtime/batch/envelope_codec.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe::runtime;
  const std::span<const std::byte> frame(reinterpret_cast<const std::byte*>(data), size);
  const auto envelope = decode_envelope(frame, false);
  if (!envelope) return 0;
  (void)envelope->deadline(troupe::TimePoint{});
  const auto again = encode_envelope(*envelope);
  if (!again) return 0;  // near the size bound the canonical form may be the larger one
  const auto back = decode_envelope(*again, false);
  if (!back || *back != *envelope) std::abort();
  return 0;
}
