#pragma once

// Lets a fuzzer past the size field of a frame, which it would have to guess.
//
// **Threads:** pure.

#include "runtime/batch/frame.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace troupe::runtime {

/// The same bytes with the prefix claiming their true number (its last 8 bytes).
inline std::vector<std::byte> with_true_size(std::span<const std::byte> frame) {
  std::vector<std::byte> patched(frame.begin(), frame.end());
  const std::uint64_t size = patched.size();
  if (patched.size() >= static_cast<std::size_t>(kFramePrefixBytes))
    std::memcpy(patched.data() + kFramePrefixBytes - sizeof(size), &size, sizeof(size));
  return patched;
}

}  // namespace troupe::runtime
