#pragma once

// What travels with each message: whose it is, of which attempt, and the sums of its bytes.
//
// NCCL matches by order alone; the seal makes sure that what arrived is what the plan meant, of
// this publication and this membership. It is a head of 72 bytes and one sum per cut.
// **Threads:** pure functions.
// **Invariants:** a seal has `seal_bytes(message)` bytes at both ends.

#include "reshard/execution/messages.hpp"
#include "reshard/nccl/rounds.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::reshard::nccl {

/// What both ends know before a byte moves.
struct SealHead {
  std::uint64_t magic = 0x5452'4f55'5045'5331;
  std::uint64_t membership = 0;
  std::uint64_t epoch = 0;
  std::uint64_t digest = 0;
  std::int32_t round = 0;
  std::int32_t source = 0;
  std::int32_t target = 0;
  std::uint32_t cuts = 0;
  std::int64_t bytes = 0;
  std::uint32_t checks = 0;  ///< which sums were made
  std::uint32_t crc = 0;     ///< crc32c of the bytes
  std::uint64_t reserved = 0;
  bool operator==(const SealHead&) const = default;
};
static_assert(sizeof(SealHead) == 72);

std::int64_t seal_bytes(const Message& message);

struct Seal {
  SealHead head;
  std::vector<std::uint64_t> sums;  ///< of each cut, see execution/checksum.hpp
};

/// The seal of `bytes`, which are the message packed densely; without checks they are not read.
Seal make_seal(const PublicationPlan& plan, const SealHead& head, const Message& message,
               const Checks& checks, std::span<const std::byte> bytes);
void write_seal(const Seal& seal, std::span<std::byte> into);
Seal read_seal(std::span<const std::byte> from);

/// kConflict: it is of another attempt, round or pair. kCorrupt: the crc differs.
result<void> compare_seals(const Seal& came, const Seal& wanted, const std::string& place);

}  // namespace troupe::reshard::nccl
