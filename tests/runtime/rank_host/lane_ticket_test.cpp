// Proves how places in device lanes travel with calls to rank processes: numbers are given in the
// order of submission, shown by the rank when it runs the call, and let go by the controller when
// the call is over at that rank, has failed, was skipped, or its rank has died.

#include "tests/runtime/rank_host/rank_worlds.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace troupe::runtime::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::in(20s); }

/// The controller's side: numbers calls, and notes which numbers were let go.
class NumberedGate final : public LaneGate {
 public:
  result<std::unique_ptr<Turn>> reserve(const LaneRequest&) override {
    const std::lock_guard lock(mutex_);
    return std::make_unique<Place>(*this, ++last_);
  }
  std::set<std::uint64_t> let_go() {
    const std::lock_guard lock(mutex_);
    return let_go_;
  }

 private:
  class Place final : public Turn {
   public:
    Place(NumberedGate& gate, std::uint64_t number) : gate_(gate), number_(number) {}
    ~Place() override {
      const std::lock_guard lock(gate_.mutex_);
      gate_.let_go_.insert(number_);
    }
    result<void> wait(Deadline) override { return fail(ErrorCode::kUnsupported, "at the agent"); }
    std::optional<LaneTicket> ticket() const override { return LaneTicket{"test/0", number_}; }

   private:
    NumberedGate& gate_;
    const std::uint64_t number_;
  };
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::set<std::uint64_t> let_go_;
};

/// The rank's side: every turn has come, but for one number.
class NotingLanes final : public RankLanes {
 public:
  result<std::unique_ptr<LaneGate::Turn>> wait(const LaneTicket& ticket, const std::string& phase,
                                               Deadline) override {
    class Held final : public LaneGate::Turn {
     public:
      result<void> wait(Deadline) override { return {}; }
    };
    const std::lock_guard lock(mutex_);
    shown_.push_back(fmt::format("{} {} {}", ticket.lane, ticket.number, phase));
    if (ticket.number == refused_) return fail(ErrorCode::kResourceExhausted, "no room");
    return std::make_unique<Held>();
  }
  std::vector<std::string> shown() {
    const std::lock_guard lock(mutex_);
    return shown_;
  }
  void refuse(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    refused_ = number;
  }

 private:
  std::mutex mutex_;
  std::uint64_t refused_ = 0;
  std::vector<std::string> shown_;
};

class LaneTickets : public ::testing::Test {
 protected:
  WorkerGroup<Actor> group() {
    world_.servers().set_lanes(lanes_);
    GroupOptions options;
    options.name = "policy";
    options.lanes = {&gate_};
    auto made = world_.create(options);
    TROUPE_CHECK(made, "{}", made.error().to_string());
    return std::move(*made);
  }
  bool let_go(std::set<std::uint64_t> numbers) {
    return becomes_true([&] { return gate_.let_go() == numbers; });
  }
  // Number 1 goes to the probe with which the group's start looks at the gate.
  NumberedGate gate_;
  std::shared_ptr<NotingLanes> lanes_ = std::make_shared<NotingLanes>();
  World world_{Kind::kServers};
};

TEST_F(LaneTickets, TravelInOrderAndAreLetGoAfterTheCall) {
  auto actors = group();
  EXPECT_THAT(actors.call<&Actor::train>(5).wait(soon()).value(), ElementsAre(5));
  EXPECT_TRUE(actors.call<&Actor::echo>(5).wait(soon()));  // no phase, no ticket
  EXPECT_TRUE(actors.call<&Actor::train>(6).wait(soon()));
  EXPECT_THAT(lanes_->shown(), ElementsAre("test/0 2 train", "test/0 3 train"));
  EXPECT_TRUE(let_go({1, 2, 3}));
  EXPECT_FALSE(actors.call<&Actor::train>(-1).wait(soon()));
  EXPECT_TRUE(let_go({1, 2, 3, 4}));
}

TEST_F(LaneTickets, OfSkippedCallsAreLetGoUnused) {
  auto actors = group();
  const std::string door = world_.door();
  auto waiting = actors.call<&Actor::wait_at_door>(door);
  ASSERT_TRUE(World::inside(door, 1));
  auto called_off = actors.call<&Actor::train>(1);
  auto wanted = actors.call<&Actor::train>(2);
  called_off.cancel();
  std::this_thread::sleep_for(100ms);  // the agreement is on its way
  World::open(door);
  EXPECT_TRUE(wanted.wait(soon()));
  EXPECT_THAT(lanes_->shown(), ElementsAre("test/0 3 train"));
  EXPECT_TRUE(let_go({1, 2, 3}));
}

TEST_F(LaneTickets, ThatAreRefusedFailTheCallOnly) {
  auto actors = group();
  lanes_->refuse(2);
  const auto refused = actors.call<&Actor::train>(1).wait(soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(refused.error().message, "train: no room");
  EXPECT_TRUE(actors.call<&Actor::train>(1).wait(soon()));
  EXPECT_TRUE(let_go({1, 2, 3}));
}

TEST_F(LaneTickets, OfADeadRankAreLetGo) {
  auto actors = group();
  const std::string door = world_.door();
  auto waiting = actors.call<&Actor::wait_at_door>(door);
  ASSERT_TRUE(World::inside(door, 1));
  auto queued = actors.call<&Actor::train>(1);
  actors.kill(RankId{0},
              Error{.code = ErrorCode::kRankDead, .message = "gone", .origin = {}, .causes = {}});
  EXPECT_FALSE(queued.wait(soon()));
  EXPECT_TRUE(let_go({1, 2}));
  World::open(door);
}

TEST_F(LaneTickets, LanesOfThisProcessAreRefused) {
  OrderedLane lane;
  GroupOptions options;
  options.name = "policy";
  options.lanes = {&lane};
  const auto refused = world_.create(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("the lane of rank 0 is in this process"));
}

}  // namespace
}  // namespace troupe::runtime::testing
