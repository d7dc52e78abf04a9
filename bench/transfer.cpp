// Column transfer between two processes, against what `ucx_perftest` gives on the same transport in
// the same run.
//
//   bench_transfer [--check] [--alone] [--rounds N] [--lanes shm|tcp|fifo] [--bytes N]
//
// A child exports a batch; this process imports it and resolves it again and again, as a rank does
// with its share: pull, buffers, length tables and all. Small columns come 1 MiB to a batch, and up
// to 4 threads resolve at once, since perftest streams its messages too and copies one buffer
// within the caches. Lanes:
//   shm   what processes of one host get: direct copies   against perftest over posix
//   tcp   over the loopback interface                     against perftest over tcp
//   fifo  shared memory of UCX, which is not crash-safe   against perftest over posix; no bar
// For shm perftest over posix,sysv,cma is printed too: cma of UCX has no error handling, so that it
// is no lane of ours. Rounds of ours and of perftest alternate, and the median of their ratios
// counts, so that what else the machine does weighs on both. Active messages on both sides
// (`ucp_am_bw`). With --check it ends with 1 when a ratio is below 0.7, or when perftest (package
// ucx-utils) is not there. Columns under 1 MiB are shown, not judged: perftest leaves a small
// message in UCX's own buffer and sends one that never leaves the caches, where a column has to be
// copied.

#include "bench/perftest.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/exchange/column_exchange.hpp"
#include "tests/support/line_child.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::runtime;
using namespace std::chrono_literals;
using test::LineChild;

constexpr double kBar = 0.7;
constexpr std::int64_t kJudgedFrom = std::int64_t{1} << 20;
constexpr double kMiB = 1048576;

struct Options {
  bool check = false;
  bool alone = false;  ///< without perftest, to profile ours
  int rounds = 7;
  std::string lanes;
  std::int64_t bytes = 0;
};

std::int64_t columns_of(std::int64_t bytes) {
  return std::clamp<std::int64_t>((std::int64_t{1} << 20) / bytes, 1, 16);
}

/// How many threads resolve batches of so many bytes at once.
std::int64_t threads_of(std::int64_t bytes) {
  return std::clamp<std::int64_t>((std::int64_t{8} << 20) / bytes, 1, 4);
}

std::unique_ptr<ColumnExchange> open_exchange(const std::string& lanes, ColumnOwner self) {
  TransportOptions transport;
  transport.interfaces = lanes == "fifo" ? "" : "lo";
  transport.direct_copy = lanes == "shm";
  if (lanes == "fifo") transport.lanes = TransportLanes::kSharedMemory;
  if (lanes == "tcp") transport.lanes = TransportLanes::kTcp;
  ExchangeOptions options;
  options.self = std::move(self);
  options.inline_bytes_max = -1;
  options.lease_expires_after = 1h;  // nobody renews here
  auto exchange = ColumnExchange::open(std::move(options), std::move(transport));
  TROUPE_CHECK(exchange.has_value(), "{}", exchange.error().to_string());
  return *std::move(exchange);
}

/// The owner: `bench_transfer --owner LANES`; each line of input asks for a batch of one size.
int run_owner(const std::string& lanes) {
  log::set_up(log::Level::kError);
  const auto exchange = open_exchange(lanes, {"policy", RankId{1}});
  exchange->open_holder("bench");
  std::cout << test::to_hex(exchange->address()) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const std::int64_t bytes = std::stoll(line);
    Batch batch;
    for (std::int64_t i = 0; i < columns_of(bytes); ++i) {
      std::vector<float> values(static_cast<std::size_t>(bytes) / 4, 0.5F);
      const bool set =
          batch.set(fmt::format("c{}", i), Column::dense(std::move(values), {256})).has_value();
      TROUPE_CHECK(set, "column {}", i);
    }
    const auto frame = exchange->export_batch(batch);
    TROUPE_CHECK(frame.has_value(), "{}", frame.error().to_string());
    std::cout << test::to_hex(*frame) << std::endl;
  }
  return 0;
}

