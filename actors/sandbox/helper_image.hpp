#pragma once

// The sandbox's helper program, which the library carries in itself.
//
// **Threads:** any; the first call opens it for the life of the process.

#include "runtime/base/result.hpp"

#include <string>

namespace troupe::actors::sandbox {

/// A path from which children of this process can execute the helper.
result<std::string> helper_path();

}  // namespace troupe::actors::sandbox
