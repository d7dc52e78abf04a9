#pragma once

// `ucx_perftest` (package ucx-utils) as what benches of the data plane compare with.
//
// **Threads:** one; sets and clears environment variables for its children.

#include "runtime/base/check.hpp"
#include "tests/support/line_child.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace troupe::bench {

inline std::optional<std::string> find_perftest() {
  std::istringstream folders(std::getenv("PATH") == nullptr ? "/usr/bin" : std::getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto program = std::filesystem::path(folder) / "ucx_perftest";
    if (std::filesystem::exists(program)) return program.string();
  }
  return std::nullopt;
}

/// A port that was free a moment ago; perftest cannot pick one by itself.
inline int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(descriptor);
  TROUPE_CHECK(bound, "no free port");
  return ntohs(address.sin_port);
}

struct PerftestRun {
  std::string program;
  std::string lanes;       ///< cma, tcp, or else posix shared memory
  std::int64_t bytes = 0;  ///< of a message
  double guess = 0;        ///< MiB/s, to make the run about as long as `span`
  std::chrono::milliseconds span = std::chrono::milliseconds(400);
};

/// MiB/s of `ucx_perftest -t ucp_am_bw`; nothing when it says none, as on a machine so busy that it
/// does not end in time.
inline std::optional<double> try_perftest(const PerftestRun& run) {
  constexpr double kMebibyte = 1048576;
  const char* transports = run.lanes == "cma"   ? "posix,sysv,cma"
                           : run.lanes == "tcp" ? "tcp"
                                                : "posix";
  ::setenv("UCX_TLS", transports, 1);
  if (run.lanes == "tcp") ::setenv("UCX_NET_DEVICES", "lo", 1);
  ::setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 1);
  const double wanted = std::chrono::duration<double>(run.span).count() * run.guess * kMebibyte /
                        static_cast<double>(run.bytes);
  const auto count = static_cast<std::int64_t>(std::clamp(wanted, 6.0, 1e6));
  const std::string warm_up = std::to_string(std::min<std::int64_t>(count / 5 + 2, 1000));
  const std::vector<std::string> common{
      run.program,           "-t", "ucp_am_bw", "-s", std::to_string(run.bytes),   "-n",
      std::to_string(count), "-w", warm_up,     "-p", std::to_string(free_port()), "-f"};
  test::LineChild server(common);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it does not say when it listens
  std::vector<std::string> command = common;
  command.insert(command.begin() + 1, "127.0.0.1");
  test::LineChild client(command);
  double speed = 0;
  try {
    for (;;) {
      std::istringstream words(client.hear(std::chrono::seconds(30)));
      std::vector<double> numbers;
      for (double number = 0; words >> number;) numbers.push_back(number);
      if (numbers.size() == 8) speed = numbers[5];  // overall bandwidth
    }
  } catch (const std::runtime_error&) {  // its output ends
  }
  ::unsetenv("UCX_TLS");
  ::unsetenv("UCX_NET_DEVICES");
  return speed > 0 ? std::optional<double>(speed) : std::nullopt;
}

inline double perftest(const PerftestRun& run) {
  const std::optional<double> speed = try_perftest(run);
  TROUPE_CHECK(speed, "ucx_perftest over {} says no bandwidth", run.lanes);
  return *speed;
}

}  // namespace troupe::bench
