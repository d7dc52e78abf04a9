#pragma once

// Under which names a certificate lets its owner be dialled; to choose among several in a folder.
//
// **Threads:** a pure function over a file.

#include "runtime/base/result.hpp"

#include <string>

namespace troupe::runtime {

/// Whether the PEM certificate at `path` is made out for `host`, a DNS name or an address, in the
/// way a dialler checks it. kNotFound; kConfig when it is not a certificate.
result<bool> certificate_covers(const std::string& path, const std::string& host);

}  // namespace troupe::runtime