class Reader {
 public:
  explicit Reader(const std::string& lanes)
      : owner_({std::filesystem::read_symlink("/proc/self/exe").string(), "--owner", lanes}),
        exchange_(open_exchange(lanes, {"controller", RankId{0}})) {
    exchange_->set_peer({"policy", RankId{1}}, test::from_hex(owner_.hear()));
    exchange_->set_lease_sender([](const ColumnOwner&, std::string_view, std::vector<std::byte>) {
      return result<void>();
    });
  }
  void choose(std::int64_t bytes) {
    batch_ = Batch();
    const std::string frame = owner_.ask(std::to_string(bytes));
    auto batch = exchange_->import_batch(test::from_hex(frame));
    TROUPE_CHECK(batch.has_value(), "{}", batch.error().to_string());
    batch_ = *std::move(batch);
    for (int i = 0; i < 3; ++i) resolve();
  }
  /// MiB/s over at least `span`.
  double measure(std::chrono::milliseconds span) {
    const auto start = std::chrono::steady_clock::now();
    std::atomic<std::int64_t> batches{0};
    const auto engine = [&] {
      while (std::chrono::steady_clock::now() - start < span) {
        resolve();
        ++batches;
      }
    };
    std::vector<std::thread> others;
    for (std::int64_t i = 1; i < threads_of(batch_.bytes()); ++i) others.emplace_back(engine);
    engine();
    for (std::thread& other : others) other.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return static_cast<double>(batches * batch_.bytes()) / kMiB / took.count();
  }
  TransportStatistics statistics() const { return exchange_->statistics().transport; }

 private:
  void resolve() {
    const auto whole = batch_.resolve();
    TROUPE_CHECK(whole.has_value(), "{}", whole.error().to_string());
  }
  LineChild owner_;
  std::unique_ptr<ColumnExchange> exchange_;
  Batch batch_;
};

/// 0 of nothing.
double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// True when the bar holds for every size.
bool compare(const Options& options, const std::string& program, const std::string& lanes) {
  constexpr auto kSpan = 200ms;
  Reader reader(lanes);
  bool all = true;
  for (const std::int64_t bytes :
       {64L << 10, 256L << 10, 1L << 20, 4L << 20, 16L << 20, 64L << 20, 256L << 20}) {
    if (options.bytes != 0 && bytes != options.bytes) continue;
    reader.choose(bytes);
    const auto run = [&](const std::string& over, double guess) {
      return bench::PerftestRun{
          .program = program, .lanes = over, .bytes = bytes, .guess = guess, .span = kSpan};
    };
    std::vector<double> ours, theirs, ratios;
    double guess = 1000;
    for (int round = 0; round < options.rounds; ++round) {
      ours.push_back(reader.measure(kSpan));
      guess = std::max(guess, ours.back());
      if (program.empty()) continue;
      const std::optional<double> speed = bench::try_perftest(run(lanes, guess));
      if (!speed) continue;
      theirs.push_back(*speed);
      guess = *speed;
      ratios.push_back(ours.back() / theirs.back());
    }
    const double ratio = median(ratios);
    std::string more;
    if (lanes == "shm" && !program.empty())
      more = fmt::format("   (cma {:.0f})", bench::try_perftest(run("cma", guess)).value_or(0));
    const bool held = lanes == "fifo" || bytes < kJudgedFrom || ratio >= kBar;
    all = all && held;
    fmt::print(
        "{:<6} {:>9} KiB × {:<3} {:>9.0f} MiB/s   perftest {:>9.0f} MiB/s   ratio {:.2f}{}{}\n",
        lanes, bytes >> 10, columns_of(bytes), median(ours), median(theirs), ratio, more,
        held ? "" : "   MISSED");
    std::fflush(stdout);
  }
  return all;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--check") options.check = true;
    if (word == "--alone") options.alone = true;
    if (word == "--rounds") options.rounds = std::stoi(value);
    if (word == "--lanes") options.lanes = value;
    if (word == "--bytes") options.bytes = std::stoll(value);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--owner") return run_owner(argv[2]);
  log::set_up(log::Level::kError);
  const Options options = parse(argc, argv);
  const std::string program = options.alone ? "" : bench::find_perftest().value_or("");
  if (program.empty() && !options.alone)
    fmt::print("ucx_perftest is not there (package ucx-utils): no comparison\n");
  bool all = true;
  for (const std::string lanes : {"shm", "tcp", "fifo"}) {
    if (options.lanes.empty() || options.lanes == lanes)
      all = compare(options, program, lanes) && all;
  }
  fmt::print("bar, from 1 MiB: at least {} of perftest: {}\n", kBar, all ? "held" : "missed");
  return options.check && !all ? 1 : 0;
}
