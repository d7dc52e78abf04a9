#pragma once

// The differences between LibTorch 1.13 (Debian) and 2.x that our sources meet, in one place.
//
// Only for sources that include LibTorch anyway. **Threads:** declarations only.

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#if __has_include(<c10/util/Optional.h>)
#include <c10/util/Optional.h>
#endif

#include <cstdint>
#include <optional>

namespace troupe::actors::torch_compat {

/// What torch::autograd::Function takes for an argument that may be absent (an undefined tensor is
/// refused): an own class in 1.13, std::optional or an alias of it in 2.x.
#if __has_include(<c10/util/Optional.h>)
using MaybeTensor = c10::optional<at::Tensor>;
#else
using MaybeTensor = std::optional<at::Tensor>;
#endif

/// Absent when `tensor` is undefined.
inline MaybeTensor maybe(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : MaybeTensor();
}

template <class Class, class Total>
Total total_argument(void (Class::*)(void*, std::int64_t, Total, Total, c10::Device));

/// Type of the totals that MemoryReportingInfoBase::reportMemoryUsage receives: signed in 1.13,
/// unsigned in later 2.x; taken from the declaration itself.
using TotalBytes = decltype(total_argument(&c10::MemoryReportingInfoBase::reportMemoryUsage));

}  // namespace troupe::actors::torch_compat
