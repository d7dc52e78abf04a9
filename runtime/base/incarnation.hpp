#pragma once

// Tells one start of a process or service from the next, so that what an earlier one said is not
// taken for the later one's.
//
// **Threads:** any.

#include <cstdint>

namespace troupe {

/// Different for every start of a process or service on a host, also after a reboot.
std::uint64_t new_incarnation();

}  // namespace troupe
