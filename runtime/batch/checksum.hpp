#pragma once

// CRC-32C (Castagnoli), the checksum of every section that Troupe writes to disk or wire.
//
// Polynomial 0x1EDC6F41 reflected, as in RFC 3720 appendix B.4 and as `crc32` of SSE4.2 computes.
// **Threads:** pure.
// **Cost:** 8 bytes an instruction with SSE4.2, looked for at run time; else tables of 8 × 256.

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::runtime {

/// Checksum of `bytes`; pass the checksum of what came before to continue it.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The same by table, whatever the machine can do; the reference of the tests.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace troupe::runtime
