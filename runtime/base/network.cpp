#include "runtime/base/network.hpp"

#include "runtime/base/file.hpp"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

namespace troupe {
namespace {

std::optional<std::string> text_of(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return std::nullopt;
  return std::string(text.data());
}

}  // namespace

result<std::string> local_address_towards(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) return fail(ErrorCode::kIo, "{}: unknown host: {}", host, ::gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  int reason = 0;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    // Connecting a datagram socket only asks the routing table.
    const Descriptor socket(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    auto* const name = reinterpret_cast<sockaddr*>(&own);
    if (socket.is_open() && ::connect(socket.value(), one->ai_addr, one->ai_addrlen) == 0 &&
        ::getsockname(socket.value(), name, &size) == 0) {
      if (auto text = text_of(name, size)) return *std::move(text);
    }
    reason = errno;
  }
  return fail(ErrorCode::kIo, "{}: no route from this host: {}", host, std::strerror(reason));
}

std::string interface_of(const std::string& address) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(found, ::freeifaddrs);
  for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const auto family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (text_of(one->ifa_addr, size) == address) return one->ifa_name;
  }
  return {};
}

}  // namespace troupe
