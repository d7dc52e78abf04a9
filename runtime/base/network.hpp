#pragma once

// What this host's routing and interfaces say about addresses.
//
// **Threads:** any; name lookups may take seconds.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <string>

namespace troupe {

/// Address of this host from which `host` is reached. Sends nothing. kIo for an unknown host or
/// without a route.
result<std::string> local_address_towards(const std::string& host, std::uint16_t port);

/// The network interface that has this numeric address, e.g. `eth0`; empty when none has.
std::string interface_of(const std::string& address);

}  // namespace troupe
