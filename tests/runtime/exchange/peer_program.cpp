// A rank process of exchange_process_test: `exchange_peer KEY RANK MODE`. It says its data-plane
// address, then does what the lines of its input say and answers each with one line.

#include "runtime/base/log.hpp"
#include "runtime/exchange/column_exchange.hpp"
#include "tests/runtime/exchange/process_support.hpp"
#include "tests/support/line_child.hpp"

#include <algorithm>
#include <iostream>
#include <map>
#include <sstream>

namespace {

using namespace troupe;
using namespace troupe::runtime;

std::string text_of(const result<std::vector<std::byte>>& bytes) {
  return bytes ? test::to_hex(*bytes) : "error " + bytes.error().to_string();
}

class RankProgram {
 public:
  RankProgram(ColumnExchange& exchange, std::int32_t rank) : exchange_(exchange), rank_(rank) {
    exchange_.open_holder("controller");
    exchange_.set_peer_lookup([this](const ColumnOwner& owner, Deadline) {
      const auto place = peers_.find(fmt::format("{}/{}", owner.group, owner.rank.value));
      return place == peers_.end()
                 ? result<std::vector<std::byte>>(fail(ErrorCode::kNotFound, "no address"))
                 : place->second;
    });
  }
  std::string answer(const std::string& verb, std::istringstream& words) {
    std::string first;
    std::string second;
    words >> first >> second;
    if (verb == "peer") {
      peers_[first] = test::from_hex(second);
      return "ok";
    }
    if (verb == "make")  // rows, bytes a row
      return text_of(
          exchange_.export_batch(step_batch(rank_, std::stoll(first), std::stoll(second))));
    if (verb == "pass") {  // resolves what it is lent and returns it with a column of its own
      auto lent = exchange_.import_batch(test::from_hex(first));
      if (!lent) return "error " + lent.error().to_string();
      const auto read = lent->resolve();
      if (!read) return "error " + read.error().to_string();
      Batch back = *lent;
      if (!back.set("sum", row_sums(*read))) return "error set";
      return text_of(exchange_.export_batch(back));
    }
    if (verb == "notice") {
      const auto done = exchange_.on_lease_notice("controller", first, test::from_hex(second));
      return done ? "ok" : "error " + done.error().to_string();
    }
    if (verb == "gone") {
      exchange_.close_holder("controller");
      return "ok";
    }
    const ExchangeStatistics all = exchange_.statistics();
    return fmt::format("{} {} {} {} {} {}", all.columns_held, all.bytes_held, all.leases,
                       all.transport.bytes_served, all.transport.pins_held, test::resident_mib());
  }

 private:
  ColumnExchange& exchange_;
  std::int32_t rank_;
  std::map<std::string, std::vector<std::byte>> peers_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  log::set_up(log::Level::kError);
  const auto rank = static_cast<std::int32_t>(std::stol(argv[2]));
  auto exchange = open_process_exchange({"policy", RankId{rank}}, test::from_hex(argv[1]), argv[3]);
  if (!exchange) {
    std::cout << "error " << exchange.error().to_string() << std::endl;
    return 1;
  }
  std::cout << test::to_hex((*exchange)->address()) << std::endl;
  RankProgram program(**exchange, rank);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    std::cout << program.answer(verb, words) << std::endl;
  }
  return 0;
}
