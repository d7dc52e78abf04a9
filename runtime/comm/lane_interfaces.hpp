#pragma once

// Which network interfaces the data plane may use, from the address under which this process is
// known to its peers.
//
// UCX takes every interface of the host otherwise, and believes that the loopback of another
// network namespace of the same machine (containers, pods) is its own.
// **Threads:** pure functions over /sys and the interfaces.

#include <string>

namespace troupe::runtime {

/// For `TransportOptions::interfaces`: the interface of `own_address`; empty (all) when there are
/// RDMA devices, which are no network interfaces, or when no interface has the address.
std::string lane_interfaces(const std::string& own_address);

/// True with InfiniBand or RoCE devices.
bool has_rdma_devices();

}  // namespace troupe::runtime
