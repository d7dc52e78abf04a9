// Proves that a line of tickets gives turns strictly in the order of their numbers, whatever the
// order in which waits, releases, skips and deaths arrive: by examples, and by random histories
// against a slow model that keeps the state of every ticket and looks at all of them after each
// step. Seeds are printed.

#include "runtime/cluster/ticket_lane.hpp"

#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {
namespace {

TicketPlace place(std::uint64_t number, std::string rank = "job/policy/0") {
  return {.number = number, .rank = std::move(rank), .phase = "train", .since = TimePoint{}};
}

TEST(TicketLane, GivesTurnsInTheOrderOfNumbersNotOfArrival) {
  TicketLane lane;
  ASSERT_TRUE(lane.wait(place(3)));
  ASSERT_TRUE(lane.wait(place(2)));
  EXPECT_FALSE(lane.grant(TimePoint{})) << "ticket 1 has not been shown yet";
  ASSERT_TRUE(lane.wait(place(1)));
  for (std::uint64_t number = 1; number <= 3; ++number) {
    const auto granted = lane.grant(TimePoint{});
    ASSERT_TRUE(granted);
    EXPECT_EQ(granted->number, number);
    EXPECT_FALSE(lane.grant(TimePoint{})) << "one holder at a time";
    EXPECT_TRUE(lane.finish(number).value());
  }
  EXPECT_EQ(lane.next(), 4U);
  EXPECT_EQ(lane.turns_taken(), 3);
}

TEST(TicketLane, GoesOnOverTicketsThatAreOver) {
  TicketLane lane;
  ASSERT_TRUE(lane.wait(place(4)));
  EXPECT_TRUE(lane.finish(2).value());
  EXPECT_TRUE(lane.finish(1).value());
  EXPECT_FALSE(lane.grant(TimePoint{}));
  EXPECT_TRUE(lane.finish(3).value());
  EXPECT_EQ(lane.grant(TimePoint{})->number, 4U);
  EXPECT_FALSE(lane.finish(3).value()) << "over is over";
}

TEST(TicketLane, GoesOnFromWhereItsControllerIs) {
  TicketLane lane;
  ASSERT_TRUE(lane.wait(place(1)));
  ASSERT_TRUE(lane.grant(TimePoint{}));
  ASSERT_TRUE(lane.wait(place(3)));
  ASSERT_TRUE(lane.wait(place(100)));
  EXPECT_EQ(lane.settle(100), std::vector<std::uint64_t>{3});
  EXPECT_EQ(lane.holder()->number, 1U) << "its method still runs";
  EXPECT_EQ(lane.wait(place(50)).error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(lane.finish(1).value());
  EXPECT_EQ(lane.grant(TimePoint{})->number, 100U);
  EXPECT_TRUE(lane.settle(7).empty()) << "old news";
  EXPECT_EQ(lane.next(), 100U);
}

TEST(TicketLane, RefusesWhatIsOverTakenZeroOrBeyondItsBounds) {
  TicketLane lane({.waiting_max = 2, .ahead_max = 10});
  EXPECT_EQ(lane.wait(place(0)).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(lane.finish(1));
  EXPECT_EQ(lane.wait(place(1)).error().code, ErrorCode::kCancelled);
  ASSERT_TRUE(lane.wait(place(2)));
  ASSERT_TRUE(lane.grant(TimePoint{}));
  EXPECT_EQ(lane.wait(place(2)).error().code, ErrorCode::kAlreadyExists);
  ASSERT_TRUE(lane.wait(place(3)));
  EXPECT_EQ(lane.wait(place(3)).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(lane.wait(place(13)).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(lane.finish(13).error().code, ErrorCode::kResourceExhausted);
  ASSERT_TRUE(lane.wait(place(4)));
  EXPECT_EQ(lane.wait(place(5)).error().code, ErrorCode::kResourceExhausted);
}

/// The obvious way: the state of each ticket, searched from the start every time.
class SlowLane {
 public:
  enum class State { kAhead, kWaiting, kHolding, kOver };
  struct Ticket {
    State state = State::kAhead;
    std::string rank;
  };
  explicit SlowLane(std::size_t tickets) : tickets_(tickets + 1) {
    tickets_[0].state = State::kOver;
  }

  bool wait(std::uint64_t number, const std::string& rank) {
    if (tickets_[number].state != State::kAhead) return false;
    tickets_[number] = {State::kWaiting, rank};
    return true;
  }
  bool finish(std::uint64_t number) {
    if (tickets_[number].state == State::kOver) return false;
    tickets_[number].state = State::kOver;
    return true;
  }
  std::vector<std::uint64_t> settle(std::uint64_t floor) {
    std::vector<std::uint64_t> waited;
    for (std::uint64_t i = 0; i < floor && i < tickets_.size(); ++i) {
      if (tickets_[i].state == State::kWaiting) waited.push_back(i);
      if (tickets_[i].state != State::kHolding) tickets_[i].state = State::kOver;
    }
    return waited;
  }
  void grant() {
    for (Ticket& ticket : tickets_) {
      if (ticket.state == State::kOver) continue;
      if (ticket.state == State::kWaiting) ticket.state = State::kHolding;
      return;
    }
  }
  std::optional<std::uint64_t> holder() const {
    for (std::size_t i = 0; i < tickets_.size(); ++i) {
      if (tickets_[i].state == State::kHolding) return i;
    }
    return std::nullopt;
  }
  std::uint64_t next() const {
    std::uint64_t number = 0;
    while (number < tickets_.size() && tickets_[number].state == State::kOver) ++number;
    return number;
  }
  std::vector<std::uint64_t> of(const std::string& rank) const {
    std::vector<std::uint64_t> numbers;
    for (std::size_t i = 0; i < tickets_.size(); ++i) {
      const bool here =
          tickets_[i].state == State::kWaiting || tickets_[i].state == State::kHolding;
      if (here && tickets_[i].rank == rank) numbers.push_back(i);
    }
    return numbers;
  }
  std::size_t waiting() const {
    std::size_t count = 0;
    for (const Ticket& ticket : tickets_) count += ticket.state == State::kWaiting ? 1U : 0U;
    return count;
  }

 private:
  std::vector<Ticket> tickets_;
};

void random_history(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::uint64_t kTickets = 40;
  Rng rng(seed);
  TicketLane lane;
  SlowLane slow(kTickets);
  for (int step = 0; step < 300; ++step) {
    const std::uint64_t number = 1 + rng.below(kTickets);
    const std::string rank = "rank " + std::to_string(rng.below(4));
    const std::uint64_t kind = rng.below(20);
    if (kind < 10) {
      ASSERT_EQ(lane.wait(place(number, rank)).has_value(), slow.wait(number, rank));
    } else if (kind < 15) {
      const std::uint64_t holder = slow.holder().value_or(0);
      ASSERT_EQ(lane.finish(holder).value(), slow.finish(holder));
    } else if (kind < 18) {
      ASSERT_EQ(lane.finish(number).value(), slow.finish(number));
    } else if (kind < 19) {
      // What a controller says it knows is seldom far from where the line is.
      const std::uint64_t floor = std::min(kTickets, slow.next() + rng.below(6));
      ASSERT_EQ(lane.settle(floor), slow.settle(floor));
    } else {
      ASSERT_EQ(lane.tickets_of(rank), slow.of(rank));
      for (const std::uint64_t dead : slow.of(rank))
        ASSERT_EQ(lane.finish(dead).value(), slow.finish(dead));
    }
    lane.grant(TimePoint{});
    slow.grant();
    ASSERT_EQ(lane.holder().has_value(), slow.holder().has_value());
    ASSERT_EQ(lane.holder().value_or(TicketPlace{}).number, slow.holder().value_or(0));
    ASSERT_EQ(lane.next(), slow.next());
    ASSERT_EQ(lane.waiting().size(), slow.waiting());
  }
}

TEST(TicketLane, AgreesWithTheSlowModelOnRandomHistories) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    random_history(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace troupe::runtime
