// Holds our statement of NCCL's and CUDA's binary interfaces against their own headers, where those
// are installed. Nothing of this file is linked.

#include "reshard/nccl/cuda_abi.hpp"
#include "reshard/nccl/nccl_abi.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <type_traits>

namespace troupe::reshard::nccl {
namespace {

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(alignof(UniqueId) == alignof(ncclUniqueId));
static_assert(std::is_trivially_copyable_v<UniqueId> && std::is_standard_layout_v<UniqueId>);
static_assert(sizeof(Code) == sizeof(ncclResult_t) && sizeof(int) == sizeof(ncclDataType_t));
static_assert(static_cast<int>(Code::kSuccess) == ncclSuccess);
static_assert(static_cast<int>(Code::kUnhandledCudaError) == ncclUnhandledCudaError);
static_assert(static_cast<int>(Code::kSystemError) == ncclSystemError);
static_assert(static_cast<int>(Code::kInternalError) == ncclInternalError);
static_assert(static_cast<int>(Code::kInvalidArgument) == ncclInvalidArgument);
static_assert(static_cast<int>(Code::kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(Code::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(Code::kInProgress) == ncclInProgress);
static_assert(kUint8 == ncclUint8 && kUndefined == NCCL_CONFIG_UNDEF_INT);

// Field by field; later headers have more of them, behind ours.
static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
static_assert(offsetof(Config, traffic_class) == offsetof(ncclConfig_t, trafficClass));
static_assert(offsetof(Config, comm_name) == offsetof(ncclConfig_t, commName));
static_assert(offsetof(Config, collnet_enable) == offsetof(ncclConfig_t, collnetEnable));
static_assert(offsetof(Config, cta_policy) == offsetof(ncclConfig_t, CTAPolicy));
static_assert(offsetof(Config, shrink_share) == offsetof(ncclConfig_t, shrinkShare));
static_assert(offsetof(Config, nvls_ctas) == offsetof(ncclConfig_t, nvlsCTAs));
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
static_assert(offsetof(Config, channels_per_net_peer) ==
              offsetof(ncclConfig_t, nChannelsPerNetPeer));
static_assert(offsetof(Config, nvlink_centric_sched) == offsetof(ncclConfig_t, nvlinkCentricSched));
#endif
static_assert(config_bytes(NCCL_VERSION_CODE) <= sizeof(ncclConfig_t));
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0)
static_assert(config_bytes(NCCL_VERSION_CODE) == sizeof(ncclConfig_t));
#endif
static_assert(version_code(2, 28, 9) == NCCL_VERSION(2, 28, 9));

constexpr bool initializer_agrees() {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config ours;
  return theirs.magic == ours.magic && theirs.cgaClusterSize == ours.cga_cluster_size &&
         theirs.netName == ours.net_name && theirs.splitShare == ours.split_share;
}
static_assert(initializer_agrees());

static_assert(std::is_pointer_v<ncclComm_t> && sizeof(Stream) == sizeof(cudaStream_t));
static_assert(kCudaSuccess == cudaSuccess && kCudaNotReady == cudaErrorNotReady);
static_assert(kCudaCopyDefault == cudaMemcpyDefault);
static_assert(kCudaStreamNonBlocking == cudaStreamNonBlocking);
static_assert(kCudaEventDisableTiming == cudaEventDisableTiming);
static_assert(sizeof(cudaError_t) == sizeof(int) && sizeof(cudaMemcpyKind) == sizeof(int));

// Signatures: each parameter that is the same type on both sides, or one of the same size.
template <class Ours, class Theirs>
constexpr bool kSameSlot = std::is_same_v<Ours, Theirs> || sizeof(Ours) == sizeof(Theirs);
template <class Ours, class Theirs>
struct SameCall : std::false_type {};
template <class R, class... A, class S, class... B>
struct SameCall<R (*)(A...), S (*)(B...)> {
  static constexpr bool kSame = [] {
    if constexpr (sizeof...(A) != sizeof...(B))
      return false;
    else
      return kSameSlot<R, S> && (... && kSameSlot<A, B>);
  }();
};
template <class Ours, class Theirs>
constexpr bool kSameCall = SameCall<Ours, Theirs>::kSame;

static_assert(kSameCall<decltype(Calls::get_version), decltype(&ncclGetVersion)>);
static_assert(kSameCall<decltype(Calls::get_unique_id), decltype(&ncclGetUniqueId)>);
static_assert(kSameCall<decltype(Calls::comm_init_rank_config), decltype(&ncclCommInitRankConfig)>);
static_assert(kSameCall<decltype(Calls::comm_get_async_error), decltype(&ncclCommGetAsyncError)>);
static_assert(kSameCall<decltype(Calls::comm_abort), decltype(&ncclCommAbort)>);
static_assert(kSameCall<decltype(Calls::get_error_string), decltype(&ncclGetErrorString)>);
static_assert(kSameCall<decltype(Calls::get_last_error), decltype(&ncclGetLastError)>);
static_assert(kSameCall<decltype(Calls::group_start), decltype(&ncclGroupStart)>);
static_assert(kSameCall<decltype(Calls::group_end), decltype(&ncclGroupEnd)>);
static_assert(kSameCall<decltype(Calls::send), decltype(&ncclSend)>);
static_assert(kSameCall<decltype(Calls::receive), decltype(&ncclRecv)>);
static_assert(
    kSameCall<decltype(CudaCalls::runtime_get_version), decltype(&cudaRuntimeGetVersion)>);
static_assert(kSameCall<decltype(CudaCalls::set_device), decltype(&cudaSetDevice)>);
static_assert(
    kSameCall<decltype(CudaCalls::device_get_pci_bus_id), decltype(&cudaDeviceGetPCIBusId)>);
static_assert(kSameCall<decltype(CudaCalls::copy), decltype(&cudaMemcpyAsync)>);
static_assert(kSameCall<decltype(CudaCalls::copy_2d), decltype(&cudaMemcpy2DAsync)>);
static_assert(kSameCall<decltype(CudaCalls::stream_create), decltype(&cudaStreamCreateWithFlags)>);
static_assert(kSameCall<decltype(CudaCalls::event_create), decltype(&cudaEventCreateWithFlags)>);
static_assert(kSameCall<decltype(CudaCalls::event_query), decltype(&cudaEventQuery)>);

}  // namespace
}  // namespace troupe::reshard::nccl
