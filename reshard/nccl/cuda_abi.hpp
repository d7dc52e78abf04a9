#pragma once

// The part of the CUDA runtime's binary interface that Troupe calls; see nccl_abi.hpp for why.
//
// **Threads:** value types.

#include <cstddef>

namespace troupe::reshard::nccl {

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaNotReady = 600;
inline constexpr int kCudaCopyDefault = 4;  ///< direction from the addresses
inline constexpr unsigned int kCudaStreamNonBlocking = 1;
inline constexpr unsigned int kCudaEventDisableTiming = 2;

/// `stream` and `event` are cudaStream_t and cudaEvent_t, the first result is cudaError_t.
struct CudaCalls {
  int (*runtime_get_version)(int* version) = nullptr;
  int (*get_device_count)(int* count) = nullptr;
  int (*set_device)(int device) = nullptr;
  int (*device_get_pci_bus_id)(char* text, int bytes, int device) = nullptr;
  int (*malloc_device)(void** data, std::size_t bytes) = nullptr;
  int (*free_device)(void* data) = nullptr;
  int (*malloc_host)(void** data, std::size_t bytes) = nullptr;
  int (*free_host)(void* data) = nullptr;
  int (*copy)(void* target, const void* source, std::size_t bytes, int kind,
              void* stream) = nullptr;
  int (*copy_2d)(void* target, std::size_t target_pitch, const void* source,
                 std::size_t source_pitch, std::size_t width, std::size_t height, int kind,
                 void* stream) = nullptr;
  int (*stream_create)(void** stream, unsigned int flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*event_create)(void** event, unsigned int flags) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  const char* (*get_error_string)(int code) = nullptr;
};

}  // namespace troupe::reshard::nccl
