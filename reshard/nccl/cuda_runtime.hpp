#pragma once

// The CUDA runtime as it was found on this machine, and one of its devices: memory, streams,
// events, copies.
//
// Ownership: buffers, streams and events free themselves; the device outlives them.
// **Threads:** any; each call makes its device the current one of its thread first.
// **Invariants:** nothing blocks but allocation; copies are in stream order.

#include "reshard/nccl/cuda_abi.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::reshard::nccl {

class CudaLibrary {
 public:
  /// kNotFound: no such library. kUnsupported: it lacks a symbol.
  static result<std::shared_ptr<const CudaLibrary>> open(const std::vector<std::string>& names = {
                                                             "libcudart.so.13", "libcudart.so.12",
                                                             "libcudart.so"});
  static std::shared_ptr<const CudaLibrary> from(const CudaCalls& calls, std::string name);

  const CudaCalls& calls() const { return calls_; }
  const std::string& name() const { return name_; }
  /// kUnsupported with the runtime's words when there is no device or no driver.
  result<int> device_count() const;
  result<void> check(int code, const char* doing) const;

 private:
  CudaLibrary(const CudaCalls& calls, std::string name) : calls_(calls), name_(std::move(name)) {}
  CudaCalls calls_;
  std::string name_;
};

/// Memory of the device, or pinned memory of the host.
class CudaBuffer {
 public:
  CudaBuffer(std::shared_ptr<const CudaLibrary> library, int device, std::span<std::byte> bytes,
             bool on_host)
      : library_(std::move(library)), device_(device), bytes_(bytes), on_host_(on_host) {}
  ~CudaBuffer();
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::shared_ptr<const CudaLibrary> library_;
  int device_;
  std::span<std::byte> bytes_;
  bool on_host_;
};

/// A stream or an event.
class CudaHandle {
 public:
  CudaHandle(std::shared_ptr<const CudaLibrary> library, int device, void* handle,
             int (*destroy)(void*))
      : library_(std::move(library)), device_(device), handle_(handle), destroy_(destroy) {}
  ~CudaHandle();
  CudaHandle(const CudaHandle&) = delete;
  CudaHandle& operator=(const CudaHandle&) = delete;
  void* get() const { return handle_; }

 private:
  std::shared_ptr<const CudaLibrary> library_;
  int device_;
  void* handle_;
  int (*destroy_)(void*);
};

/// `rows` rows of `row_bytes` each, `stride` bytes apart.
struct Strided {
  std::byte* data = nullptr;
  std::int64_t stride = 0;
};

class CudaDevice {
 public:
  /// kInvalidArgument when the machine has no such device.
  static result<std::unique_ptr<CudaDevice>> open(std::shared_ptr<const CudaLibrary> library,
                                                  int device);
  const std::shared_ptr<const CudaLibrary>& library() const { return library_; }
  /// The bus id, which no other device of this host has.
  const std::string& bus_id() const { return bus_id_; }
  result<void> use() const;

  result<std::unique_ptr<CudaBuffer>> allocate(std::int64_t bytes) const;
  result<std::unique_ptr<CudaBuffer>> allocate_pinned(std::int64_t bytes) const;
  result<std::unique_ptr<CudaHandle>> stream() const;
  result<std::unique_ptr<CudaHandle>> event() const;
  /// Between any two places of device and pinned memory.
  result<void> copy(void* target, const void* source, std::int64_t bytes,
                    const CudaHandle& stream) const;
  result<void> copy_rows(const Strided& target, const Strided& source, std::int64_t rows,
                         std::int64_t row_bytes, const CudaHandle& stream) const;
  result<void> record(const CudaHandle& event, const CudaHandle& stream) const;
  /// Whether everything before the event's record is done; an error of the device otherwise.
  result<bool> done(const CudaHandle& event) const;

 private:
  CudaDevice(std::shared_ptr<const CudaLibrary> library, int device, std::string bus_id)
      : library_(std::move(library)), device_(device), bus_id_(std::move(bus_id)) {}
  std::shared_ptr<const CudaLibrary> library_;
  int device_;
  std::string bus_id_;
};

}  // namespace troupe::reshard::nccl
