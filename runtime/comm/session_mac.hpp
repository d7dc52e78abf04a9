#pragma once

// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF"):
// the MAC over messages of the data plane, under the session key of the job.
//
// It is made for short inputs: 0.1 µs for a header, against 0.5 µs and more for an HMAC.
// **Threads:** pure functions.

#include <array>
#include <cstddef>
#include <span>

namespace troupe::runtime {

using SessionMac = std::array<std::byte, 16>;

/// MAC of `head` followed by `tail`.
SessionMac session_mac(std::span<const std::byte, 16> key, std::span<const std::byte> head,
                       std::span<const std::byte> tail = {});

/// Compares in a time that does not depend on where they differ.
bool same_mac(std::span<const std::byte, 16> a, std::span<const std::byte, 16> b);

}  // namespace troupe::runtime
