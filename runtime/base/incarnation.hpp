#pragma once

#include <cstdint>

namespace troupe {

/// Different for every start of a process or service on a host, also after a reboot.
///
/// **Threads:** any.
std::uint64_t new_incarnation();

}  // namespace troupe
