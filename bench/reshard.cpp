// Publishing weights, against what the machine gives in the same run.
//
//   bench_reshard [--check] [--mib N] [--rounds N]
//
// One model, train tp 2 → rollout tp 2 on other ranks (and tp 4 → tp 1 for strided boxes):
//   local   in one process, source to plain buffers            ≥ 0.8 of memcpy of the same bytes
//   direct  two processes of one host, direct copies           ≥ 0.5 of the same memcpy
//   tcp     two processes, UCX over loopback                   ≥ 0.8 of `ucx_perftest` (ucp_am_bw)
//   gather  the usual way over Gloo: all ranks gather all of every tensor and slice; no bar
// The bars are for the ways themselves; what checks cost stands beside them: on two cores the sums
// of both ends compete with the copies. Also: bytes on the wire against the plan's lower bound, and
// the extra memory of the processes at their peak, at most 4 buckets + 16 MiB. Rounds of ours and
// of what we compare with alternate, and the best of each counts. With --check it ends with 1 when
// a bar is missed.

#include "bench/perftest.hpp"
#include "runtime/base/log.hpp"
#include "runtime/comm/collective_gloo.hpp"
#include "tests/reshard/execution/world.hpp"
#include "tests/reshard/process/member_process.hpp"

#include <fmt/format.h>

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
  std::int64_t mib = 256;
  int rounds = 5;
  std::string only;  ///< local, direct or tcp
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool say(const std::string& name, double ours, double theirs, double bar, const std::string& what) {
  const double ratio = ours / theirs;
  const bool held = ratio >= bar;
  fmt::print("{:<34} {:>8.0f} MiB/s   {:<22} {:>8.0f} MiB/s   ratio {:.2f}{}\n", name, ours, what,
             theirs, ratio,
             bar == 0 ? ""
             : held   ? ""
                      : "   MISSED");
  std::fflush(stdout);
  return held;
}

/// MiB/s of copying `bytes` between two places that are no longer in a cache.
double memcpy_speed(std::vector<std::byte>& to, const std::vector<std::byte>& from) {
  const auto start = Clock::now();
  std::memcpy(to.data(), from.data(), from.size());
  return static_cast<double>(from.size()) / kMiB / seconds_since(start);
}

std::int64_t slice_bytes(const PublicationPlan& plan, std::int32_t rank) {
  std::int64_t bytes = 0;
  for (const std::int32_t op : plan.receive_order(rank).ops)
    bytes += plan.plan().bytes_of(plan.op(op));
  return bytes;
}

/// In one process, one target after another, as one engine thread does.
bool bench_local(const Options& options, const std::string& name, const std::string& text,
                 const Checks& checks, double bar) {
  const Case one = case_of(fmt::format(fmt::runtime(name), options.mib));
  World world(one.source, one.target, one.options, {});
  std::int64_t bytes = 0;
  for (const auto& [rank, target] : world.targets) bytes += slice_bytes(*world.plan, rank);
  std::vector<std::byte> from(static_cast<std::size_t>(bytes), std::byte{1});
  std::vector<std::byte> to(from.size(), std::byte{2});
  double ours = 0;
  double theirs = 0;
  for (int round = 0; round <= options.rounds; ++round) {
    theirs = std::max(theirs, memcpy_speed(to, from));
    const PublicationId id = world.id(round + 1);
    Command command{
        .kind = CommandKind::kBegin, .id = id, .checks = checks, .members = {}, .cause = {}};
    for (const auto& [rank, source] : world.sources) source->handle(command);
    for (const auto& [rank, target] : world.targets) target->handle(command);
    command.kind = CommandKind::kReceive;
    const auto start = Clock::now();
    for (const auto& [rank, target] : world.targets) {
      const Reply reply = target->handle(command);
      TROUPE_CHECK(reply.kind == ReplyKind::kVerified, "{}", reply.error->to_string());
    }
    if (round > 0) ours = std::max(ours, static_cast<double>(bytes) / kMiB / seconds_since(start));
    command.kind = CommandKind::kCommit;
    for (const auto& [rank, target] : world.targets) target->handle(command);
    for (const auto& [rank, source] : world.sources) source->handle(command);
  }
  return say(text, ours, theirs, bar, "memcpy");
}

struct RemoteResult {
  double speed = 0;
  std::int64_t network = 0;
  std::int64_t lower = 0;
  double extra_mib = 0;
};

