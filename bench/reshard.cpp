// Publishing weights, against what the machine gives in the same run.
//
//   bench_reshard [--check] [--mib N] [--rounds N] [--only local|direct|tcp] [--small-pages]
//                 [--json]
//
// One model, train tp 2 → rollout tp 2 on other ranks (and tp 4 → tp 1 for strided boxes), with the
// checks that are on by default:
//   local   in one process, source to plain buffers            ≥ 0.8 of memcpy, one thread each
//   direct  two processes of one host, direct copies           ≥ 0.5 of memcpy by as many threads
//   tcp     two processes, UCX over loopback                   ≥ 0.8 of `ucx_perftest` (ucp_am_bw)
//           of one message as large as the model, as cold as ours; what it gives for 4 MiB again
//           and again, which stay in the caches of both ends, is printed, not judged
//   gather  the usual way over Gloo: all ranks gather all of every tensor and slice; no bar
// All memory of all of them is in huge pages (the program starts itself anew with
// GLIBC_TUNABLES=glibc.malloc.hugetlb=1; --small-pages: not), as weights should be: direct copies
// walk over the pages of both ends. A publication is timed whole, from begin to commit; memcpy
// copies as many bytes between places that are both in memory already. What the same ways give
// without checks, and with crc32c too, is printed, not judged. Rounds of all of them alternate, and
// the median of the ratios counts, so that what else the machine does weighs on all. Also: bytes on
// the wire against the plan's lower bound, and the extra memory of the processes at their peak, at
// most 4 buckets + 16 MiB. With
// --check it ends with 1 when a bar is missed.

#include "bench/elapsed.hpp"
#include "bench/perftest.hpp"
#include "runtime/base/log.hpp"
#include "runtime/comm/collective_gloo.hpp"
#include "tests/reshard/execution/world.hpp"
#include "tests/reshard/process/member_process.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>

namespace {

using namespace troupe;
using namespace troupe::reshard;
using namespace troupe::reshard::testing;
using Clock = std::chrono::steady_clock;

constexpr double kMiB = 1048576;
constexpr std::int64_t kBucket = std::int64_t{16} << 20;

struct Options {
  bool check = false;
  bool small_pages = false;
  bool json = false;
  std::int64_t mib = 256;
  int rounds = 5;
  std::string only;  ///< local, direct or tcp
};

double median(std::vector<double> values) {
  TROUPE_CHECK(!values.empty(), "no rounds");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What some rounds gave, in MiB/s; those of one index ran one after another.
using Speeds = std::vector<double>;

/// True when the median of the ratios reaches the bar; 0 is none.
bool say(const std::string& name, const Speeds& ours, const Speeds& theirs, double bar,
         const std::string& what) {
  Speeds ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / theirs[i]);
  const bool held = median(ratios) >= bar;
  fmt::print("{:<34} {:>8.0f} MiB/s   {:<18} {:>8.0f} MiB/s   ratio {:.2f}{}\n", name, median(ours),
             what, median(theirs), median(ratios),
             bar == 0 ? "" : fmt::format(", bar {}{}", bar, held ? "" : "   MISSED"));
  std::fflush(stdout);
  return held;
}

/// Two places of so many bytes, all in memory.
class Copy {
 public:
  Copy(std::int64_t bytes, std::size_t threads) : threads_(threads) {
    from_.assign(static_cast<std::size_t>(bytes), std::byte{1});
    to_.assign(from_.size(), std::byte{2});
  }
  double speed() {
    const std::size_t share = from_.size() / threads_;
    const auto start = Clock::now();
    std::vector<std::thread> others;
    const auto copy = [&](std::size_t i) {
      const std::size_t end = i + 1 == threads_ ? from_.size() : (i + 1) * share;
      std::memcpy(to_.data() + i * share, from_.data() + i * share, end - i * share);
    };
    for (std::size_t i = 1; i < threads_; ++i) others.emplace_back(copy, i);
    copy(0);
    for (std::thread& other : others) other.join();
    return static_cast<double>(from_.size()) / kMiB / bench::seconds_since(start);
  }

