#pragma once

// NCCL and the CUDA runtime as they are linked into this program (option TROUPE_CUDA), for those
// who want the linker's word in place of the loader's.
//
// **Threads:** any.

#include "reshard/nccl/cuda_runtime.hpp"
#include "reshard/nccl/nccl_library.hpp"

namespace troupe::reshard::nccl {

/// kUnsupported when the version is out of range.
result<std::shared_ptr<const NcclLibrary>> linked_nccl();
std::shared_ptr<const CudaLibrary> linked_cuda();

}  // namespace troupe::reshard::nccl
