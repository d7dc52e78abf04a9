#include "reshard/nccl/cuda_runtime.hpp"

#include "reshard/nccl/shared_library.hpp"

#include <array>
#include <utility>

namespace troupe::reshard::nccl {

result<std::shared_ptr<const CudaLibrary>> CudaLibrary::open(
    const std::vector<std::string>& names) {
  TROUPE_TRY(const SharedLibrary library, SharedLibrary::open("cuda runtime", names));
  CudaCalls calls;
  TROUPE_TRY_VOID(library.bind(calls.runtime_get_version, "cudaRuntimeGetVersion"));
  TROUPE_TRY_VOID(library.bind(calls.get_device_count, "cudaGetDeviceCount"));
  TROUPE_TRY_VOID(library.bind(calls.set_device, "cudaSetDevice"));
  TROUPE_TRY_VOID(library.bind(calls.device_get_pci_bus_id, "cudaDeviceGetPCIBusId"));
  TROUPE_TRY_VOID(library.bind(calls.malloc_device, "cudaMalloc"));
  TROUPE_TRY_VOID(library.bind(calls.free_device, "cudaFree"));
  TROUPE_TRY_VOID(library.bind(calls.malloc_host, "cudaMallocHost"));
  TROUPE_TRY_VOID(library.bind(calls.free_host, "cudaFreeHost"));
  TROUPE_TRY_VOID(library.bind(calls.copy, "cudaMemcpyAsync"));
  TROUPE_TRY_VOID(library.bind(calls.copy_2d, "cudaMemcpy2DAsync"));
  TROUPE_TRY_VOID(library.bind(calls.stream_create, "cudaStreamCreateWithFlags"));
  TROUPE_TRY_VOID(library.bind(calls.stream_destroy, "cudaStreamDestroy"));
  TROUPE_TRY_VOID(library.bind(calls.event_create, "cudaEventCreateWithFlags"));
  TROUPE_TRY_VOID(library.bind(calls.event_record, "cudaEventRecord"));
  TROUPE_TRY_VOID(library.bind(calls.event_query, "cudaEventQuery"));
  TROUPE_TRY_VOID(library.bind(calls.event_destroy, "cudaEventDestroy"));
  TROUPE_TRY_VOID(library.bind(calls.get_error_string, "cudaGetErrorString"));
  return from(calls, library.name());
}

std::shared_ptr<const CudaLibrary> CudaLibrary::from(const CudaCalls& calls, std::string name) {
  return std::shared_ptr<const CudaLibrary>(new CudaLibrary(calls, std::move(name)));
}

result<void> CudaLibrary::check(int code, const char* doing) const {
  if (code == kCudaSuccess) return {};
  const char* said = calls_.get_error_string(code);
  return fail(ErrorCode::kIo, "{}: {}: {} (cuda {})", name_, doing, said == nullptr ? "?" : said,
              code);
}

result<int> CudaLibrary::device_count() const {
  int count = 0;
  if (auto counted = check(calls_.get_device_count(&count), "counting devices"); !counted)
    return fail(std::move(counted).error().wrap(ErrorCode::kUnsupported,
                                                fmt::format("{}: no device", name_)));
  if (count == 0) return fail(ErrorCode::kUnsupported, "{}: no device", name_);
  return count;
}

CudaBuffer::~CudaBuffer() {
  library_->calls().set_device(device_);
  if (on_host_)
    library_->calls().free_host(bytes_.data());
  else
    library_->calls().free_device(bytes_.data());
}

CudaHandle::~CudaHandle() {
  library_->calls().set_device(device_);
  destroy_(handle_);
}

result<std::unique_ptr<CudaDevice>> CudaDevice::open(std::shared_ptr<const CudaLibrary> library,
                                                     int device) {
  TROUPE_TRY(const int count, library->device_count());
  if (device < 0 || device >= count)
    return fail(ErrorCode::kInvalidArgument, "{}: device {} of {}", library->name(), device, count);
  std::array<char, 64> text{};
  TROUPE_TRY_VOID(library->check(
      library->calls().device_get_pci_bus_id(text.data(), static_cast<int>(text.size()), device),
      "reading the bus id"));
  text.back() = '\0';
  return std::unique_ptr<CudaDevice>(
      new CudaDevice(std::move(library), device, std::string(text.data())));
}

result<void> CudaDevice::use() const {
  return library_->check(library_->calls().set_device(device_), "choosing the device");
}

result<std::unique_ptr<CudaBuffer>> CudaDevice::allocate(std::int64_t bytes) const {
  TROUPE_TRY_VOID(use());
  void* data = nullptr;
  const auto size = static_cast<std::size_t>(bytes);
  if (auto made = library_->check(library_->calls().malloc_device(&data, size), "allocating");
      !made)
    return fail(std::move(made).error().wrap(
        ErrorCode::kResourceExhausted, fmt::format("gpu {}: {} bytes of memory", bus_id_, bytes)));
  return std::make_unique<CudaBuffer>(library_, device_,
                                      std::span(static_cast<std::byte*>(data), size), false);
}

result<std::unique_ptr<CudaBuffer>> CudaDevice::allocate_pinned(std::int64_t bytes) const {
  TROUPE_TRY_VOID(use());
  void* data = nullptr;
  const auto size = static_cast<std::size_t>(bytes);
  if (auto made = library_->check(library_->calls().malloc_host(&data, size), "allocating"); !made)
    return fail(std::move(made).error().wrap(ErrorCode::kResourceExhausted,
                                             fmt::format("{} bytes of pinned memory", bytes)));
  return std::make_unique<CudaBuffer>(library_, device_,
                                      std::span(static_cast<std::byte*>(data), size), true);
}

result<std::unique_ptr<CudaHandle>> CudaDevice::stream() const {
  TROUPE_TRY_VOID(use());
  void* handle = nullptr;
  TROUPE_TRY_VOID(library_->check(library_->calls().stream_create(&handle, kCudaStreamNonBlocking),
                                  "making a stream"));
  return std::make_unique<CudaHandle>(library_, device_, handle, library_->calls().stream_destroy);
}

result<std::unique_ptr<CudaHandle>> CudaDevice::event() const {
  TROUPE_TRY_VOID(use());
  void* handle = nullptr;
  TROUPE_TRY_VOID(library_->check(library_->calls().event_create(&handle, kCudaEventDisableTiming),
                                  "making an event"));
  return std::make_unique<CudaHandle>(library_, device_, handle, library_->calls().event_destroy);
}

result<void> CudaDevice::copy(void* target, const void* source, std::int64_t bytes,
                              const CudaHandle& stream) const {
  TROUPE_TRY_VOID(use());
  return library_->check(library_->calls().copy(target, source, static_cast<std::size_t>(bytes),
                                                kCudaCopyDefault, stream.get()),
                         "copying");
}

result<void> CudaDevice::copy_rows(const Strided& target, const Strided& source, std::int64_t rows,
                                   std::int64_t row_bytes, const CudaHandle& stream) const {
  const bool dense = target.stride == row_bytes && source.stride == row_bytes;
  if (rows == 1 || dense) return copy(target.data, source.data, rows * row_bytes, stream);
  TROUPE_TRY_VOID(use());
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  return library_->check(
      library_->calls().copy_2d(target.data, size(target.stride), source.data, size(source.stride),
                                size(row_bytes), size(rows), kCudaCopyDefault, stream.get()),
      "copying rows");
}

result<void> CudaDevice::record(const CudaHandle& event, const CudaHandle& stream) const {
  TROUPE_TRY_VOID(use());
  return library_->check(library_->calls().event_record(event.get(), stream.get()),
                         "recording an event");
}

result<bool> CudaDevice::done(const CudaHandle& event) const {
  TROUPE_TRY_VOID(use());
  const int code = library_->calls().event_query(event.get());
  if (code == kCudaNotReady) return false;
  TROUPE_TRY_VOID(library_->check(code, "asking for an event"));
  return true;
}

}  // namespace troupe::reshard::nccl
