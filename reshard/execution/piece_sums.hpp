#pragma once

// What both ends of a transfer compute of a piece and compare.
//
// **Threads:** pure functions.

#include "reshard/execution/messages.hpp"
#include "reshard/execution/weight_port.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::reshard {

/// Travels as it lies.
struct PieceSums {
  std::uint64_t tensor = 0;  ///< part of the tensor's checksum; see checksum.hpp
  std::uint32_t crc = 0;     ///< crc32c of the bytes, row-major
  std::uint32_t zero = 0;
  bool operator==(const PieceSums&) const = default;
};

/// Both sums in one walk over the memory. `checks`: which of them; the other stays 0.
PieceSums sums_of(const PublicationPlan& plan, const OpPiece& piece,
                  std::span<const std::span<const std::byte>> memory, const Checks& checks = {});

}  // namespace troupe::reshard
