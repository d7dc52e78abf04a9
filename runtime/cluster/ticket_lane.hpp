#pragma once

// `TicketLane`: the pure core of one device's line when tickets are given elsewhere.
//
// Tickets 1, 2, 3 … come from the controller; waits for them arrive in any order. The turn goes
// strictly in the order of the numbers: a ticket whose wait has not arrived yet holds the line up,
// one that is over (released, skipped, given up) does not.
// **Threads:** belongs to one owner.
// **Invariants:** at most one holder, which has the smallest number that is not over; a number that
// is over never gets a turn again; waits and numbers ahead of the line are bounded.
// **Cost:** logarithmic in the number of waits.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe::runtime {

struct TicketPlace {
  std::uint64_t number = 0;
  std::string rank;
  std::string phase;
  TimePoint since;  ///< waiting or holding since
  bool operator==(const TicketPlace&) const = default;
};

inline constexpr std::uint64_t kTicketsAheadMax = std::uint64_t{1} << 16;

class TicketLane {
 public:
  struct Options {
    std::size_t waiting_max = 4096;
    std::uint64_t ahead_max = kTicketsAheadMax;  ///< of the number whose turn it is
  };
  TicketLane() : TicketLane(Options{}) {}
  explicit TicketLane(Options options) : options_(options) {}

  /// Joins the line. kCancelled when the ticket is over, kAlreadyExists when it waits or holds
  /// already, kResourceExhausted beyond a bound, kInvalidArgument for number 0.
  result<void> wait(TicketPlace place);
  /// The ticket is over, whatever it was: ahead, waiting or holding. True when it was not before.
  /// kResourceExhausted when it is too far ahead.
  result<bool> finish(std::uint64_t number);
  /// Every ticket below `floor` is over; the holder's own ends with its turn, and what is below it
  /// with that. Returns those that waited.
  std::vector<std::uint64_t> settle(std::uint64_t floor);
  /// Gives the turn to the next in line when nobody holds it and that one waits.
  std::optional<TicketPlace> grant(TimePoint now);
  /// Tickets with which `rank` waits or holds, in order.
  std::vector<std::uint64_t> tickets_of(const std::string& rank) const;

  const std::optional<TicketPlace>& holder() const { return holder_; }
  const std::map<std::uint64_t, TicketPlace>& waiting() const { return waiting_; }
  std::uint64_t next() const { return next_; }  ///< smallest number that is not over
  std::int64_t turns_taken() const { return turns_taken_; }

 private:
  bool over(std::uint64_t number) const {
    const bool settled = number < floor_ && !(holder_ && holder_->number == number);
    return number < next_ || settled || over_.contains(number);
  }
  void advance();

  Options options_;
  std::uint64_t next_ = 1;
  std::uint64_t floor_ = 0;
  std::optional<TicketPlace> holder_;
  std::map<std::uint64_t, TicketPlace> waiting_;
  std::set<std::uint64_t> over_;  // above next_
  std::int64_t turns_taken_ = 0;
};

}  // namespace troupe::runtime
