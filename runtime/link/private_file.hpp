#pragma once

// Small files of secrets: written whole or not at all, never over another one.
//
// Internal to runtime/link. **Threads:** pure functions over files.
// **Invariants:** a file has its mode from its first byte on.

#include "runtime/base/result.hpp"

#include <string>
#include <string_view>

namespace troupe::runtime {

/// kAlreadyExists when `path` is there.
result<void> write_new_file(const std::string& path, std::string_view bytes, unsigned mode);
/// Makes the folder, mode 0700, with those above it.
result<void> make_private_folder(const std::string& folder);

}  // namespace troupe::runtime
