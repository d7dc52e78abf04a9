#include "actors/kernel/kernel_table.hpp"

#include "actors/kernel/kernel_sets.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {

std::string_view kernel_path_name(KernelPath path) {
  switch (path) {
    case KernelPath::kAuto:
      return "auto";
    case KernelPath::kPortable:
      return "portable";
    case KernelPath::kAvx2:
      return "avx2";
    case KernelPath::kAvx512:
      return "avx512";
  }
  return "unknown";
}

bool kernel_path_available(KernelPath path) {
  switch (path) {
    case KernelPath::kAuto:
    case KernelPath::kPortable:
      return true;
#if defined(__x86_64__)
    case KernelPath::kAvx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case KernelPath::kAvx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
             kernel_path_available(KernelPath::kAvx2);
#else
    case KernelPath::kAvx2:
    case KernelPath::kAvx512:
      return false;
#endif
  }
  return false;
}

KernelPath resolve_kernel_path(KernelPath path) {
  if (path != KernelPath::kAuto) return path;
  for (const KernelPath candidate : {KernelPath::kAvx512, KernelPath::kAvx2})
    if (kernel_path_available(candidate)) return candidate;
  return KernelPath::kPortable;
}

const KernelTable& kernel_table(KernelPath path) {
  const KernelPath chosen = resolve_kernel_path(path);
  TROUPE_CHECK(kernel_path_available(chosen), "kernel: path {} is not available here",
               kernel_path_name(chosen));
#if defined(__x86_64__)
  if (chosen == KernelPath::kAvx512) return avx512_kernels();
  if (chosen == KernelPath::kAvx2) return avx2_kernels();
#endif
  return portable_kernels();
}

}  // namespace troupe::actors