 private:
  std::size_t threads_;
  std::vector<std::byte> from_, to_;
};

constexpr Checks kDefault{};
constexpr Checks kNone{.chunk_crc = false, .tensor_sums = false};
constexpr Checks kWithCrc{.chunk_crc = true, .tensor_sums = true};

std::int64_t slice_bytes(const PublicationPlan& plan, std::int32_t rank) {
  std::int64_t bytes = 0;
  for (const std::int32_t op : plan.receive_order(rank).ops)
    bytes += plan.plan().bytes_of(plan.op(op));
  return bytes;
}

/// In one process, one target after another, as one engine thread does.
double publish_here(World& world, std::int64_t version, const Checks& checks, std::int64_t bytes) {
  Command command{.kind = CommandKind::kBegin,
                  .id = world.id(version),
                  .checks = checks,
                  .members = {},
                  .cause = {}};
  const auto start = Clock::now();
  for (const auto& [rank, source] : world.sources) source->handle(command);
  for (const auto& [rank, target] : world.targets) target->handle(command);
  command.kind = CommandKind::kReceive;
  for (const auto& [rank, target] : world.targets) {
    const Reply reply = target->handle(command);
    TROUPE_CHECK(reply.kind == ReplyKind::kVerified, "{}", reply.error->to_string());
  }
  command.kind = CommandKind::kCommit;
  for (const auto& [rank, target] : world.targets) target->handle(command);
  for (const auto& [rank, source] : world.sources) source->handle(command);
  return static_cast<double>(bytes) / kMiB / bench::seconds_since(start);
}

bool bench_local(const Options& options, const std::string& name, const std::string& text) {
  const Case one = case_of(fmt::format(fmt::runtime(name), options.mib));
  World world(one.source, one.target, one.options, {});
  std::int64_t bytes = 0;
  for (const auto& [rank, target] : world.targets) bytes += slice_bytes(*world.plan, rank);
  Copy copy(bytes, 1);
  Speeds checked, bare, copies;
  std::int64_t version = 0;
  for (int round = 0; round <= options.rounds; ++round) {
    const double first = publish_here(world, ++version, kDefault, bytes);
    const double second = copy.speed();
    const double third = publish_here(world, ++version, kNone, bytes);
    if (round == 0) continue;  // pages, buckets and places of everything
    checked.push_back(first);
    copies.push_back(second);
    bare.push_back(third);
  }
  const bool held = say(text, checked, copies, 0.8, "memcpy");
  say(text + ", no checks", bare, copies, 0, "memcpy");
  return held;
}

struct RemoteResult {
  Speeds checked, bare, with_crc, theirs;
  std::int64_t network = 0;
  std::int64_t lower = 0;
  double extra_mib = 0;
};

/// One source process, one target process; the whole model each.
class Remote {
 public:
  Remote(const Options& options, const std::string& lanes, const std::string& name)
      : world_(std::filesystem::read_symlink("/proc/self/exe").string(),
               fmt::format(fmt::runtime(name), options.mib), lanes, kBucket) {
    world_.fill_sources(1);
    for (const RankLayout& rank : world_.plan->target().ranks)
      bytes_ += slice_bytes(*world_.plan, rank.rank);
  }
  /// The median of so many publications after one that does not count, seconds.
  double seconds(int rounds) {
    RemoteResult unused;
    Speeds speeds;
    for (int round = 0; round <= rounds; ++round) {
      const double speed = publish(kDefault, unused);
      if (round > 0) speeds.push_back(speed);
    }
    return static_cast<double>(bytes_) / kMiB / median(speeds);
  }
  std::int64_t bytes() const { return bytes_; }
  /// `theirs` runs between ours, and may want to know about how fast it will be.
  RemoteResult run(int rounds, const std::function<double(double)>& theirs) {
    RemoteResult all;
    std::map<Member, std::int64_t> marks;
    for (const auto& [member, link] : world_.links) marks[member] = std::stoll(link->ask("mark"));
    for (int round = 0; round <= rounds; ++round) {
      const double checked = publish(kDefault, all);
      const double other = theirs(checked);
      const double bare = publish(kNone, all);
      const double with_crc = publish(kWithCrc, all);
      if (round == 0) continue;  // connections, and pages that nobody had touched
      all.checked.push_back(checked);
      all.theirs.push_back(other);
      all.bare.push_back(bare);
      all.with_crc.push_back(with_crc);
    }
    for (const auto& [member, link] : world_.links) {
      const std::int64_t grown = std::stoll(link->ask("peak")) - marks[member];
      all.extra_mib = std::max(all.extra_mib, static_cast<double>(grown) / 1024);
    }
    all.lower = world_.plan->plan().network_bytes();
    return all;
  }

