// Proves publications between device buffers over NCCL: bit-equal to gathering and slicing for
// random models and meshes, many in a row without growth, and whatever fails at whatever moment,
// the old version keeps serving, the error names rank and cause in time, and a newer membership
// publishes again. The library is the fake one, whose device memory the host cannot read.

#include "reshard/nccl/nccl_peer.hpp"
#include "tests/reshard/nccl/device_world.hpp"
#include "tests/reshard/random_case.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace troupe::reshard::nccl::testing {
namespace {

using reshard::testing::Case;
using reshard::testing::CaseMaker;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

/// Two sources that cut by rows, two targets on another node of which one hands on to the other,
/// and a rank that is both: enough for every kind of operation.
struct Sides {
  Roster source, target;
};
Sides some_sides() {
  constexpr std::int64_t kRows = 48, kCols = 40;
  Sides sides;
  for (std::int32_t t = 0; t < 3; ++t)
    sides.source.tensors.push_back({.name = "layers." + std::to_string(t) + ".weight",
                                    .dtype = t == 1 ? DType::kBf16 : DType::kF32,
                                    .rows = kRows,
                                    .cols = kCols,
                                    .layer = t});
  sides.target.tensors = sides.source.tensors;
  const auto rank_of = [](std::int32_t rank, std::int32_t node, Box box, std::int64_t padding) {
    RankLayout layout{.rank = rank, .node = node, .segments = {}, .buffer_elements = {}};
    for (std::int32_t t = 0; t < 3; ++t) {
      const std::int64_t stride = box.cols() + padding;
      layout.segments.push_back({t, box, t, 0, stride});
      layout.buffer_elements.push_back(box.rows() * stride);
    }
    return layout;
  };
  sides.source.ranks = {rank_of(0, 0, {0, kRows / 2, 0, kCols}, 0),
                        rank_of(1, 0, {kRows / 2, kRows, 0, kCols}, 3)};
  sides.target.ranks = {rank_of(1, 0, {0, kRows, 0, kCols / 2}, 0),
                        rank_of(2, 1, {0, kRows, 0, kCols}, 0),
                        rank_of(3, 1, {0, kRows, kCols / 4, kCols}, 5)};
  return sides;
}

class PublicationTest : public DeviceTest {
 protected:
  void make(const DeviceWorldOptions& options = {}) {
    const Sides sides = some_sides();
    world_ = std::make_unique<DeviceWorld>(sides.source, sides.target, PlanOptions{}, options);
    world_->join_all();
  }
  void publish_well(std::int64_t version) {
    world_->fill_source(static_cast<std::uint64_t>(version));
    const auto outcome = world_->publish_as(world_->id(version));
    ASSERT_TRUE(outcome) << outcome.error().to_string();
    world_->expect_published(version);
  }
  /// Publishes version 2 under faults: it must fail in time, and change nothing that serves.
  Error publish_badly(Duration within = std::chrono::seconds(10)) {
    const auto before = world_->all_active();
    const auto began = Clock::now();
    world_->fill_source(2);
    const auto outcome = world_->publish_as(world_->id(2));
    EXPECT_LT(Clock::now() - began, within);
    EXPECT_FALSE(outcome);
    for (const auto& [rank, sink] : world_->sinks) EXPECT_EQ(sink->active().value, 1);
    EXPECT_EQ(world_->all_active(), before);
    return outcome ? Error{} : outcome.error();
  }
  /// Everybody forms a new group, and the next publication succeeds.
  void recover() {
    desk().clear_faults();
    world_->intercept = nullptr;
    for (const auto& [rank, peer] : world_->peers)
      peer->abort(
          Error{.code = ErrorCode::kAborted, .message = "regroup", .origin = {}, .causes = {}});
    world_->join_all();
    publish_well(3);
  }
  /// For each rank its first, middle and last group, each in a group of its own. Ranks of the plan
  /// are those of NCCL here.
  template <class Visit>
  void at_each_place(Visit visit) {
    for (const auto& [rank, peer] : world_->peers) {
      const auto rounds = cut_rounds(*world_->plan, rank, kBucketBytesMin);
      const int count = static_cast<int>(rounds->size());
      for (const int group : std::set<int>{0, count / 2, count - 1}) {
        SCOPED_TRACE("rank " + std::to_string(rank) + ", group " + std::to_string(group));
        world_->join_all();  // groups count from 0 again
        visit(rank, group);
        desk().clear_faults();
      }
    }
  }
  void TearDown() override {
    desk().release();
    world_.reset();
    DeviceTest::TearDown();
  }
  std::unique_ptr<DeviceWorld> world_;
};

TEST_F(PublicationTest, EveryTargetGetsWhatGatheringAndSlicingGives) {
  make();
  publish_well(1);
  const auto outcome = world_->publish_as(world_->id(2));
  ASSERT_TRUE(outcome);
  std::int64_t local = 0, pulled = 0, relayed = 0;
  ASSERT_EQ(outcome->received.size(), 3U);
  for (const auto& [member, received] : outcome->received) {
    local += received.local_bytes;
    pulled += received.pulled_bytes;
    relayed += received.relayed_bytes;
    EXPECT_GT(received.buckets, 1);
    EXPECT_LE(received.staging_bytes, 4 * kBucketBytesMin + 4 * 4096);
  }
  const Plan& plan = world_->plan->plan();
  EXPECT_EQ(local, plan.bytes_of_kind(OpKind::kLocal));
  EXPECT_EQ(relayed, plan.bytes_of_kind(OpKind::kFanOut) + plan.bytes_of_kind(OpKind::kRelay));
  EXPECT_EQ(pulled, plan.network_bytes() + plan.bytes_of_kind(OpKind::kNode) +
                        plan.bytes_of_kind(OpKind::kFanOut));
  EXPECT_GT(local, 0);
  EXPECT_GT(relayed, 0);
}

TEST_F(PublicationTest, WhatIsContiguousAtBothEndsIsNeverStaged) {
  Roster source{
      .tensors = {{.name = "w", .dtype = DType::kF32, .rows = 32, .cols = 16, .layer = 0}},
      .ranks = {{.rank = 0,
                 .node = 0,
                 .segments = {{0, {0, 32, 0, 16}, 0, 0, 16}},
                 .buffer_elements = {512}}}};
  Roster target = source;
  target.ranks = {
      {.rank = 1, .node = 0, .segments = {{0, {0, 16, 0, 16}, 0, 0, 16}}, .buffer_elements = {256}},
      {.rank = 2,
       .node = 0,
       .segments = {{0, {16, 32, 0, 16}, 0, 0, 20}},
       .buffer_elements = {320}}};
  world_ = std::make_unique<DeviceWorld>(source, target);
  world_->join_all();
  publish_well(1);
  const auto outcome = world_->publish_as(world_->id(2));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->received.at({Side::kTarget, 1}).in_place_bytes, 1024);
  EXPECT_EQ(outcome->received.at({Side::kTarget, 2}).in_place_bytes, 0) << "padded rows";
}