/// One source process, one target process; the whole model each.
RemoteResult bench_remote(const Options& options, const std::string& lanes, const std::string& name,
                          const Checks& checks, const std::function<void(double)>& between) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  ProcessWorld world(self, fmt::format(fmt::runtime(name), options.mib), lanes, kBucket);
  world.fill_sources(1);
  RemoteResult best;
  std::int64_t bytes = 0;
  for (const RankLayout& rank : world.plan->target().ranks)
    bytes += slice_bytes(*world.plan, rank.rank);
  std::map<Member, std::int64_t> marks;
  for (const auto& [member, link] : world.links) marks[member] = std::stoll(link->ask("mark"));
  for (int round = 0; round <= options.rounds; ++round) {
    PublishOptions publication = world.next(round + 1);
    publication.checks = checks;
    const auto start = Clock::now();
    const auto outcome = world.publish(publication);
    TROUPE_CHECK(outcome.has_value(), "{}", outcome.error().to_string());
    const double speed = static_cast<double>(bytes) / kMiB / seconds_since(start);
    if (round > 0) best.speed = std::max(best.speed, speed);
    best.network = 0;
    for (const auto& [member, received] : outcome->received) best.network += received.network_bytes;
    between(speed);
  }
  for (const auto& [member, link] : world.links) {
    const std::int64_t grown = std::stoll(link->ask("peak")) - marks[member];
    best.extra_mib = std::max(best.extra_mib, static_cast<double>(grown) / 1024);
  }
  best.lower = world.plan->plan().network_bytes();
  return best;
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
  return static_cast<double>(bytes) / kMiB / seconds_since(start);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--check") options.check = true;
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

constexpr Checks kNoChecks{.chunk_crc = false, .tensor_sums = false};
constexpr Checks kCrcOnly{.chunk_crc = true, .tensor_sums = false};
constexpr Checks kSumsOnly{.chunk_crc = false, .tensor_sums = true};
constexpr const char* kTwoByTwo = "model:{}:2:1:2:1:8:8";
constexpr const char* kPair = "model:{}:1:1:1:1:8:8";

bool bench_direct(const Options& options) {
  const auto bytes = static_cast<std::size_t>(options.mib) << 20;
  std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes, std::byte{2});
  double copy = 0;
  const auto copies = [&](double) { copy = std::max(copy, memcpy_speed(to, from)); };
  const RemoteResult all = bench_remote(options, "direct", kPair, {}, copies);
  const RemoteResult crc = bench_remote(options, "direct", kPair, kCrcOnly, copies);
  const RemoteResult sums = bench_remote(options, "direct", kPair, kSumsOnly, copies);
  const RemoteResult bare = bench_remote(options, "direct", kPair, kNoChecks, copies);
  bool held = say("direct, no checks", bare.speed, copy, 0.5, "memcpy");
  say("direct, tensor sums", sums.speed, copy, 0, "memcpy");
  say("direct, crc of each chunk", crc.speed, copy, 0, "memcpy");
  say("direct, all checks", all.speed, copy, 0, "memcpy");
  return check_cost("direct", all) && held;
}

bool bench_tcp(const Options& options) {
  const std::string program = bench::find_perftest().value_or("");
  if (program.empty()) {
    fmt::print("ucx_perftest is not there (package ucx-utils): no comparison\n");
    return false;
  }
  double theirs = 0;
  const auto perftests = [&](double guess) {
    theirs = std::max(
        theirs,
        bench::perftest(
            {.program = program, .lanes = "tcp", .bytes = std::int64_t{4} << 20, .guess = guess}));
  };
  const RemoteResult crc = bench_remote(options, "tcp", kPair, kCrcOnly, perftests);
  const RemoteResult all = bench_remote(options, "tcp", kPair, {}, perftests);
  const RemoteResult bare = bench_remote(options, "tcp", kPair, kNoChecks, perftests);
  bool held = say("tcp, no checks", bare.speed, theirs, 0.8, "ucx_perftest");
  say("tcp, crc of each chunk", crc.speed, theirs, 0, "ucx_perftest");
  say("tcp, all checks", all.speed, theirs, 0, "ucx_perftest");
  held = check_cost("tcp", all) && held;
  const double gathered = bench_gather(options, kTwoByTwo);
  say("tcp, all checks", all.speed, gathered, 0, "gather over Gloo");
  return held;
}

bool bench_all(const Options& options) {
  bool held = true;
  if (wants(options, "local")) {
    held = bench_local(options, kTwoByTwo, "local, tp 2 to tp 2", kNoChecks, 0.8);
    held =
        bench_local(options, "model:{}:4:1:1:1:8:8", "local, tp 4 to tp 1", kNoChecks, 0.8) && held;
    bench_local(options, kTwoByTwo, "local, tp 2 to tp 2, tensor sums", {}, 0);
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
  const bool held = bench_all(options);
  fmt::print("bars: {}\n", held ? "held" : "missed");
  return options.check && !held ? 1 : 0;
}