 private:
  double publish(const Checks& checks, RemoteResult& all) {
    PublishOptions publication = world_.next(++version_);
    publication.checks = checks;
    const auto start = Clock::now();
    const auto outcome = world_.publish(publication);
    TROUPE_CHECK(outcome.has_value(), "{}", outcome.error().to_string());
    const double speed = static_cast<double>(bytes_) / kMiB / bench::seconds_since(start);
    all.network = 0;
    for (const auto& [member, received] : outcome->received) all.network += received.network_bytes;
    return speed;
  }

  ProcessWorld world_;
  std::int64_t version_ = 0;
  std::int64_t bytes_ = 0;
};

bool say_all(const std::string& lanes, const RemoteResult& all, double bar,
             const std::string& what) {
  const bool held = say(lanes, all.checked, all.theirs, bar, what);
  say(lanes + ", no checks", all.bare, all.theirs, 0, what);
  say(lanes + ", crc32c too", all.with_crc, all.theirs, 0, what);
  return held;
}

/// Every rank gathers every tensor of the trainer over Gloo and cuts its part out of it.
double bench_gather(const Options& options, const std::string& name) {
  const Case one = case_of(fmt::format(fmt::runtime(name), options.mib));
  const auto plan = *PublicationPlan::make(one.source, one.target, one.options);
  Memory source = empty_memory(plan->source());
  const auto ranks = static_cast<int>(plan->source().ranks.size());
  std::int64_t bytes = 0;
  for (const RankLayout& rank : plan->target().ranks) bytes += slice_bytes(*plan, rank.rank);
  const auto store = std::make_shared<runtime::LocalRendezvous>();
  std::vector<std::thread> threads;
  const auto start = Clock::now();
  std::atomic<bool> failed{false};
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      runtime::GlooGroupOptions group{.name = "gather", .rank = rank, .size = ranks};
      auto made =
          runtime::make_gloo_collective(group, store, Deadline::in(std::chrono::seconds(20)));
      if (!made) {
        failed = true;
        return;
      }
      const auto& mine =
          source.buffers.at(plan->source().ranks[static_cast<std::size_t>(rank)].rank);
      for (const auto& buffer : mine) {
        constexpr std::size_t kStep = std::size_t{8} << 20;
        for (std::size_t i = 0; i < buffer.size(); i += kStep) {
          const auto part =
              std::as_bytes(std::span(buffer)).subspan(i, std::min(kStep, buffer.size() - i));
          const auto all = (*made)->all_gather_bytes(part, Deadline::in(std::chrono::seconds(20)));
          if (!all) failed = true;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  TROUPE_CHECK(!failed, "gather over gloo failed");
  return static_cast<double>(bytes) / kMiB / bench::seconds_since(start);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--check") options.check = true;
    if (word == "--small-pages") options.small_pages = true;
    if (word == "--json") options.json = true;
    if (word == "--mib") options.mib = std::stoll(value);
    if (word == "--only") options.only = value;
    if (word == "--rounds") options.rounds = std::stoi(value);
  }
  return options;
}

bool wants(const Options& options, std::string_view part) {
  return options.only.empty() || options.only == part;
}

bool check_cost(const std::string& text, const RemoteResult& one) {
  const double most = 4 * static_cast<double>(kBucket) / kMiB + 16;
  const bool fits = one.network == one.lower && one.extra_mib <= most;
  fmt::print(
      "{:<7} wire {} bytes, lower bound {}; a member grew by {:.1f} MiB at its peak, at most "
      "{:.0f}{}\n",
      text, one.network, one.lower, one.extra_mib, most, fits ? "" : "   MISSED");
  return fits;
}

constexpr const char* kTwoByTwo = "model:{}:2:1:2:1:8:8";
constexpr const char* kFourToOne = "model:{}:4:1:1:1:8:8";
constexpr const char* kPair = "model:{}:1:1:1:1:8:8";

bool bench_direct(const Options& options) {
  Remote remote(options, "direct", kPair);
  const auto threads = static_cast<std::size_t>(runtime::TransportOptions().copy_threads);
  Copy copy(options.mib << 20, threads);
  const RemoteResult all = remote.run(options.rounds, [&](double) { return copy.speed(); });
  const bool held = say_all("direct", all, 0.5, fmt::format("memcpy, {} threads", threads));
  return check_cost("direct", all) && held;
}

bool bench_tcp(const Options& options) {
  const std::string program = bench::find_perftest().value_or("");
  if (program.empty()) {
    fmt::print("ucx_perftest is not there (package ucx-utils): no comparison\n");
    return false;
  }
  Remote remote(options, "tcp", kPair);
  // Judged by the same bytes, as copies are by memcpy. A small message that is sent again and again
  // never leaves the caches; what that gives is printed beside it.
  Speeds warm;
  const RemoteResult all = remote.run(options.rounds, [&](double guess) {
    bench::PerftestRun run{
        .program = program, .lanes = "tcp", .bytes = std::int64_t{4} << 20, .guess = guess};
    warm.push_back(bench::perftest(run));
    run.bytes = options.mib << 20;
    return bench::perftest(run);
  });
  warm.erase(warm.begin());  // of the round that does not count
  bool held = say_all("tcp", all, 0.8, "ucx_perftest, same bytes");
  say("tcp", all.checked, warm, 0, "perftest, 4 MiB again and again");
  held = check_cost("tcp", all) && held;
  const double gathered = bench_gather(options, kTwoByTwo);
  say("tcp", {median(all.checked)}, {gathered}, 0, "gather over Gloo");
  return held;
}

constexpr const char* kFsdpToTwo = "fsdp:{}:1:2:2:1:8:8";

void print_json(const Options& options) {
  const auto seconds = [&options](const std::string& lanes) {
    Remote remote(options, lanes, kFsdpToTwo);
    return std::pair{remote.seconds(options.rounds), remote.bytes()};
  };
  const auto [direct, bytes] = seconds("direct");
  const double tcp = seconds("tcp").first;
  fmt::print("{{\"direct\": {:.6f}, \"tcp\": {:.6f}, \"bytes\": {}}}\n", direct, tcp, bytes);
}

bool bench_all(const Options& options) {
  bool held = true;
  if (wants(options, "local")) {
    held = bench_local(options, kTwoByTwo, "local, tp 2 to tp 2");
    held = bench_local(options, kFourToOne, "local, tp 4 to tp 1") && held;
  }
  if (wants(options, "direct")) held = bench_direct(options) && held;
  if (wants(options, "tcp")) held = bench_tcp(options) && held;
  return held;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 8 && std::string_view(argv[1]) == "--member") return run_member(argc, argv);
  log::set_up(log::Level::kError);
  const Options options = parse(argc, argv);
  constexpr const char* kTunables = "GLIBC_TUNABLES";
  if (!options.small_pages && std::getenv(kTunables) == nullptr) {
    ::setenv(kTunables, "glibc.malloc.hugetlb=1", 1);
    ::execv("/proc/self/exe", argv);  // it is read when a program starts
  }
  if (options.json) {
    print_json(options);
    return 0;
  }
  const bool held = bench_all(options);
  fmt::print("bars: {}\n", held ? "held" : "missed");
  return options.check && !held ? 1 : 0;
}
