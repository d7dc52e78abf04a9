#pragma once

// Who is in a communicator: made once by whoever forms the group, sent to every member as a value.
//
// The unique id is 128 opaque bytes that one member made; it travels over the control channel like
// everything here. A membership is never changed: who joins, leaves or dies means a new epoch with
// a new id.
// **Threads:** value types and pure functions.
// **Invariants:** a member's place in `members` is its NCCL rank; no two members are on one device,
// which NCCL does not support and may answer by hanging.

#include "reshard/nccl/nccl_abi.hpp"
#include "runtime/base/result.hpp"
#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::reshard::nccl {

/// A rank of the plan and the device that it is on.
struct DeviceMember {
  std::int32_t rank = 0;  ///< of the plan
  std::string host;       ///< any name that is unique among the hosts
  std::string bus_id;     ///< of the device, `CudaDevice::bus_id`
  bool operator==(const DeviceMember&) const = default;
  static constexpr auto fields() {
    return std::tuple{runtime::field("rank", &DeviceMember::rank),
                      runtime::field("host", &DeviceMember::host),
                      runtime::field("bus_id", &DeviceMember::bus_id)};
  }
};

struct Membership {
  std::uint64_t epoch = 0;  ///< grows with each membership; not 0
  std::vector<std::byte> unique_id;
  std::vector<DeviceMember> members;
  /// Of the staging of every member, so that all cut the plan alike.
  std::int64_t bucket_bytes = std::int64_t{32} << 20;
  bool operator==(const Membership&) const = default;
  static constexpr auto fields() {
    return std::tuple{runtime::field("epoch", &Membership::epoch),
                      runtime::field("unique_id", &Membership::unique_id),
                      runtime::field("members", &Membership::members),
                      runtime::field("bucket_bytes", &Membership::bucket_bytes)};
  }
};

inline constexpr std::int64_t kBucketBytesMin = 4096;
inline constexpr std::int64_t kBucketBytesMax = std::int64_t{1} << 30;
inline constexpr std::size_t kMembersMax = 4096;

std::vector<std::byte> id_bytes(const UniqueId& id);

/// kInvalidArgument names what is wrong; two ranks of one device are named both.
result<void> check_membership(const Membership& membership);
/// NCCL's rank of a rank of the plan; kNotFound.
result<std::int32_t> nccl_rank(const Membership& membership, std::int32_t rank);

}  // namespace troupe::reshard::nccl
