#pragma once

// Trajectories as bytes: what migrates between ranks, and what a checkpoint keeps.
//
// One frame (runtime/batch/frame.hpp) around one Cap'n Proto message, schemas/trajectory.capnp.
// Versions are stored as runs.
// **Threads:** pure functions.
// **Invariants:** what decodes passes `Trajectory::check` and encodes again to an equal value;
// decoding never throws, allocates no more than a small multiple of the bytes it was given, and
// its errors are kCorrupt naming field and values.

#include "actors/pacing/trajectory.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace troupe::actors {

struct TrajectoryLimits {
  std::size_t frame_bytes_max = std::size_t{1} << 30;
  std::size_t trajectories_max = std::size_t{1} << 20;
  std::size_t tokens_max = std::size_t{1} << 22;  ///< of one, prompt included
  std::size_t environment_bytes_max = std::size_t{16} << 20;
  std::size_t stops_max = 4096;  ///< stop ids; stop strings
  bool checksums = true;
};

/// kInvalidArgument when one fails `check`; kResourceExhausted when a limit is passed.
result<std::vector<std::byte>> encode_trajectories(std::span<const Trajectory> trajectories,
                                                   const TrajectoryLimits& limits = {});
result<std::vector<Trajectory>> decode_trajectories(std::span<const std::byte> frame,
                                                    const TrajectoryLimits& limits = {});

}  // namespace troupe::actors
