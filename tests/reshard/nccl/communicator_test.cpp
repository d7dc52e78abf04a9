// Proves the communicator against the fake library: joins that are polled, bytes that arrive, and
// every way in which NCCL fails or hangs ends in time, with an error that names rank and cause, and
// with a communicator that a newer membership revives. Ranks are objects of this process.

#include "reshard/nccl/communicator.hpp"

#include "tests/reshard/nccl/device_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace troupe::reshard::nccl::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

/// Far more than anything here takes, far less than a hang.
constexpr Duration kSoon = std::chrono::seconds(10);

Error cause_of(const std::string& text) {
  return Error{.code = ErrorCode::kRankDead, .message = text, .origin = {}, .causes = {}};
}

class CommunicatorTest : public DeviceTest {
 protected:
  void make(std::int32_t ranks, const CommunicatorOptions& options = {}) {
    library_ = *NcclLibrary::open(fake_name());
    const auto cuda = *CudaLibrary::open(fake_name());
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      devices_.push_back(*CudaDevice::open(cuda, rank));
      CommunicatorOptions own = options;
      own.rank = rank;
      comms_.push_back(*Communicator::create(library_, *devices_.back(), own));
      memory_.push_back(*devices_.back()->allocate(4096));
    }
  }
  void TearDown() override {
    desk().release();
    comms_.clear();
    memory_.clear();
    DeviceTest::TearDown();
  }

  Membership membership(std::uint64_t epoch) const {
    Membership made{.epoch = epoch, .unique_id = id_bytes(*library_->unique_id()), .members = {}};
    for (std::size_t i = 0; i < comms_.size(); ++i)
      made.members.push_back({static_cast<std::int32_t>(i), "host", devices_[i]->bus_id()});
    return made;
  }
  std::vector<result<void>> join(std::uint64_t epoch, Duration within = kSoon,
                                 std::size_t ranks = 100) {
    // As a peer does: the membership before may still stand.
    std::vector<Communicator*> all;
    for (const auto& one : comms_) all.push_back(one.get());
    const result<void> idle = abort_all(all, cause_of("a newer membership"), Deadline::in(kSoon));
    EXPECT_TRUE(idle) << idle.error().to_string();
    const Membership made = membership(epoch);
    std::vector<runtime::pending<void>> pendings;
    for (std::size_t i = 0; i < std::min(ranks, comms_.size()); ++i)
      pendings.push_back(comms_[i]->join(made, Deadline::in(within)));
    std::vector<result<void>> answers;
    for (auto& one : pendings) answers.push_back(one.wait(Deadline::in(kSoon * 2)));
    return answers;
  }
  void join_all(std::uint64_t epoch) {
    for (const auto& answer : join(epoch)) ASSERT_TRUE(answer) << answer.error().to_string();
  }
  /// Rank 0 sends its first bytes to rank 1.
  std::array<result<void>, 2> exchange(std::size_t sent, std::size_t received,
                                       Duration within = kSoon) {
    auto first = comms_[0]->submit({{true, 1, memory_[0]->bytes().first(sent)}},
                                   "the test's sends to rank 1", Deadline::in(within));
    auto second = comms_[1]->submit({{false, 0, memory_[1]->bytes().first(received)}},
                                    "the test's receives from rank 0", Deadline::in(within));
    return {first.wait(Deadline::in(kSoon * 2)), second.wait(Deadline::in(kSoon * 2))};
  }
  void expect_works(std::uint64_t epoch) {
    join_all(epoch);
    const Bytes bytes{1, 2, 3, static_cast<std::uint8_t>(epoch)};
    desk().poke(memory_[0]->bytes().data(), bytes.data(), bytes.size());
    for (const auto& answer : exchange(4, 4)) ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(desk().peek(memory_[1]->bytes().data(), 4), bytes);
  }

  std::shared_ptr<const NcclLibrary> library_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::vector<std::unique_ptr<CudaBuffer>> memory_;
  std::vector<std::unique_ptr<Communicator>> comms_;
};

TEST_F(CommunicatorTest, JoinsAndMovesBytesHoweverOftenItMustPoll) {
  make(2);
  expect_works(1);
  desk().reset({.in_progress_polls = 25, .abort_ms = 1, .delay_queries = 10});
  expect_works(2);
}

