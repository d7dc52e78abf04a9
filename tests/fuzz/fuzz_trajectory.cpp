// No bytes crash the trajectory decoder, and what it accepts can be sent on unchanged and resumed.

#include "actors/pacing/trajectory_codec.hpp"
#include "tests/fuzz/frame_patch.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe::actors;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const TrajectoryLimits limits{.tokens_max = 1 << 16, .checksums = false};
  (void)decode_trajectories(bytes);
  const auto all = decode_trajectories(troupe::runtime::with_true_size(bytes), limits);
  if (!all) return 0;
  for (const Trajectory& one : *all) {
    const auto request = one.resume_request();
    if (request && !request->sampling.check()) std::abort();
    (void)one.span();
  }
  const auto again = encode_trajectories(*all, limits);
  if (!again) std::abort();
  const auto back = decode_trajectories(*again, limits);
  if (!back || *back != *all) std::abort();
  return 0;
}
