#pragma once

// Which network interfaces the data plane may use, from the address under which this process is
// known to its peers, and which lanes, from the environment.
//
// UCX takes every interface of the host otherwise, and believes that the loopback of another
// network namespace of the same machine (containers, pods) is its own.
// **Threads:** pure functions over /sys, the interfaces and the environment.

#include "runtime/base/result.hpp"
#include "runtime/comm/transport.hpp"

#include <string>

namespace troupe::runtime {

/// For `TransportOptions::interfaces`: the interface of `own_address`; empty (all) when there are
/// RDMA devices, which are no network interfaces, or when no interface has the address.
std::string lane_interfaces(const std::string& own_address);

/// `tcp`: over TCP only, also on one host, and no process permits others to read its memory.
/// `auto`, or unset: as is fastest. A controller hands it on to its ranks.
inline constexpr const char* kLanesVariable = "TROUPE_LANES";
/// kConfig for any other value.
result<TransportLanes> lanes_of_environment();

/// True with InfiniBand or RoCE devices.
bool has_rdma_devices();

}  // namespace troupe::runtime
