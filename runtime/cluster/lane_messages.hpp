#pragma once

// What ranks, controllers and agents say to each other about lanes and device memory.
//
// `lane.wait`, `lane.release` and `memory.*` come from ranks, `lane.skip` and `lane.turns` from
// controllers, `lane.status` from anyone; `memory.move` goes from the agent to the rank that owns
// the entry. Each is one struct, encoded with runtime/wire; docs/cluster.md has the table.
// **Threads:** value types.

#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::runtime {

/// rank → agent: `lane.wait`, answered when the turn has come. The request's own deadline is a
/// little later than the wait's, so that the agent's word on who holds the lane arrives.
struct LaneWait {
  std::string lane;
  std::uint64_t number = 0;
  std::uint64_t floor = 0;  ///< as LaneTicket
  std::string phase;
  bool declared = false;  ///< the phase has needs; without them the ledger is left alone
  std::vector<std::string> resident;
  std::int64_t scratch_bytes = 0;
  Duration within{};  ///< of the wait
  static constexpr auto fields() {
    return std::tuple{
        field("floor", &LaneWait::floor),       field("lane", &LaneWait::lane),
        field("within", &LaneWait::within),     field("number", &LaneWait::number),
        field("phase", &LaneWait::phase),       field("declared", &LaneWait::declared),
        field("resident", &LaneWait::resident), field("scratch_bytes", &LaneWait::scratch_bytes)};
  }
};

/// rank → agent: `lane.release`, the turn is over or is no longer waited for.
struct LaneRelease {
  std::string lane;
  std::uint64_t number = 0;
  static constexpr auto fields() {
    return std::tuple{field("lane", &LaneRelease::lane), field("number", &LaneRelease::number)};
  }
};

/// controller → agent: `lane.skip`, tickets of one lane that nobody will use any more.
struct LaneSkip {
  std::string lane;
  std::uint64_t floor = 0;  ///< as LaneTicket
  std::vector<std::uint64_t> numbers;
  static constexpr auto fields() {
    return std::tuple{field("lane", &LaneSkip::lane), field("floor", &LaneSkip::floor),
                      field("numbers", &LaneSkip::numbers)};
  }
};
struct LaneSkips {
  std::vector<LaneSkip> lanes;
  static constexpr auto fields() { return std::tuple{field("lanes", &LaneSkips::lanes)}; }
};

/// rank → agent: `memory.add`. The owner is the rank of the channel.
struct MemoryAdd {
  std::string lane;
  std::string what;
  std::int64_t bytes = 0;
  std::int32_t eviction = 0;   ///< of enum Eviction
  std::int32_t residency = 0;  ///< of enum Residency
  static constexpr auto fields() {
    return std::tuple{field("lane", &MemoryAdd::lane), field("what", &MemoryAdd::what),
                      field("bytes", &MemoryAdd::bytes), field("eviction", &MemoryAdd::eviction),
                      field("residency", &MemoryAdd::residency)};
  }
};

/// rank → agent: `memory.remove` and, with the new size, `memory.resize`.
struct MemoryChange {
  std::string lane;
  std::string what;
  std::int64_t bytes = 0;
  static constexpr auto fields() {
    return std::tuple{field("lane", &MemoryChange::lane), field("what", &MemoryChange::what),
                      field("bytes", &MemoryChange::bytes)};
  }
};

/// rank → agent: `memory.room`, answered with bytes as one integer.
struct MemoryRoom {
  std::string lane;
  std::string phase;
  std::vector<std::string> resident;
  std::int64_t scratch_bytes = 0;
  static constexpr auto fields() {
    return std::tuple{field("lane", &MemoryRoom::lane), field("phase", &MemoryRoom::phase),
                      field("resident", &MemoryRoom::resident),
                      field("scratch_bytes", &MemoryRoom::scratch_bytes)};
  }
};

/// agent → rank: `memory.move`; answered, empty, once it is done.
struct MemoryMoveOrder {
  std::string what;
  std::int32_t kind = 0;  ///< of enum MoveKind
  std::string phase;      ///< that needs it
  static constexpr auto fields() {
    return std::tuple{field("what", &MemoryMoveOrder::what), field("kind", &MemoryMoveOrder::kind),
                      field("phase", &MemoryMoveOrder::phase)};
  }
};

/// One line of who holds or awaits a lane.
struct LanePlaceReport {
  std::uint64_t number = 0;
  std::string rank;  ///< `job/group/rank`
  std::string phase;
  double since_s = 0;
  static constexpr auto fields() {
    return std::tuple{
        field("number", &LanePlaceReport::number), field("rank", &LanePlaceReport::rank),
        field("phase", &LanePlaceReport::phase), field("since_s", &LanePlaceReport::since_s)};
  }
};

/// One entry of a ledger.
struct MemoryEntryReport {
  std::string owner;
  std::string what;
  std::int64_t bytes = 0;
  std::string residency;  ///< resident, offloaded, dropped
  static constexpr auto fields() {
    return std::tuple{field("owner", &MemoryEntryReport::owner),
                      field("what", &MemoryEntryReport::what),
                      field("bytes", &MemoryEntryReport::bytes),
                      field("residency", &MemoryEntryReport::residency)};
  }
};

struct LaneReport {
  std::string lane;
  std::uint64_t next = 1;  ///< whose turn it is, come or not
  double next_since_s = 0;
  std::int64_t turns_taken = 0;
  std::optional<LanePlaceReport> holder;
  std::vector<LanePlaceReport> waiting;  ///< in the order they will be served
  std::int64_t capacity_bytes = 0;
  std::int64_t used_bytes = 0;
  std::vector<MemoryEntryReport> entries;
  static constexpr auto fields() {
    return std::tuple{field("lane", &LaneReport::lane),
                      field("next", &LaneReport::next),
                      field("next_since_s", &LaneReport::next_since_s),
                      field("turns_taken", &LaneReport::turns_taken),
                      field("holder", &LaneReport::holder),
                      field("waiting", &LaneReport::waiting),
                      field("capacity_bytes", &LaneReport::capacity_bytes),
                      field("used_bytes", &LaneReport::used_bytes),
                      field("entries", &LaneReport::entries)};
  }
};

/// controller → agent: `lane.turns`, finished turns of a job after a point in the agent's history.
struct LaneTurnsRequest {
  std::string job;
  std::uint64_t after = 0;
  static constexpr auto fields() {
    return std::tuple{field("job", &LaneTurnsRequest::job),
                      field("after", &LaneTurnsRequest::after)};
  }
};

/// A turn that is over, with times as how long ago, so that clocks of hosts need not agree.
struct LaneTurnReport {
  std::string lane;
  std::uint64_t number = 0;
  std::string rank;
  std::string phase;
  double began_s_ago = 0;
  double ended_s_ago = 0;
  static constexpr auto fields() {
    return std::tuple{field("lane", &LaneTurnReport::lane),
                      field("number", &LaneTurnReport::number),
                      field("rank", &LaneTurnReport::rank),
                      field("phase", &LaneTurnReport::phase),
                      field("began_s_ago", &LaneTurnReport::began_s_ago),
                      field("ended_s_ago", &LaneTurnReport::ended_s_ago)};
  }
};
struct LaneTurns {
  std::vector<LaneTurnReport> turns;  ///< at most 1,000
  std::uint64_t last = 0;             ///< ask for what comes after this
  std::uint64_t lost = 0;             ///< turns of any job that were too old to be kept
  static constexpr auto fields() {
    return std::tuple{field("turns", &LaneTurns::turns), field("last", &LaneTurns::last),
                      field("lost", &LaneTurns::lost)};
  }
};

}  // namespace troupe::runtime
