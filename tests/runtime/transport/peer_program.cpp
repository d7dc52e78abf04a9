// The other process of transport_test: `transport_peer MODE KEY BIG_BYTES` serves the columns of
// peer_support.hpp, says its address, and does what the lines of its input say.

#include "runtime/base/log.hpp"
#include "tests/runtime/transport/peer_support.hpp"
#include "tests/support/line_child.hpp"

#include <cstdio>
#include <iostream>
#include <sstream>

namespace {

using namespace troupe;
using namespace troupe::runtime;

std::string pull(Transport& transport, std::istringstream& words) {
  std::string address;
  std::uint64_t column = 0;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  int times = 0;
  words >> address >> column >> first >> rows >> times;
  auto buffer = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(rows));
  for (int i = 0; i < times; ++i) {
    PullRequest request{.owner = test::from_hex(address),
                        .parts = {{ColumnId{column}, first, rows, *buffer}},
                        .keep = buffer};
    const result<void> done =
        pull_and_wait(transport, std::move(request), Deadline::in(std::chrono::seconds(20)));
    if (!done) return "error " + done.error().to_string();
    if (const auto wrong = first_wrong(column, first, *buffer); wrong >= 0)
      return "error byte " + std::to_string(wrong);
  }
  return "ok";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  log::set_up(log::Level::kError);  // to stderr: stdout is for answers
  SessionKey key{};
  const auto bytes = test::from_hex(argv[2]);
  std::copy(bytes.begin(), bytes.end(), key.begin());
  auto columns = std::make_shared<PatternColumns>(std::stoll(argv[3]));
  TransportOptions options = transport_options(argv[1], key);
  options.name = "child rank 1";
  options.source = [columns](ColumnId column, std::int64_t first, std::int64_t rows) {
    return columns->read(column, first, rows);
  };
  auto transport = open_ucx_transport(std::move(options));
  if (!transport) {
    std::cout << "error " << transport.error().to_string() << std::endl;
    return 1;
  }
  std::cout << test::to_hex((*transport)->address()) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "pull") std::cout << pull(**transport, words) << std::endl;
    if (verb == "statistics") {
      const TransportStatistics all = (*transport)->statistics();
      std::cout << all.refused << ' ' << all.pins_held << ' ' << all.bytes_served << ' '
                << all.peers << ' ' << test::resident_mib() << std::endl;
    }
    if (verb == "quit") break;
  }
  return 0;
}
