#include "placement/cluster_access.hpp"

#include "runtime/base/file.hpp"
#include "runtime/base/network.hpp"
#include "runtime/link/certificate_hosts.hpp"
#include "runtime/link/dialler.hpp"
#include "runtime/link/token_file.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace troupe::placement {

using runtime::TlsFiles;

namespace {

constexpr std::uint64_t kAddressBytesMax = 1024;

/// The option if given, else the environment variable, else empty.
std::string given(const std::string& option, const char* variable) {
  if (!option.empty()) return option;
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  return text;
}

/// As configuration: a wrong option is a wrong command line.
tl::unexpected<Error> as_config(Error error) {
  return fail(std::move(error).wrap(ErrorCode::kConfig, "cluster access"));
}

result<std::string> find_token(const AccessOptions& options) {
  const std::string named = given(options.token_file, "TROUPE_TOKEN_FILE");
  const std::string path = named.empty() ? token_file(state_folder(options)) : named;
  auto token = runtime::read_token_file(path);
  if (token) return token;
  // Without a named file a cluster without a token is meant; a bad file is bad all the same.
  if (named.empty() && token.error().code == ErrorCode::kNotFound) return std::string();
  return as_config(std::move(token).error());
}

/// Names of certificates in the folder, sorted, without the authority's.
result<std::vector<std::string>> certificates_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    const auto& path = entry.path();
    if (path.extension() == ".pem" && path.stem() != "authority")
      names.push_back(path.stem().string());
  }
  if (failure)
    return fail(ErrorCode::kConfig, "folder of certificates {}: {}", folder, failure.message());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

runtime::LinkOptions ClusterAccess::link(runtime::PeerName self) const {
  runtime::LinkOptions options;
  options.self = std::move(self);
  options.token = token;
  options.tls = tls;
  options.insecure = trusted_network;
  return options;
}

result<runtime::LinkOptions> ClusterAccess::listening_link(runtime::PeerName self,
                                                           const std::string& host) const {
  runtime::LinkOptions options = link(std::move(self));
  if (tls_folder.empty()) return options;
  TROUPE_TRY(options.tls, choose_certificate(tls_folder, tls_name, {options.self.name}, host));
  return options;
}

std::string default_state_folder() {
  if (const std::string state = given("", "TROUPE_STATE"); !state.empty()) return state;
  const std::string home = given("", "HOME");
  return (std::filesystem::path(home.empty() ? "." : home) / ".troupe").string();
}

std::string state_folder(const AccessOptions& options) {
  return options.state.empty() ? default_state_folder() : options.state;
}

std::string address_file(const std::string& state) {
  return (std::filesystem::path(state) / "address").string();
}

std::string token_file(const std::string& state) {
  return (std::filesystem::path(state) / "token").string();
}

result<ClusterAccess> resolve_credentials(const AccessOptions& options) {
  ClusterAccess access;
  access.trusted_network = options.trusted_network;
  TROUPE_TRY(access.token, find_token(options));
  access.tls_folder = given(options.tls, "TROUPE_TLS");
  access.tls_name = options.tls_name;
  if (access.tls_folder.empty()) return access;
  TROUPE_TRY(access.tls, choose_certificate(access.tls_folder, access.tls_name, {}, ""));
  return access;
}

result<ClusterAccess> resolve_access(const AccessOptions& options) {
  TROUPE_TRY(ClusterAccess access, resolve_credentials(options));
  access.address = given(options.address, "TROUPE_ADDRESS");
  if (access.address.empty()) {
    const std::string path = address_file(state_folder(options));
    auto text = read_text_file(path, kAddressBytesMax);
    if (!text) {
      return fail(std::move(text).error().wrap(
          ErrorCode::kConfig,
          "no head is named: give --address, set TROUPE_ADDRESS, or run on the head's host"));
    }
    access.address = trimmed(std::move(*text));
  }
  const auto parsed = runtime::parse_host_port(access.address);
  if (!parsed) return as_config(parsed.error());
  return access;
}

result<TlsFiles> choose_certificate(const std::string& folder, const std::string& tls_name,
                                    const std::vector<std::string>& names,
                                    const std::string& host) {
  TROUPE_TRY(const auto there, certificates_in(folder));
  const auto has = [&](const std::string& name) {
    return std::find(there.begin(), there.end(), name) != there.end();
  };
  if (!tls_name.empty()) {
    if (has(tls_name)) return TlsFiles::in_folder(folder, tls_name);
    return fail(ErrorCode::kConfig, "{}: no certificate {}.pem; there are: {}", folder, tls_name,
                fmt::join(there, ", "));
  }
  const auto named = std::find_if(names.begin(), names.end(), has);
  if (named != names.end()) return TlsFiles::in_folder(folder, *named);
  for (const std::string& name : there) {
    const TlsFiles files = TlsFiles::in_folder(folder, name);
    if (host.empty()) return files;
    TROUPE_TRY(const bool covers, runtime::certificate_covers(files.certificate, host));
    if (covers) return files;
  }
  return fail(ErrorCode::kConfig, "{}: no certificate is made out for {}; there are: {}", folder,
              host.empty() ? "anybody" : host,
              there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", ")));
}

result<runtime::ListenAddress> parse_listen(const std::string& text,
                                            const runtime::ListenAddress& defaults) {
  runtime::ListenAddress parsed = defaults;
  std::string host = text;
  const std::size_t bracket = text.rfind(']');
  const std::size_t colon = text.rfind(':');
  const bool has_port = colon != std::string::npos &&
                        (bracket == std::string::npos ? text.find(':') == colon : colon > bracket);
  if (has_port) {
    host = text.substr(0, colon);
    const char* const end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data() + colon + 1, end, parsed.port);
    if (code != std::errc() || stop != end)
      return fail(ErrorCode::kConfig, "address '{}': wanted HOST:PORT, HOST or :PORT", text);
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (!host.empty()) parsed.host = host;
  return parsed;
}

result<std::string> local_address_towards(const std::string& address) {
  TROUPE_TRY(const auto target, runtime::parse_host_port(address));
  return troupe::local_address_towards(target.host, target.port);
}

}  // namespace troupe::placement
