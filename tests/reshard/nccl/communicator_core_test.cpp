// Proves the life cycle of a communicator without a library: each step of it by hand, then random
// event sequences under which every join and every ticket is answered exactly once and in time, no
// call is asked for on what was aborted, and what is late or foreign changes nothing.

#include "reshard/nccl/communicator_core.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace troupe::reshard::nccl {
namespace {

using ::testing::HasSubstr;
using State = CommunicatorCore::State;
using Effects = std::vector<CommEffect>;

constexpr Duration kAbortWithin = std::chrono::seconds(5);
TimePoint second(double value) {
  return TimePoint{} + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

template <class Effect>
const Effect* find(const Effects& effects) {
  for (const CommEffect& one : effects)
    if (const auto* found = std::get_if<Effect>(&one)) return found;
  return nullptr;
}

Error cause_of(const char* text) {
  return Error{.code = ErrorCode::kRankDead, .message = text, .origin = {}, .causes = {}};
}

/// A core that has joined membership 1.
CommunicatorCore ready_core() {
  CommunicatorCore core(3, kAbortWithin);
  EXPECT_NE(find<CallInit>(core.step(JoinWanted{1, 4, second(10)}, second(0))), nullptr);
  EXPECT_NE(find<PollAsync>(core.step(InitReturned{1, Code::kInProgress, "", true}, second(0))),
            nullptr);
  const Effects done = core.step(AsyncState{1, Code::kSuccess, ""}, second(1));
  const auto* joined = find<JoinDone>(done);
  EXPECT_TRUE(joined != nullptr && !joined->error);
  return core;
}

TEST(CommunicatorCore, JoinsByPollingAndTransfersByEvent) {
  CommunicatorCore core = ready_core();
  EXPECT_EQ(core.state(), State::kReady);
  EXPECT_NE(find<CallSubmit>(core.step(SubmitWanted{7, "round 1", second(9)}, second(2))), nullptr);
  EXPECT_NE(find<PollAsync>(core.step(SubmitReturned{7, Code::kInProgress, ""}, second(2))),
            nullptr);
  EXPECT_TRUE(core.step(AsyncState{1, Code::kInProgress, ""}, second(2)).empty());
  EXPECT_NE(find<RecordEvent>(core.step(AsyncState{1, Code::kSuccess, ""}, second(2))), nullptr);
  EXPECT_TRUE(core.step(EventState{7, false, {}}, second(2)).empty());
  const Effects tick = core.step(Tick{}, second(3));
  EXPECT_TRUE(find<PollAsync>(tick) != nullptr && find<QueryEvent>(tick) != nullptr);
  const Effects done = core.step(EventState{7, true, {}}, second(3));
  ASSERT_NE(find<TicketDone>(done), nullptr);
  EXPECT_FALSE(find<TicketDone>(done)->error);
  EXPECT_EQ(core.state(), State::kReady);
}

TEST(CommunicatorCore, AnInitThatDoesNotEndIsAbortedAtItsDeadline) {
  CommunicatorCore core(3, kAbortWithin);
  core.step(JoinWanted{1, 4, second(10)}, second(0));
  core.step(InitReturned{1, Code::kInProgress, "", true}, second(0));
  EXPECT_EQ(find<CallAbort>(core.step(Tick{}, second(9))), nullptr);
  const Effects late = core.step(Tick{}, second(10));
  EXPECT_NE(find<CallAbort>(late), nullptr);
  EXPECT_EQ(find<JoinDone>(late), nullptr) << "the device may still be at it";
  const Effects over = core.step(AbortReturned{1}, second(11));
  const auto* joined = find<JoinDone>(over);
  ASSERT_TRUE(joined != nullptr && joined->error);
  EXPECT_EQ(joined->error->code, ErrorCode::kDeadline);
  EXPECT_THAT(joined->error->message, HasSubstr("rank 3: membership 1: init: not all of 4 ranks"));
  EXPECT_EQ(core.state(), State::kBroken);
}

TEST(CommunicatorCore, AnInitCallThatNeverReturnsIsStuckButAnswered) {
  CommunicatorCore core(3, kAbortWithin);
  core.step(JoinWanted{1, 4, second(10)}, second(0));
  EXPECT_TRUE(core.step(Tick{}, second(10)).empty()) << "there is nothing to abort yet";
  const Effects over = core.step(Tick{}, second(15));
  const auto* joined = find<JoinDone>(over);
  ASSERT_TRUE(joined != nullptr && joined->error);
  EXPECT_EQ(joined->error->code, ErrorCode::kInternal);
  EXPECT_EQ(joined->error->root_cause().code, ErrorCode::kDeadline);
  EXPECT_TRUE(core.stuck());
  const Effects refused = core.step(JoinWanted{2, 4, second(30)}, second(20));
  ASSERT_NE(find<JoinDone>(refused), nullptr);
  EXPECT_THAT(find<JoinDone>(refused)->error->message, HasSubstr("its abort has not returned"));
  // It comes back after all: aborted then, and the next membership may come.
  EXPECT_NE(find<CallAbort>(core.step(InitReturned{1, Code::kSuccess, "", true}, second(21))),
            nullptr);
  core.step(AbortReturned{1}, second(22));
  EXPECT_FALSE(core.stuck());
  EXPECT_NE(find<CallInit>(core.step(JoinWanted{2, 4, second(30)}, second(23))), nullptr);
}

TEST(CommunicatorCore, ErrorsThatArePolledNameTheTransfer) {
  CommunicatorCore core = ready_core();
  core.step(SubmitWanted{7, "round 1, sends to rank 2", second(9)}, second(2));
  core.step(SubmitReturned{7, Code::kSuccess, ""}, second(2));
  const Effects failed = core.step(AsyncState{1, Code::kRemoteError, "remote (nccl 6)"}, second(2));
  EXPECT_NE(find<CallAbort>(failed), nullptr);
  const Effects over = core.step(AbortReturned{1}, second(3));
  const auto* ticket = find<TicketDone>(over);
  ASSERT_TRUE(ticket != nullptr && ticket->error);
  EXPECT_EQ(ticket->error->code, ErrorCode::kRankDead);
  EXPECT_THAT(ticket->error->message,
              HasSubstr("rank 3: membership 1: round 1, sends to rank 2: remote (nccl 6)"));
  const Effects refused = core.step(SubmitWanted{8, "round 2", second(9)}, second(4));
  ASSERT_NE(find<TicketDone>(refused), nullptr);
  EXPECT_EQ(find<TicketDone>(refused)->error->code, ErrorCode::kConflict);
  EXPECT_EQ(find<TicketDone>(refused)->error->root_cause().code, ErrorCode::kRankDead);
}

TEST(CommunicatorCore, LateCompletionsOfAnOldEpochChangeNothing) {
  CommunicatorCore core = ready_core();
  core.step(SubmitWanted{7, "round 1", second(9)}, second(2));
  core.step(AbortWanted{cause_of("rank 1 is gone")}, second(2));
  core.step(AbortReturned{1}, second(2));
  core.step(JoinWanted{2, 3, second(9)}, second(3));
  for (const CommEvent& late :
       std::vector<CommEvent>{InitReturned{1, Code::kSuccess, "", true}, AbortReturned{1},
                              AsyncState{1, Code::kSystemError, "old"},
                              SubmitReturned{7, Code::kSuccess, ""}, EventState{7, true, {}}}) {
    EXPECT_TRUE(core.step(late, second(3)).empty());
    EXPECT_EQ(core.state(), State::kInitializing);
    EXPECT_EQ(core.epoch(), 2U);
  }
  EXPECT_NE(find<JoinDone>(core.step(JoinWanted{2, 3, second(9)}, second(3))), nullptr);
  EXPECT_NE(find<JoinDone>(core.step(JoinWanted{1, 3, second(9)}, second(3))), nullptr);
}

/// A library, a driver and callers that do anything at any time.
class Storm {
 public:
  explicit Storm(std::uint64_t seed) : rng_(seed), core_(0, kAbortWithin) {}

  void run() {
    for (int i = 0; i < 400; ++i) {
      now_ += std::chrono::milliseconds(rng_.below(1500));
      take(core_.step(some_event(), now_));
      check();
    }
    // The foreign side falls silent but for aborts, which return: everything must end.
    for (int i = 0; i < 4; ++i) {
      now_ += std::chrono::minutes(10);
      take(core_.step(Tick{}, now_));
      if (init_open_) take(core_.step(InitReturned{*init_open_, Code::kSuccess, "", true}, now_));
      if (abort_open_) take(core_.step(AbortReturned{*std::exchange(abort_open_, {})}, now_));
    }
    EXPECT_TRUE(joins_.empty()) << "a join without an answer";
    EXPECT_TRUE(tickets_.empty()) << "a ticket without an answer";
  }

 private:
  Code some_code() {
    constexpr Code kCodes[] = {Code::kSuccess, Code::kSuccess, Code::kInProgress, Code::kInProgress,
                               Code::kRemoteError};
    return kCodes[rng_.below(5)];
  }
  CommEvent some_event() {
    const std::uint64_t epoch = core_.epoch() - (rng_.below(5) == 0 ? 1 : 0);
    switch (rng_.below(12)) {
      case 0:
        joins_.insert(++last_epoch_);
        return JoinWanted{last_epoch_, 2, now_ + std::chrono::seconds(rng_.below(8))};
      case 1:
      case 2:
        if (!init_open_) return Tick{};
        return InitReturned{*std::exchange(init_open_, {}), some_code(), "x", rng_.below(6) != 0};
      case 3:
      case 4:
        return AsyncState{epoch, some_code(), "x"};
      case 5:
      case 6:
        tickets_.insert(++last_ticket_);
        return SubmitWanted{last_ticket_, "t", now_ + std::chrono::seconds(rng_.below(8))};
      case 7:
        return SubmitReturned{last_ticket_ - rng_.below(2), some_code(), "x"};
      case 8:
        return EventState{last_ticket_ - rng_.below(2), rng_.below(2) == 0, {}};
      case 9:
        if (rng_.below(4) != 0) return Tick{};
        return AbortWanted{cause_of("storm")};
      case 10:
        if (!abort_open_) return Tick{};
        return AbortReturned{*std::exchange(abort_open_, {})};
      default:
        return Tick{};
    }
  }
  void take(const Effects& effects) {
    for (const CommEffect& one : effects) {
      if (const auto* init = std::get_if<CallInit>(&one)) {
        EXPECT_EQ(init->epoch, core_.epoch());
        init_open_ = init->epoch;
      } else if (const auto* abort = std::get_if<CallAbort>(&one)) {
        EXPECT_TRUE(aborted_.insert(abort->epoch).second) << "a second abort of one epoch";
        abort_open_ = abort->epoch;
      } else if (const auto* join = std::get_if<JoinDone>(&one)) {
        EXPECT_EQ(joins_.erase(join->epoch), 1U) << "a join answered twice";
      } else if (const auto* ticket = std::get_if<TicketDone>(&one)) {
        EXPECT_EQ(tickets_.erase(ticket->ticket), 1U) << "a ticket answered twice";
      } else if (std::get_if<CallSubmit>(&one) != nullptr) {
        EXPECT_EQ(aborted_.count(core_.epoch()), 0U) << "a call on what was aborted";
      }
    }
  }
  void check() const {
    if (core_.state() == State::kReady || core_.state() == State::kRunning) {
      EXPECT_EQ(aborted_.count(core_.epoch()), 0U);
    }
    if (core_.state() == State::kBroken) {
      EXPECT_TRUE(core_.cause().has_value());
    }
  }

  Rng rng_;
  CommunicatorCore core_;
  TimePoint now_{};
  std::uint64_t last_epoch_ = 0;
  std::uint64_t last_ticket_ = 1;
  std::set<std::uint64_t> joins_, tickets_, aborted_;
  std::optional<std::uint64_t> init_open_, abort_open_;
};

TEST(CommunicatorCore, AnswersEverythingOnceUnderAnyStorm) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Storm(seed).run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace troupe::reshard::nccl
