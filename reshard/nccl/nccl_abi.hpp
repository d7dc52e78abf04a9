#pragma once

// The part of NCCL's binary interface that Troupe calls, stated by ourselves so that neither its
// header nor the library is needed to build.
//
// `abi_check_nccl.cpp` holds it against nccl.h wherever that is installed. The names keep NCCL's
// spelling behind a namespace, since they are its symbols.
// **Threads:** value types.
// **Invariants:** what a call returns may be a code that is not listed here; it is then an error.

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>

namespace troupe::reshard::nccl {

/// Opaque.
struct Comm;

/// Travels by value on the stack, as NCCL has it.
struct UniqueId {
  std::array<char, 128> internal;
  bool operator==(const UniqueId&) const = default;
};

enum class Code : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

/// The only type of element that Troupe sends: raw bytes.
inline constexpr int kUint8 = 1;

inline constexpr int kUndefined = INT_MIN;
inline constexpr unsigned int kConfigMagic = 0xcafebeef;

/// ncclConfig_t as of 2.28. Older libraries know a prefix of it, see `config_bytes`.
struct Config {
  std::size_t size = 0;
  unsigned int magic = kConfigMagic;
  unsigned int version = 0;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  int channels_per_net_peer = kUndefined;
  int nvlink_centric_sched = kUndefined;
};

constexpr int version_code(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}
/// The first one whose non-blocking communicators have splitShare and bounded aborts.
inline constexpr int kVersionMin = version_code(2, 18, 0);
inline constexpr int kVersionMax = version_code(3, 0, 0) - 1;
/// The one that `Config` is written from.
inline constexpr int kConfigVersion = version_code(2, 28, 9);

/// Bytes of the configuration that a library of this version has.
constexpr std::size_t config_bytes(int version) {
  if (version >= version_code(2, 28, 0)) return sizeof(Config);
  if (version >= version_code(2, 27, 0)) return offsetof(Config, channels_per_net_peer);
  return offsetof(Config, comm_name);
}

/// A non-blocking communicator, everything else undefined: the library's own choice.
constexpr Config config_for(int version) {
  Config config;
  config.size = config_bytes(version);
  config.version = static_cast<unsigned int>(version < kConfigVersion ? version : kConfigVersion);
  config.blocking = 0;
  return config;
}

/// The entry points, by NCCL's signatures. `Stream` is cudaStream_t.
using Stream = void*;
struct Calls {
  Code (*get_version)(int* version) = nullptr;
  Code (*get_unique_id)(UniqueId* id) = nullptr;
  Code (*comm_init_rank_config)(Comm** comm, int ranks, UniqueId id, int rank,
                                Config* config) = nullptr;
  Code (*comm_get_async_error)(Comm* comm, Code* code) = nullptr;
  Code (*comm_abort)(Comm* comm) = nullptr;
  const char* (*get_error_string)(Code code) = nullptr;
  const char* (*get_last_error)(Comm* comm) = nullptr;
  Code (*group_start)() = nullptr;
  Code (*group_end)() = nullptr;
  Code (*send)(const void* data, std::size_t count, int type, int peer, Comm* comm,
               Stream stream) = nullptr;
  Code (*receive)(void* data, std::size_t count, int type, int peer, Comm* comm,
                  Stream stream) = nullptr;
};

}  // namespace troupe::reshard::nccl
