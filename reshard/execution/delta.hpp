#pragma once

// What changed in a piece between two versions, to the byte.
//
// Encoded as runs: u32 bytes that stay, u32 bytes that follow, those bytes; again until the piece
// is covered. Runs that are closer than a header are joined. Applying is overwriting, so it may be
// repeated.
// **Threads:** pure functions.
// **Invariants:** apply(base, encode(now, base)) = now, bit for bit; a delta that does not cover
// its piece exactly, or reaches outside of it, is refused.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::reshard {

using Spans = std::span<const std::span<const std::byte>>;

/// Both have the same number of bytes in all, at most 1 GiB.
std::vector<std::byte> encode_delta(Spans now, Spans base);
/// The size of `encode_delta`, or −1 when the piece is better sent whole: it is no smaller, or
/// `base` has nothing.
std::int64_t delta_bytes(Spans now, Spans base);

/// A run of bytes that changed; `at` counts from the start of the piece.
struct DeltaRun {
  std::int64_t at = 0;
  std::span<const std::byte> bytes;
};
/// The runs of a delta of a piece of `piece_bytes`; kCorrupt when it is none.
result<std::vector<DeltaRun>> decode_delta(std::span<const std::byte> delta,
                                           std::int64_t piece_bytes);

}  // namespace troupe::reshard
