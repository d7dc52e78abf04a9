#pragma once

// Tells whether two processes share a steady clock: those of one boot of one kernel do.
//
// **Threads:** any.

#include <string>

namespace troupe::runtime {

/// The kernel's id of this boot; empty when it does not say.
const std::string& host_boot_id();

}  // namespace troupe::runtime
