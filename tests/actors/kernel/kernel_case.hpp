#pragma once

// Shared by the kernel tests: random rows, the paths of this machine, comparison of bits.
// **Threads:** one test, one thread.

#include "actors/kernel/aligned_buffer.hpp"
#include "actors/kernel/kernel_table.hpp"
#include "runtime/base/rng.hpp"

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

inline std::vector<KernelPath> available_paths() {
  std::vector<KernelPath> paths;
  for (const KernelPath path : {KernelPath::kPortable, KernelPath::kAvx2, KernelPath::kAvx512})
    if (kernel_path_available(path)) paths.push_back(path);
  return paths;
}

/// [rows, columns] of normals with row stride padded(columns); the padding is zero.
inline AlignedBuffer random_rows(Rng& rng, std::int64_t rows, std::int64_t columns) {
  AlignedBuffer buffer(rows * padded(columns));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      buffer[r * padded(columns) + c] = static_cast<float>(rng.normal());
  return buffer;
}

inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

}  // namespace troupe::actors
