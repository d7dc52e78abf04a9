#pragma once

// Which instruction set the kernels use. All paths give the same bits for the same input.
//
// **Threads:** pure functions.

#include <string_view>

namespace troupe::actors {

enum class KernelPath {
  kAuto,      ///< the fastest this machine can run
  kPortable,  ///< plain C++ with std::fma
  kAvx2,      ///< AVX2 + FMA
  kAvx512,    ///< AVX-512 F + DQ
};

/// `auto`, `portable`, `avx2`, `avx512`.
std::string_view kernel_path_name(KernelPath path);

/// Whether this build holds the path and this machine can run it.
bool kernel_path_available(KernelPath path);

/// `kAuto` resolved to the fastest available path; others unchanged.
KernelPath resolve_kernel_path(KernelPath path);

}  // namespace troupe::actors