TEST_F(PublicationTest, RandomModelsAndMeshesArriveBitForBit) {
  constexpr std::uint64_t kSeed = 7100;
  std::int64_t published = 0;
  for (std::uint64_t i = 0; i < 30; ++i) {
    SCOPED_TRACE("seed " + std::to_string(kSeed + i));
    CaseMaker maker(kSeed + i);
    const Case one = i % 3 == 0 ? maker.box_case() : maker.model_case();
    Rng rng(kSeed + i);
    desk().reset({.in_progress_polls = static_cast<int>(rng.below(3)),
                  .abort_ms = 0,
                  .delay_queries = static_cast<std::int64_t>(rng.below(3))});
    DeviceWorldOptions options;
    options.bucket_bytes = kBucketBytesMin << rng.below(3);
    DeviceWorld world(one.source, one.target, one.options, options);
    if (world.peers.size() > 12) continue;  // three threads each, on few cores
    world.join_all();
    const Checks checks{.chunk_crc = rng.below(2) == 0, .tensor_sums = rng.below(2) == 0};
    for (std::int64_t version = 1; version <= 2; ++version) {
      world.fill_source(kSeed + i + static_cast<std::uint64_t>(version));
      const auto outcome = world.publish_as(world.id(version), checks);
      ASSERT_TRUE(outcome) << outcome.error().to_string();
      world.expect_published(version);
    }
    ++published;
    if (HasFailure()) return;
  }
  EXPECT_GT(published, 16);
}

TEST_F(PublicationTest, AHundredInARowKeepAddressesAndMemory) {
  make({.bucket_bytes = 1 << 16});
  publish_well(1);
  publish_well(2);
  const FakeCounts before = desk().counts();
  std::map<std::int32_t, const std::byte*> places;
  for (const auto& [rank, sink] : world_->sinks) places[rank] = sink->active_buffer(0).data();
  for (std::int64_t version = 3; version <= 102; ++version) publish_well(version);
  EXPECT_EQ(desk().counts().allocations, before.allocations);
  EXPECT_EQ(desk().counts().device_bytes, before.device_bytes);
  for (const auto& [rank, sink] : world_->sinks)
    EXPECT_EQ(sink->active_buffer(0).data(), places[rank]);
}

