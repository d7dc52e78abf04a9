// Real code against nccl.h and cudart: every call goes through the headers' own types, so that the
// compiler checks what the loader cannot.

#include "reshard/nccl/linked_libraries.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>

namespace troupe::reshard::nccl {
namespace {

Code code_of(ncclResult_t result) { return static_cast<Code>(result); }
ncclComm_t theirs(Comm* comm) { return reinterpret_cast<ncclComm_t>(comm); }
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

Code init(Comm** comm, int ranks, UniqueId id, int rank, Config* config) {
  ncclUniqueId their_id;
  static_assert(sizeof their_id == sizeof id);
  std::memcpy(&their_id, &id, sizeof id);
  ncclConfig_t their_config = NCCL_CONFIG_INITIALIZER;
  their_config.blocking = config->blocking;
  ncclComm_t made = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&made, ranks, their_id, rank, &their_config);
  *comm = reinterpret_cast<Comm*>(made);
  return code_of(result);
}

Code async_error(Comm* comm, Code* code) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(theirs(comm), &state);
  *code = code_of(state);
  return code_of(result);
}

Calls linked_calls() {
  Calls calls;
  calls.get_version = [](int* version) { return code_of(ncclGetVersion(version)); };
  calls.get_unique_id = [](UniqueId* id) {
    return code_of(ncclGetUniqueId(reinterpret_cast<ncclUniqueId*>(id)));
  };
  calls.comm_init_rank_config = init;
  calls.comm_get_async_error = async_error;
  calls.comm_abort = [](Comm* comm) { return code_of(ncclCommAbort(theirs(comm))); };
  calls.get_error_string = [](Code code) {
    return ncclGetErrorString(static_cast<ncclResult_t>(code));
  };
  calls.get_last_error = [](Comm* comm) { return ncclGetLastError(theirs(comm)); };
  calls.group_start = [] { return code_of(ncclGroupStart()); };
  calls.group_end = [] { return code_of(ncclGroupEnd()); };
  calls.send = [](const void* data, std::size_t count, int type, int peer, Comm* comm,
                  Stream stream) {
    return code_of(ncclSend(data, count, static_cast<ncclDataType_t>(type), peer, theirs(comm),
                            stream_of(stream)));
  };
  calls.receive = [](void* data, std::size_t count, int type, int peer, Comm* comm, Stream stream) {
    return code_of(ncclRecv(data, count, static_cast<ncclDataType_t>(type), peer, theirs(comm),
                            stream_of(stream)));
  };
  return calls;
}

CudaCalls linked_cuda_calls() {
  CudaCalls calls;
  calls.runtime_get_version = [](int* version) -> int { return cudaRuntimeGetVersion(version); };
  calls.get_device_count = [](int* count) -> int { return cudaGetDeviceCount(count); };
  calls.set_device = [](int device) -> int { return cudaSetDevice(device); };
  calls.device_get_pci_bus_id = [](char* text, int bytes, int device) -> int {
    return cudaDeviceGetPCIBusId(text, bytes, device);
  };
  calls.malloc_device = [](void** data, std::size_t bytes) -> int {
    return cudaMalloc(data, bytes);
  };
  calls.free_device = [](void* data) -> int { return cudaFree(data); };
  calls.malloc_host = [](void** data, std::size_t bytes) -> int {
    return cudaMallocHost(data, bytes);
  };
  calls.free_host = [](void* data) -> int { return cudaFreeHost(data); };
  calls.copy = [](void* target, const void* source, std::size_t bytes, int kind,
                  void* stream) -> int {
    return cudaMemcpyAsync(target, source, bytes, static_cast<cudaMemcpyKind>(kind),
                           stream_of(stream));
  };
  calls.copy_2d = [](void* target, std::size_t target_pitch, const void* source,
                     std::size_t source_pitch, std::size_t width, std::size_t height, int kind,
                     void* stream) -> int {
    return cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, width, height,
                             static_cast<cudaMemcpyKind>(kind), stream_of(stream));
  };
  calls.stream_create = [](void** stream, unsigned int flags) -> int {
    return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), flags);
  };
  calls.stream_destroy = [](void* stream) -> int { return cudaStreamDestroy(stream_of(stream)); };
  calls.event_create = [](void** event, unsigned int flags) -> int {
    return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), flags);
  };
  calls.event_record = [](void* event, void* stream) -> int {
    return cudaEventRecord(event_of(event), stream_of(stream));
  };
  calls.event_query = [](void* event) -> int { return cudaEventQuery(event_of(event)); };
  calls.event_destroy = [](void* event) -> int { return cudaEventDestroy(event_of(event)); };
  calls.get_error_string = [](int code) {
    return cudaGetErrorString(static_cast<cudaError_t>(code));
  };
  return calls;
}

}  // namespace

result<std::shared_ptr<const NcclLibrary>> linked_nccl() {
  return NcclLibrary::from(linked_calls(), "nccl (linked)");
}

std::shared_ptr<const CudaLibrary> linked_cuda() {
  return CudaLibrary::from(linked_cuda_calls(), "cuda runtime (linked)");
}

}  // namespace troupe::reshard::nccl
