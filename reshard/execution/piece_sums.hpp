#pragma once

// What both ends of a transfer compute of a piece and compare.
//
// **Threads:** pure functions.

#include "reshard/execution/messages.hpp"
#include "reshard/execution/piece.hpp"
#include "reshard/execution/publication_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::reshard {

/// Travels as it lies.
struct PieceSums {
  std::uint64_t tensor = 0;  ///< part of the tensor's checksum; see checksum.hpp
  std::uint32_t crc = 0;     ///< crc32c of the bytes, row-major
  std::uint32_t known = 0;   ///< 1, or 0 for an answer that comes before the sums do
  bool operator==(const PieceSums&) const = default;
};

/// Both sums in one walk over the memory. `checks`: which of them; the other stays 0.
PieceSums sums_of(const PublicationPlan& plan, const OpPiece& piece,
                  std::span<const std::span<const std::byte>> memory, const Checks& checks = {});

/// The tensor's sum alone of bytes of a piece from `first_byte` on; both ends may cut elements.
/// Copies them to `to` in the same walk, around the caches, unless that is null.
std::uint64_t sum_bytes_of(const Op& op, const TensorInfo& tensor, const OpPiece& piece,
                           std::int64_t first_byte, std::span<const std::byte> bytes,
                           std::byte* to = nullptr);

/// The same of `dense`, which it copies in the same walk into the piece's place in `buffer`.
PieceSums scatter_and_sum(const PublicationPlan& plan, const OpPiece& piece,
                          std::span<const std::byte> dense, std::span<std::byte> buffer,
                          const Region& region, const Checks& checks);

/// The tensor's sum alone of all of an operation's box, read at `data` with rows `data_stride`
/// elements apart and copied to `to` in the same walk.
std::uint64_t copy_box_and_sum(const Op& op, const TensorInfo& tensor, std::byte* to,
                               std::int64_t to_stride, const std::byte* data,
                               std::int64_t data_stride);

}  // namespace troupe::reshard
