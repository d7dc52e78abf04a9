#pragma once

// A private certificate authority: what `troupe cert make` writes, for TLS between our processes.
//
// Keys are EC P-256; private keys and the token are files of mode 0600. Nothing is overwritten.
// **Threads:** pure functions over files.
// **Invariants:** a file appears whole or not at all.

#include "runtime/base/result.hpp"
#include "runtime/link/link_options.hpp"

#include <string>
#include <vector>

namespace troupe::runtime {

/// Makes `folder` if needed and writes authority.pem and authority.key. kAlreadyExists when either
/// is there.
result<void> make_authority(const std::string& folder, int days = 3650);

/// Signs a certificate for `name` with the authority of `folder` and writes NAME.pem and NAME.key.
/// `hosts` are the DNS names and addresses under which others dial it, `*.` for any first label;
/// `localhost`, 127.0.0.1 and ::1 are for the caller to list. `days` may be negative, to make an
/// expired one for tests.
result<TlsFiles> make_certificate(const std::string& folder, const std::string& name,
                                  const std::vector<std::string>& hosts, int days = 365);

}  // namespace troupe::runtime
