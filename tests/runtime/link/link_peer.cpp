// A process at the other end of a link, for tests that kill or stop it: dials ADDRESS under NAME,
// serves `echo`, says `up` and lives until its standard input ends. With `spin` its main thread
// computes all the while.
//
//   link_peer ADDRESS NAME TOKEN [spin]

#include "tests/runtime/link/hub_support.hpp"

#include <poll.h>
#include <unistd.h>

#include <cstdio>

int main(int count, char** words) {
  using namespace troupe::runtime;
  if (count < 4) return 2;
  const bool spin = count > 4;
  ActorSystem system;
  const auto hub =
      link_test::open_hub(system, link_test::named(PeerRole::kNode, words[2], words[3]));
  const auto service = std::make_shared<link_test::EchoService>();
  const auto channel =
      hub->connect(words[1], service, troupe::Deadline::in(std::chrono::seconds(10))).wait();
  if (!channel) {
    fmt::print("{}\n", channel.error().to_string());
    return 1;
  }
  fmt::print("up\n");
  std::fflush(stdout);
  pollfd wanted{STDIN_FILENO, POLLIN, 0};
  while (::poll(&wanted, 1, spin ? 0 : 1000) == 0) {
  }
  return 0;
}