TEST_F(PublicationTest, AGroupThatHangsAnywhereEndsWithTheOldVersion) {
  make({.round_within = std::chrono::milliseconds(500)});  // of healthy rounds too
  publish_well(1);
  at_each_place([&](std::int32_t rank, int group) {
    desk().inject(Fault::kGroupHangs, rank, group, 0);
    const Error error = publish_badly();
    EXPECT_THAT(error.to_string(), HasSubstr("publication of version 2, round"));
    EXPECT_THAT(error.to_string(), HasSubstr("not over in time, and no error was reported"));
  });
  recover();
}

TEST_F(PublicationTest, ErrorsAtEachRoundNameRankAndCause) {
  make();
  publish_well(1);
  at_each_place([&](std::int32_t rank, int group) {
    const bool polled = (rank + group) % 2 == 0;
    desk().inject(polled ? Fault::kAsyncError : Fault::kGroupCallFails, rank, group,
                  static_cast<int>(polled ? Code::kRemoteError : Code::kSystemError));
    const Error error = publish_badly();
    EXPECT_THAT(error.to_string(), HasSubstr("rank " + std::to_string(rank) + ": membership"));
    EXPECT_THAT(error.to_string(),
                HasSubstr(polled ? "told to fail at group " + std::to_string(group)
                                 : std::string("unhandled system error (nccl 2)")));
  });
  recover();
}

TEST_F(PublicationTest, AMemberThatDiesIsNoticedThoughNcclSaysNothing) {
  make({.round_within = std::chrono::minutes(5)});
  publish_well(1);
  // At each step of the protocol: the actor of rank 1's process is gone; its NCCL is silent.
  for (const CommandKind kind : {CommandKind::kBegin, CommandKind::kReceive}) {
    for (const Side side : {Side::kSource, Side::kTarget}) {
      const std::int32_t victim = side == Side::kSource ? 0 : 2;
      SCOPED_TRACE(std::string(command_name(kind)) + " of rank " + std::to_string(victim));
      world_->intercept = [kind, victim](Member member,
                                         const Command& command) -> std::optional<result<Reply>> {
        if (member.rank != victim || command.kind < kind) return std::nullopt;
        // Long enough for the others to be on the wire.
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        return result<Reply>(fail(ErrorCode::kRankDead, "rank {}: killed", victim));
      };
      const Error error = publish_badly();
      EXPECT_EQ(error.code, ErrorCode::kRankDead);
      EXPECT_THAT(error.to_string(), HasSubstr("rank " + std::to_string(victim) + ": killed"));
      recover();
      publish_well(1);
    }
  }
}

TEST_F(PublicationTest, ADeathInTheMiddleOfTheWireFreesEverybodyInTime) {
  make({.round_within = std::chrono::minutes(5)});
  publish_well(1);
  for (const std::int32_t victim : {0, 1, 2, 3}) {
    SCOPED_TRACE("rank " + std::to_string(victim));
    world_->join_all();
    // Its process stops after its first group; the supervisor sees it 100 ms later.
    for (int group = 1; group < 40; ++group) desk().inject(Fault::kGroupHangs, victim, group, 0);
    std::thread supervisor([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (const auto& [rank, peer] : world_->peers)
        peer->abort(Error{.code = ErrorCode::kRankDead,
                          .message = "rank " + std::to_string(victim) + " was killed",
                          .origin = {},
                          .causes = {}});
    });
    const Error error = publish_badly();
    supervisor.join();
    EXPECT_EQ(error.root_cause().message, "rank " + std::to_string(victim) + " was killed");
    EXPECT_THAT(error.to_string(), HasSubstr("round"));
    desk().clear_faults();
  }
  recover();
}

TEST_F(PublicationTest, CorruptBytesAreFoundAndNeverServed) {
  make();
  publish_well(1);
  world_->join_all();
  desk().inject(Fault::kCorruptByte, 0, 0, 0);
  const Error error = publish_badly();
  EXPECT_EQ(error.root_cause().code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.to_string(), HasSubstr("crc32c"));
  EXPECT_THAT(error.to_string(), HasSubstr("from rank 0"));
  EXPECT_THAT(error.to_string(), HasSubstr("layers."));
  // A wrong sum breaks no communicator: the next publication goes over the same one.
  desk().clear_faults();
  publish_well(2);
}

