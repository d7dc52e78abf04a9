#pragma once

// The join token on disk: 32 random bytes in hex, readable by its owner only.
//
// **Threads:** pure functions over files.
// **Invariants:** a token file that others may read is refused; a token never stands in a message.

#include "runtime/base/result.hpp"

#include <string>

namespace troupe::runtime {

/// Reads the token. kNotFound; kConfig when group or others may read it or it is not a token.
result<std::string> read_token_file(const std::string& path);

/// As read_token_file, and makes the file (mode 0600, its folder 0700) when it is absent.
result<std::string> read_or_make_token_file(const std::string& path);

}  // namespace troupe::runtime
