#pragma once

// `LaneCore`: one device's lane and memory ledger for one job, as a pure state machine.
//
// A ticket whose turn has come first gets its memory: the ledger plans, the owners of entries are
// asked one move at a time, and only then is the turn granted. A refused or failed phase ends the
// ticket and lets the next go.
// **Threads:** belongs to one owner, which performs the effects.
// **Invariants:** those of TicketLane and MemoryLedger; every asked request is answered by exactly
// one effect; between a grant and its end no other turn runs and no memory moves; a dead rank's
// tickets, entries and moves are gone at once.

#include "runtime/base/clock.hpp"
#include "runtime/cluster/ticket_lane.hpp"
#include "runtime/device/memory_ledger.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// The shell's handle of a request that waits for an answer.
using LaneRequestId = std::uint64_t;

struct AskTurn {
  LaneRequestId request = 0;
  std::uint64_t number = 0;
  std::uint64_t floor = 0;  ///< tickets below are over
  std::string rank;
  Phase phase;            ///< keys with this rank as owner
  bool declared = false;  ///< without: nothing but the turn
};
/// The turn is over, or the wait for it is given up. Unknown numbers are ignored.
struct EndTurn {
  std::uint64_t number = 0;
  std::string rank;
};
/// From the controller: will not be used (any more).
struct SkipTickets {
  std::vector<std::uint64_t> numbers;
  std::uint64_t floor = 0;  ///< tickets below are over
};
struct RankGone {
  std::string rank;
  Error cause;
};
/// The wait's deadline has passed.
struct AskExpired {
  LaneRequestId request = 0;
};
/// How the move that was asked for last ended.
struct MoveEnded {
  std::uint64_t move = 0;
  std::optional<Error> failure;
};
using LaneEvent = std::variant<AskTurn, EndTurn, SkipTickets, RankGone, AskExpired, MoveEnded>;

struct TurnGranted {
  LaneRequestId request = 0;
};
struct TurnRefused {
  LaneRequestId request = 0;
  Error cause;
};
/// Ask the owner of the key; answer with MoveEnded.
struct MoveWanted {
  std::uint64_t move = 0;
  MemoryMove what;
  std::string phase;
};
/// For the trace: a turn from grant to end.
struct TurnOver {
  TicketPlace place;  ///< `since` is the grant
  TimePoint ended;
};
using LaneEffect = std::variant<TurnGranted, TurnRefused, MoveWanted, TurnOver>;

class LaneCore {
 public:
  LaneCore(std::string name, DeviceId device, Bytes capacity, TicketLane::Options options = {});

  std::vector<LaneEffect> step(const LaneEvent& event, TimePoint now);

  // What ranks write down; see MemoryLedger. The lane's turn is not needed for it.
  result<void> add(MemoryEntry entry) { return memory_.add(std::move(entry)); }
  result<void> remove(const MemoryKey& key) { return memory_.remove(key); }
  result<void> resize(const MemoryKey& key, Bytes bytes) { return memory_.resize(key, bytes); }

  const MemoryLedger& memory() const { return memory_; }
  const TicketLane& lane() const { return lane_; }
  TimePoint next_since() const { return next_since_; }
  const std::string& name() const { return name_; }
  /// Requests that wait for an answer.
  std::size_t open_requests() const { return asks_.size(); }

 private:
  struct Ask {
    LaneRequestId request = 0;
    Phase phase;
    bool declared = false;
  };
  using Effects = std::vector<LaneEffect>;

  void on(const AskTurn& event, TimePoint now, Effects& effects);
  void on(const EndTurn& event, TimePoint now, Effects& effects);
  void on(const SkipTickets& event, TimePoint now, Effects& effects);
  void on(const RankGone& event, TimePoint now, Effects& effects);
  void on(const AskExpired& event, TimePoint now, Effects& effects);
  void on(const MoveEnded& event, TimePoint now, Effects& effects);

  void settle(std::uint64_t floor, Effects& effects);
  /// Ends a ticket; a wait for it is refused with `cause`.
  void finish(std::uint64_t number, const Error& cause, TimePoint now, Effects& effects);
  /// Gives the turn on, and makes the memory of the holder's phase fit.
  void advance(TimePoint now, Effects& effects);
  /// One step of making room for the holder; false when it waits for a move or was refused.
  bool make_room(TimePoint now, Effects& effects);
  Error overdue(const Ask& ask, std::uint64_t number, TimePoint now) const;

  const std::string name_;
  TicketLane lane_;
  MemoryLedger memory_;
  std::map<std::uint64_t, Ask> asks_;  ///< by ticket: waiting, or holding and not granted yet
  bool in_phase_ = false;              ///< the holder's phase is entered in the ledger
  struct Moving {
    std::uint64_t move = 0;
    MemoryMove what;
    std::uint64_t number = 0;
  };
  std::optional<Moving> moving_;
  std::uint64_t last_move_ = 0;
  TimePoint next_since_{};
};

}  // namespace troupe::runtime