TEST_F(CommunicatorTest, OlderLibrariesGetTheirOwnConfiguration) {
  for (const int version : {21805, 22703, 22900}) {
    desk().reset({.version = version});
    make(2);
    expect_works(1);
    comms_.clear();
    memory_.clear();
    devices_.clear();
    EXPECT_TRUE(desk().violations().empty()) << desk().violations().front();
  }
}

TEST_F(CommunicatorTest, TwoRanksOnOneDeviceAreRefusedBeforeTheyCanHang) {
  make(2);
  Membership doubled = membership(1);
  doubled.members[1].bus_id = doubled.members[0].bus_id;
  const result<void> refused = comms_[0]->join(doubled, Deadline::in(kSoon)).wait();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("ranks 0 and 1 are both on gpu 0000:10:00.0"));
  Membership moved = membership(1);
  moved.members[0].bus_id = "0000:99:00.0";
  EXPECT_THAT(comms_[0]->join(moved, Deadline::in(kSoon)).wait().error().message,
              HasSubstr("is on gpu 0000:10:00.0, listed on gpu 0000:99:00.0"));
  EXPECT_EQ(desk().counts().comms, 0);
}

TEST_F(CommunicatorTest, MembershipsThatAreMalformedAreRefused) {
  make(2);
  const auto said = [&](Membership one) {
    return comms_[0]->join(one, Deadline::in(kSoon)).wait().error().message;
  };
  Membership one = membership(1);
  one.unique_id.pop_back();
  EXPECT_THAT(said(one), HasSubstr("a unique id of 127 bytes, wanted 128"));
  one = membership(1);
  one.members[1].rank = 0;
  EXPECT_THAT(said(one), HasSubstr("rank 0 twice"));
  one = membership(1);
  one.members.erase(one.members.begin());
  EXPECT_THAT(said(one), HasSubstr("rank 0 is not in it"));
  one = membership(1);
  one.epoch = 0;
  EXPECT_THAT(said(one), HasSubstr("epoch is 0"));
}

TEST_F(CommunicatorTest, MembershipsTravelInActorMessages) {
  make(2);
  const Membership sent = membership(7);
  const auto bytes = runtime::encode_value(sent);
  ASSERT_TRUE(bytes) << bytes.error().to_string();
  const auto came = runtime::decode_value<Membership>(*bytes);
  ASSERT_TRUE(came) << came.error().to_string();
  EXPECT_EQ(*came, sent);
}

TEST_F(CommunicatorTest, AMemberThatNeverComesEndsInitAtTheDeadline) {
  make(3);
  const auto began = Clock::now();
  const auto answers = join(1, std::chrono::milliseconds(200), 2);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(2));
  for (const auto& answer : answers) {
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::kDeadline);
    EXPECT_THAT(answer.error().message, HasSubstr("init: not all of 3 ranks came in time"));
  }
  expect_works(2);
}

TEST_F(CommunicatorTest, AHangOfOneMembersInitEndsForAll) {
  make(2);
  desk().inject(Fault::kInitHangs, 1, 0, 0);
  for (const auto& answer : join(1, std::chrono::milliseconds(200)))
    EXPECT_EQ(answer.error().code, ErrorCode::kDeadline);
  desk().clear_faults();
  expect_works(2);
}

TEST_F(CommunicatorTest, AMemberThatLeavesDuringInitIsToldToTheOthersAndBounded) {
  make(3);
  const Membership made = membership(1);
  auto first = comms_[0]->join(made, Deadline::in(std::chrono::minutes(5)));
  auto second = comms_[1]->join(made, Deadline::in(std::chrono::minutes(5)));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto began = Clock::now();
  // The supervisor saw rank 2 die; nobody's NCCL ever would.
  std::vector<Communicator*> left{comms_[0].get(), comms_[1].get()};
  ASSERT_TRUE(abort_all(left, cause_of("rank 2 is gone"), Deadline::in(kSoon)));
  EXPECT_LT(Clock::now() - began, kSoon);
  for (auto* one : {&first, &second}) {
    const result<void> answer = one->wait(Deadline::in(kSoon));
    EXPECT_EQ(answer.error().code, ErrorCode::kAborted);
    EXPECT_EQ(answer.error().root_cause().message, "rank 2 is gone");
  }
  expect_works(2);
}

