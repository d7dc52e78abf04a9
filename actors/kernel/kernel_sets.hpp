#pragma once

// The tables that this build holds; callers use `kernel_table`, which checks the machine first.
//
// **Threads:** pure functions.

#include "actors/kernel/kernel_table.hpp"

namespace troupe::actors {

const KernelTable& portable_kernels();
#if defined(__x86_64__)
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
#endif

}  // namespace troupe::actors
