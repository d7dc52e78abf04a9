#pragma once

// Where a cluster is and what proves that one may talk to it: address, join token, certificates.
//
// Resolved once, from options, then the environment (TROUPE_ADDRESS, TROUPE_TOKEN_FILE, TROUPE_TLS,
// TROUPE_STATE), then the state folder of a head on this host.
// **Threads:** pure functions over files and the environment.
// **Invariants:** what is given and wrong is an error, never skipped for the next source.

#include "runtime/base/result.hpp"
#include "runtime/link/link_options.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::placement {

/// Where a head listens unless told otherwise.
inline constexpr std::uint16_t kHeadPort = 7611;

/// As options say it; empty: not given.
struct AccessOptions {
  std::string address;  ///< host:port of the head
  std::string state;    ///< folder of a head on this host
  std::string token_file;
  std::string tls;       ///< folder of certificates
  std::string tls_name;  ///< NAME.pem in it
  bool trusted_network = false;
};

struct ClusterAccess {
  std::string address;  ///< host:port of the head
  std::string token;
  runtime::TlsFiles tls;   ///< any certificate of the folder: enough for who only dials
  std::string tls_folder;  ///< empty: no TLS
  std::string tls_name;    ///< which certificate, if that was said
  bool trusted_network = false;

  /// For a hub of this process.
  runtime::LinkOptions link(runtime::PeerName self) const;
  /// As `link`, for a process that also listens on `host`: with the certificate of its own name, or
  /// one that is made out for the host. kConfig when there is none.
  result<runtime::LinkOptions> listening_link(runtime::PeerName self,
                                              const std::string& host) const;
};

/// TROUPE_STATE, or ~/.troupe.
std::string default_state_folder();
std::string state_folder(const AccessOptions& options);

/// What the head writes there and others read: `address`, `token`.
std::string address_file(const std::string& state);
std::string token_file(const std::string& state);

/// kConfig names what is missing or wrong. A token is found, or none is used; see docs/cluster.md.
result<ClusterAccess> resolve_access(const AccessOptions& options);
/// The same without an address: for who listens.
result<ClusterAccess> resolve_credentials(const AccessOptions& options);

/// Certificate and key of the folder for a process. By `tls_name` if given; else the first of
/// `names` that is there; else the first one, by name, that is made out for `host` (any, when that
/// is empty). kConfig lists what is there.
result<runtime::TlsFiles> choose_certificate(const std::string& folder, const std::string& tls_name,
                                             const std::vector<std::string>& names,
                                             const std::string& host);

/// `HOST`, `HOST:PORT`, `:PORT`, `[v6]:PORT`; what is missing comes from `defaults`. kConfig.
result<runtime::ListenAddress> parse_listen(const std::string& text,
                                            const runtime::ListenAddress& defaults);
/// Address of this host from which `address` (host:port) is reached. kIo when there is no route.
result<std::string> local_address_towards(const std::string& address);

}  // namespace troupe::placement