TEST_F(CommunicatorTest, InitErrorsAreSaidAtOnceOrWhenPolled) {
  make(2);
  desk().inject(Fault::kInitFails, 0, 0, static_cast<int>(Code::kSystemError));
  desk().inject(Fault::kInitFailsLater, 1, 0, static_cast<int>(Code::kRemoteError));
  const auto answers = join(1, std::chrono::seconds(1));
  EXPECT_EQ(answers[0].error().code, ErrorCode::kIo);
  EXPECT_THAT(answers[0].error().message,
              HasSubstr("rank 0: membership 1: init: unhandled system error (nccl 2)"));
  EXPECT_EQ(answers[1].error().code, ErrorCode::kRankDead);
  EXPECT_THAT(answers[1].error().message, HasSubstr("(nccl 6): told to fail"));
  desk().clear_faults();
  expect_works(2);
}

TEST_F(CommunicatorTest, AnInitCallThatBlocksIsAnsweredAndComesBackFenced) {
  make(2, {.abort_within = std::chrono::milliseconds(200)});
  desk().inject(Fault::kInitCallBlocks, 0, 0, 0);
  const auto answers = join(1, std::chrono::milliseconds(200));
  EXPECT_EQ(answers[0].error().code, ErrorCode::kInternal);
  EXPECT_THAT(answers[0].error().message,
              HasSubstr("its abort has not returned; end this process"));
  EXPECT_EQ(answers[0].error().root_cause().code, ErrorCode::kDeadline);
  EXPECT_TRUE(comms_[0]->stuck());
  desk().release();
  ASSERT_TRUE(comms_[0]->wait_idle(Deadline::in(kSoon)));
  while (comms_[0]->stuck()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  desk().clear_faults();
  expect_works(2);
}

TEST_F(CommunicatorTest, AsyncErrorsEndTheTransferThatMeetsThem) {
  make(2);
  join_all(1);
  desk().inject(Fault::kAsyncError, 0, 1, static_cast<int>(Code::kRemoteError));
  for (const auto& answer : exchange(8, 8)) EXPECT_TRUE(answer);
  const auto answers = exchange(8, 8, std::chrono::milliseconds(300));
  EXPECT_EQ(answers[0].error().code, ErrorCode::kRankDead);
  EXPECT_THAT(answers[0].error().message,
              HasSubstr("rank 0: membership 1: the test's sends to rank 1: remote process exited"));
  EXPECT_EQ(answers[1].error().code, ErrorCode::kDeadline) << "its NCCL says nothing";
  EXPECT_THAT(answers[1].error().message, HasSubstr("receives from rank 0: not over in time"));
  desk().clear_faults();
  expect_works(2);
}

TEST_F(CommunicatorTest, ATransferThatHangsIsAbortedInTimeAndItsMemoryIsFreeAfterwards) {
  make(2);
  join_all(1);
  desk().inject(Fault::kGroupHangs, 0, 0, 0);
  const auto began = Clock::now();
  const auto answers = exchange(8, 8, std::chrono::milliseconds(200));
  EXPECT_LT(Clock::now() - began, kSoon);
  for (const auto& answer : answers) EXPECT_EQ(answer.error().code, ErrorCode::kDeadline);
  memory_.clear();  // the fake notes a violation when the device may still use it
  EXPECT_TRUE(desk().violations().empty());
}

TEST_F(CommunicatorTest, ACallThatFailsAndADeviceThatFailsAreNamed) {
  make(2);
  join_all(1);
  desk().inject(Fault::kGroupCallFails, 0, 0, static_cast<int>(Code::kInvalidUsage));
  auto answers = exchange(8, 8, std::chrono::seconds(1));
  EXPECT_EQ(answers[0].error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(answers[0].error().message, HasSubstr("invalid usage (nccl 5)"));
  desk().clear_faults();
  expect_works(2);
  desk().inject(Fault::kEventFails, 1, 0, 700);
  answers = exchange(8, 8, std::chrono::seconds(1));
  EXPECT_EQ(answers[1].error().code, ErrorCode::kIo);
  EXPECT_THAT(answers[1].error().to_string(), HasSubstr("cuda 700"));
}

TEST_F(CommunicatorTest, UnequalCountsAreAnErrorOnBothEnds) {
  make(2);
  join_all(1);
  for (const auto& answer : exchange(8, 12)) {
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(answer.error().message, HasSubstr("rank 0 sends 8 bytes, rank 1 receives 12"));
  }
  expect_works(2);
}

TEST_F(CommunicatorTest, OneTransferAtATimeAndNoneBeforeJoining) {
  make(2);
  auto early = comms_[0]->submit({}, "too early", Deadline::in(kSoon));
  EXPECT_THAT(early.wait().error().message, HasSubstr("too early: nobody has joined"));
  join_all(1);
  auto first = comms_[0]->submit({{true, 1, memory_[0]->bytes()}}, "first", Deadline::in(kSoon));
  auto second = comms_[0]->submit({{true, 1, memory_[0]->bytes()}}, "second", Deadline::in(kSoon));
  EXPECT_THAT(second.wait().error().message, HasSubstr("second: is not ready for it"));
  comms_[0]->abort(cause_of("enough"));
  EXPECT_EQ(first.wait().error().root_cause().message, "enough");
}

TEST_F(CommunicatorTest, AbortsRunSideBySideFromAnyThread) {
  constexpr std::int32_t kRanks = 6;
  desk().reset({.abort_ms = 50});
  make(kRanks);
  join_all(1);
  std::vector<runtime::pending<void>> pendings;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    const std::int32_t next = (rank + 1) % kRanks;
    pendings.push_back(comms_[at(rank)]->submit({{true, next, memory_[at(rank)]->bytes()}}, "ring",
                                                Deadline::in(std::chrono::minutes(5))));
  }
  std::vector<Communicator*> all;
  for (const auto& one : comms_) all.push_back(one.get());
  std::thread supervisor(
      [&] { EXPECT_TRUE(abort_all(all, cause_of("rank 9 is gone"), Deadline::in(kSoon))); });
  for (auto& one : pendings)
    EXPECT_EQ(one.wait(Deadline::in(kSoon)).error().root_cause().message, "rank 9 is gone");
  supervisor.join();
  EXPECT_EQ(desk().counts().aborts, kRanks);
  EXPECT_GT(desk().counts().aborts_at_once, 1) << "one abort waits for another";
  join_all(2);
}

TEST_F(CommunicatorTest, AnAbortThatHangsIsSaidAndFencesTheDevice) {
  make(2, {.abort_within = std::chrono::milliseconds(200)});
  join_all(1);
  desk().inject(Fault::kAbortBlocks, 0, 0, 0);
  desk().inject(Fault::kGroupHangs, 0, 0, 0);
  const auto answers = exchange(8, 8, std::chrono::milliseconds(100));
  EXPECT_EQ(answers[0].error().code, ErrorCode::kInternal);
  EXPECT_TRUE(comms_[0]->stuck());
  EXPECT_FALSE(comms_[1]->stuck());
  EXPECT_EQ(comms_[0]->wait_idle(Deadline::in(std::chrono::milliseconds(20))).error().code,
            ErrorCode::kDeadline);
  const auto refused = comms_[0]->join(membership(2), Deadline::in(kSoon)).wait();
  EXPECT_THAT(refused.error().message, HasSubstr("its abort has not returned"));
  desk().release();
  ASSERT_TRUE(comms_[0]->wait_idle(Deadline::in(kSoon)));
  desk().clear_faults();
  expect_works(3);
}

TEST_F(CommunicatorTest, AnIdleCommunicatorNoticesAnErrorToo) {
  make(2);
  join_all(1);
  desk().inject(Fault::kErrorNow, 1, 0, static_cast<int>(Code::kRemoteError));
  const Deadline until = Deadline::in(kSoon);
  while (comms_[1]->ready() && !until.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(comms_[1]->ready());
  const auto answers = exchange(8, 8, std::chrono::milliseconds(100));
  EXPECT_EQ(answers[1].error().code, ErrorCode::kConflict);
  EXPECT_EQ(answers[1].error().root_cause().code, ErrorCode::kRankDead);
  EXPECT_THAT(answers[1].error().root_cause().message, HasSubstr("idle: remote process exited"));
  desk().clear_faults();
  expect_works(2);
}

}  // namespace
}  // namespace troupe::reshard::nccl::testing
