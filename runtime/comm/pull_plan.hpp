#pragma once

// How a pull is cut into chunks, each answered by one message; a request asks for several.
//
// **Threads:** pure.
// **Invariants:** the chunks of a plan cover every byte of the pull once, in order; no chunk is
// larger than the options say; only chunks up to `scatter_bytes_max` go to targets that do not lie
// side by side, unless scattering is free.

#include "runtime/comm/transport.hpp"
#include "runtime/comm/transport_wire.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::runtime {

struct ChunkPlan {
  std::vector<RequestPart> parts;
  std::vector<std::span<std::byte>> targets;  ///< neighbours joined; empty when there is no payload
  std::int64_t bytes = 0;
};

struct PlanOptions {
  std::int64_t chunk_bytes = 0;
  std::int64_t scatter_bytes_max = 0;  ///< of a chunk with several targets
  std::int64_t scatter_part_max = 0;   ///< of a part that shares such a chunk
};

/// `parts` may be empty or hold no bytes; rows without payload still ask, so that the owner can say
/// that it does not hold them.
std::vector<ChunkPlan> plan_chunks(std::span<const PullPart> parts, const PlanOptions& options);

/// Copies `bytes` into the targets, in order; they have as much room.
void scatter_bytes(std::span<const std::byte> bytes, std::span<const std::span<std::byte>> targets);

}  // namespace troupe::runtime