TEST_F(PublicationTest, TensorSumsAloneFindWhatTheWireChanged) {
  make();
  publish_well(1);
  world_->join_all();
  desk().inject(Fault::kCorruptByte, 0, 0, 6);
  world_->fill_source(2);
  const auto outcome = world_->publish_as(world_->id(2), {.chunk_crc = false, .tensor_sums = true});
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().to_string(), HasSubstr("checksum"));
  for (const auto& [rank, sink] : world_->sinks) EXPECT_EQ(sink->active().value, 1);
}

TEST_F(PublicationTest, ASealOfAnotherAttemptIsRefused) {
  make();
  publish_well(1);
  world_->join_all();
  desk().inject(Fault::kCorruptSeal, 0, 0, 16);  // the publication's epoch
  const Error error = publish_badly();
  EXPECT_THAT(error.to_string(), HasSubstr("what came is sealed for membership"));
  recover();
}

TEST_F(PublicationTest, CountsThatDifferAreAnErrorOfBothEnds) {
  make();
  publish_well(1);
  world_->join_all();
  desk().inject(Fault::kShortReceive, 2, 0, 0);
  const Error error = publish_badly();
  EXPECT_THAT(error.to_string(), HasSubstr("receives"));
  EXPECT_THAT(error.to_string(), HasSubstr("bytes, rank 2"));
  recover();
}

TEST_F(PublicationTest, ABrokenGroupIsRefusedAtBeginAndCheaply) {
  make();
  publish_well(1);
  world_->peers.at(2)->abort(
      Error{.code = ErrorCode::kRankDead, .message = "gone", .origin = {}, .causes = {}});
  while (world_->peers.at(2)->ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::int64_t groups = desk().counts().groups;
  const Error error = publish_badly();
  EXPECT_THAT(error.to_string(), HasSubstr("rank 2: its communicator is not ready"));
  EXPECT_EQ(desk().counts().groups, groups) << "nobody put anything on the wire";
  EXPECT_TRUE(world_->peers.at(0)->ready());
  recover();
}

TEST_F(PublicationTest, ATrainerWaitsForTheWireAndHoldsPublicationsOff) {
  make({.round_within = std::chrono::minutes(5)});
  publish_well(1);
  NcclPeer& trainer = *world_->peers.at(0);
  {
    auto lease = trainer.start_update(Deadline::in(std::chrono::seconds(1)));
    ASSERT_TRUE(lease) << lease.error().to_string();
    const Error error = publish_badly();
    EXPECT_THAT(error.to_string(), HasSubstr("source rank 0: its weights are being updated"));
  }
  desk().inject(Fault::kGroupHangs, 1, 0, 0);
  world_->join_all();
  std::thread publication([&] { publish_badly(std::chrono::seconds(5)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto refused = trainer.start_update(Deadline::in(std::chrono::milliseconds(50)));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("version 2 is being published"));
  world_->peers.at(1)->abort(
      Error{.code = ErrorCode::kAborted, .message = "enough", .origin = {}, .causes = {}});
  publication.join();
  EXPECT_TRUE(trainer.start_update(Deadline::in(std::chrono::seconds(5))));
}

TEST_F(PublicationTest, DeltasAndForeignCommandsAreRefusedByName) {
  make();
  publish_well(1);
  PublicationId delta = world_->id(2);
  delta.base = WeightVersion{1};
  const auto refused = world_->publish_as(delta);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("deltas do not travel over nccl"));
  Command receive;
  receive.kind = CommandKind::kReceive;
  receive.id = world_->id(9);
  const Reply late = world_->peers.at(0)->handle(Side::kSource, receive);
  ASSERT_TRUE(late.error);
  EXPECT_THAT(late.error->message, HasSubstr("source rank 0: epoch"));
  EXPECT_THAT(world_->peers.at(2)->handle(Side::kSource, receive).error->message,
              HasSubstr("rank 2: is no source of the plan"));
  publish_well(2);
}

TEST_F(PublicationTest, AMembershipThatLacksARankOfThePlanIsRefused) {
  make();
  Membership lacking = world_->membership();
  lacking.members.pop_back();
  for (const auto& [rank, answer] : world_->join(lacking, std::chrono::milliseconds(200))) {
    EXPECT_FALSE(answer);
  }
  EXPECT_THAT(
      world_->peers.at(2)->join(lacking, Deadline::in(std::chrono::seconds(1))).error().message,
      HasSubstr("rank 3 is not in it"));
  world_->join_all();
  publish_well(1);
}

}  // namespace
}  // namespace troupe::reshard::nccl::testing
