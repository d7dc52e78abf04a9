// Proves that publications between real processes end bit-equal to gather-then-slice, over direct
// copies and over TCP, and that a process which is killed or stopped at any time of one leaves
// every other target at the old version, with an error that names a rank, in bounded time.

#include "tests/reshard/process/member_process.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

namespace troupe::reshard::testing {
namespace {

using namespace std::chrono_literals;

std::uint64_t fresh_seed() {
  if (const char* wanted = std::getenv("TROUPE_SEED")) return std::stoull(wanted);
  return static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

void expect_equal(ProcessWorld& world, std::uint64_t round, std::int64_t version) {
  Memory source = empty_memory(world.plan->source());
  fill(source, round);
  const Memory wanted = gather_then_slice(source, world.plan->target(), world.case_.options);
  for (const auto& [rank, buffers] : wanted.buffers) {
    const auto [found_version, crc] = world.look(rank);
    EXPECT_EQ(found_version, version) << "target rank " << rank;
    EXPECT_EQ(crc, crc_of(buffers)) << "target rank " << rank;
  }
}

void run_cases(const std::string& lanes) {
  const std::uint64_t first = fresh_seed();
  const auto end = std::chrono::steady_clock::now() + 3s;
  int cases = 0;
  for (std::uint64_t seed = first; std::chrono::steady_clock::now() < end; ++seed) {
    const std::string name = "seed:" + std::to_string(seed);
    const Case one = case_of(name);
    if (one.source.ranks.size() + one.target.ranks.size() > 10) continue;
    SCOPED_TRACE(name + ": " + one.text);
    ProcessWorld world(TROUPE_PUBLICATION_PEER, name, lanes, std::int64_t{256} << (seed % 6));
    for (std::int64_t version = 1; version <= 2; ++version) {
      const auto round = static_cast<std::uint64_t>(version);
      world.fill_sources(round);
      const auto outcome = world.publish(world.next(version));
      ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
      expect_equal(world, round, version);
    }
    if (::testing::Test::HasFailure()) return;
    ++cases;
  }
  std::printf("%d cases from seed %llu\n", cases, static_cast<unsigned long long>(first));
  EXPECT_GT(cases, 0);
}

TEST(ProcessPublication, OverDirectCopiesTargetsEqualGatherThenSlice) { run_cases("direct"); }

TEST(ProcessPublication, OverTcpTargetsEqualGatherThenSlice) { run_cases("tcp"); }

/// 24 MiB, two sources of tp 2, two targets of tp 2 on another node.
const std::string kModel = "model:24:2:1:2:1:8:8";

class Fault : public ::testing::Test {
 protected:
  explicit Fault() : world_(TROUPE_PUBLICATION_PEER, kModel, "tcp", 256 << 10) {
    world_.fill_sources(1);
    const auto first = world_.publish(world_.next(1));
    EXPECT_TRUE(first.has_value()) << first.error().to_string();
    for (const RankLayout& rank : world_.plan->target().ranks)
      before_[rank.rank] = world_.look(rank.rank);
    world_.fill_sources(2);
  }
  /// Signals a member `after` the publication began, and says how it ended and how long that took.
  std::pair<result<PublicationOutcome>, Duration> publish_with(const Member& victim, int signal,
                                                               Duration after) {
    PublishOptions options = world_.next(2);
    options.begin_within = 1s;
    options.receive_within = 2s;
    options.commit_within = 1s;
    std::thread striker([&] {
      std::this_thread::sleep_for(after);
      world_.links.at(victim)->child().signal(signal);
    });
    const auto start = std::chrono::steady_clock::now();
    auto outcome = world_.publish(options);
    const Duration took = std::chrono::steady_clock::now() - start;
    striker.join();
    return {std::move(outcome), took};
  }
  void expect_old(const Member& victim) {
    for (const auto& [rank, seen] : before_) {
      if (victim == Member{Side::kTarget, rank}) continue;
      EXPECT_EQ(world_.look(rank), seen) << "target rank " << rank;
    }
  }

  ProcessWorld world_;
  std::map<std::int32_t, std::pair<std::int64_t, std::uint32_t>> before_;
};

TEST_F(Fault, AKilledMemberIsNoticedAndTheOldVersionServes) {
  Rng rng(fresh_seed());
  const std::vector<Member> victims{{Side::kSource, 1}, {Side::kTarget, 8}};
  const Member victim = victims[rng.below(2)];
  const auto after = std::chrono::microseconds(rng.below(30'000));
  SCOPED_TRACE(member_text(victim));
  const auto [outcome, took] = publish_with(victim, SIGKILL, after);
  if (outcome) return;  // it was over before
  EXPECT_LE(took, after + 1500ms) << outcome.error().to_string();
  EXPECT_NE(outcome.error().to_string().find("rank"), std::string::npos);
  if (outcome.error().message.find("targets serve it") == std::string::npos) expect_old(victim);
}

TEST_F(Fault, AStoppedSourceEndsThePublicationAtItsDeadline) {
  world_.links.at({Side::kSource, 0})->child().stop();
  const auto [outcome, took] = publish_with({Side::kSource, 0}, SIGSTOP, 1ms);
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, ErrorCode::kDeadline);
  EXPECT_NE(outcome.error().message.find("source rank 0"), std::string::npos)
      << outcome.error().to_string();
  EXPECT_LE(took, 10s);
  expect_old({Side::kSource, 0});
}

TEST_F(Fault, AMemberStoppedAtAnyTimeLeavesTheOldVersion) {
  Rng rng(fresh_seed());
  const std::vector<Member> victims{{Side::kSource, 1}, {Side::kTarget, 9}};
  const Member victim = victims[rng.below(2)];
  const auto [outcome, took] =
      publish_with(victim, SIGSTOP, std::chrono::microseconds(rng.below(30'000)));
  EXPECT_LE(took, 10s);
  if (outcome) return;
  SCOPED_TRACE(outcome.error().to_string());
  if (outcome.error().message.find("targets serve it") == std::string::npos) expect_old(victim);
  // Once it goes on, a new attempt goes well.
  world_.links.at(victim)->child().signal(SIGCONT);
  std::optional<result<PublicationOutcome>> again;
  for (int attempt = 0; attempt < 20 && (!again || !again->has_value()); ++attempt) {
    std::this_thread::sleep_for(200ms);
    again = world_.publish(world_.next(3));
  }
  EXPECT_TRUE(again->has_value()) << again->error().to_string();
  for (const auto& [rank, seen] : before_) EXPECT_EQ(world_.look(rank).first, 3);
}

}  // namespace
}  // namespace troupe::reshard::testing
