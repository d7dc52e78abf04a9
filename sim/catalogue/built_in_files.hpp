#pragma once

// The data files of this folder as text in the binary; the build makes the source from them.
//
// **Threads:** constants only.

#include <array>
#include <string_view>
#include <utility>

namespace troupe::sim {

/// Name and text of each file.
std::array<std::pair<std::string_view, std::string_view>, 2> built_in_files();

}  // namespace troupe::sim
