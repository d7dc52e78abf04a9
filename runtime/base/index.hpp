#pragma once

// Ranks and positions are signed; containers are not.
//
// **Threads:** pure.

#include <cstddef>
#include <cstdint>

namespace troupe {

/// A rank or position, never negative, as the index of a container.
constexpr std::size_t index(std::int32_t position) { return static_cast<std::size_t>(position); }

}  // namespace troupe
