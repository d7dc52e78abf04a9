#pragma once

// Requests that ask for the same, whatever they are called.
//
// **Threads:** pure function. For the .cpp files of this folder.

#include "placement/bundle.hpp"

#include <string>

namespace troupe::placement {

/// Equal for requests that differ in name, priority, affinities and `movable` only.
std::string shape_key(const GroupRequest& request);

}  // namespace troupe::placement
