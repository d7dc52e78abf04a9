#pragma once

// What a controller and its rank processes say to each other besides calls and results: names of
// the methods and their payloads (docs/remote_groups.md).
//
// rank → controller  requests `rank.hello` RankHello → RankWelcome, `rank.ready` RankReady,
//                    `store.set`, `store.get`, `exchange.lookup`; notices `rank.constructed`,
//                    `rank.died`, `group.results`, `group.held`
// controller → rank  request `group.status` → RankReport; notices `group.calls`, `group.hold`,
//                    `group.plan`, `group.abort`, `group.cancel`, `group.close`, `exchange.lost`,
//                    `columns.*`
// **Threads:** value types.
// **Invariants:** sent over one channel, so in order.

#include "runtime/batch/column_ref.hpp"
#include "runtime/comm/transport.hpp"
#include "runtime/group/group_options.hpp"
#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace troupe::runtime {

inline constexpr std::string_view kRankHello = "rank.hello";
inline constexpr std::string_view kRankReady = "rank.ready";
inline constexpr std::string_view kRankConstructed = "rank.constructed";
inline constexpr std::string_view kRankDied = "rank.died";
inline constexpr std::string_view kStoreSet = "store.set";
inline constexpr std::string_view kStoreGet = "store.get";
inline constexpr std::string_view kExchangeLookup = "exchange.lookup";
inline constexpr std::string_view kExchangeLost = "exchange.lost";
inline constexpr std::string_view kGroupCalls = "group.calls";
inline constexpr std::string_view kGroupResults = "group.results";
inline constexpr std::string_view kGroupHold = "group.hold";
inline constexpr std::string_view kGroupHeld = "group.held";
inline constexpr std::string_view kGroupPlan = "group.plan";
inline constexpr std::string_view kGroupAbort = "group.abort";
inline constexpr std::string_view kGroupCancel = "group.cancel";
inline constexpr std::string_view kGroupClose = "group.close";
inline constexpr std::string_view kGroupStatus = "group.status";
inline constexpr std::string_view kColumnNotices = "columns.";

/// Changes when frames or messages are understood differently.
inline constexpr int kRankProtocol = 1;

struct RankHello {
  int protocol = kRankProtocol;
  std::string version;  ///< of Troupe, for messages
  std::string boot;     ///< of the host's kernel; the same: one steady clock
  int pid = 0;
  static constexpr auto fields() {
    return std::tuple{field("protocol", &RankHello::protocol),
                      field("version", &RankHello::version), field("boot", &RankHello::boot),
                      field("pid", &RankHello::pid)};
  }
};

struct MethodName {
  std::string name;
  std::uint64_t signature = 0;
  static constexpr auto fields() {
    return std::tuple{field("name", &MethodName::name), field("signature", &MethodName::signature)};
  }
};

struct MeshAxis {
  std::string name;
  int size = 1;
  static constexpr auto fields() {
    return std::tuple{field("name", &MeshAxis::name), field("size", &MeshAxis::size)};
  }
};

struct RankWelcome {
  std::string program;
  std::vector<std::byte> spec;
  std::vector<MeshAxis> mesh;
  std::vector<MethodName> methods;
  bool collectives = true;
  bool exchange = true;        ///< columns may travel by reference
  std::vector<std::byte> key;  ///< of the data plane
  std::string holder;          ///< session under which the controller holds leases
  Duration create_within{};    ///< left of the group's create_deadline
  static constexpr auto fields() {
    return std::tuple{field("program", &RankWelcome::program),
                      field("spec", &RankWelcome::spec),
                      field("mesh", &RankWelcome::mesh),
                      field("methods", &RankWelcome::methods),
                      field("collectives", &RankWelcome::collectives),
                      field("exchange", &RankWelcome::exchange),
                      field("key", &RankWelcome::key),
                      field("holder", &RankWelcome::holder),
                      field("create_within", &RankWelcome::create_within)};
  }
};

/// Answered, empty, once the controller knows the address: before the worker is constructed.
struct RankReady {
  std::vector<std::byte> address;  ///< of the rank's data plane; empty without one
  static constexpr auto fields() { return std::tuple{field("address", &RankReady::address)}; }
};

struct RankConstructed {
  std::optional<Error> error;
  static constexpr auto fields() { return std::tuple{field("error", &RankConstructed::error)}; }
};

/// A failed CHECK or foreign exception; the process ends after it.
struct RankDied {
  Error cause;
  std::optional<CallId> during;
  static constexpr auto fields() {
    return std::tuple{field("cause", &RankDied::cause), field("during", &RankDied::during)};
  }
};

struct StoreEntry {
  std::string key;
  std::string value;  ///< empty in `store.get`
  static constexpr auto fields() {
    return std::tuple{field("key", &StoreEntry::key), field("value", &StoreEntry::value)};
  }
};

struct OwnerName {
  std::string group;
  RankId rank;
  static constexpr auto fields() {
    return std::tuple{field("group", &OwnerName::group), field("rank", &OwnerName::rank)};
  }
};

struct OwnerLost {
  std::string group;
  RankId rank;
  Error cause;
  static constexpr auto fields() {
    return std::tuple{field("group", &OwnerLost::group), field("rank", &OwnerLost::rank),
                      field("cause", &OwnerLost::cause)};
  }
};

struct GroupHold {
  std::uint64_t round = 0;
  static constexpr auto fields() { return std::tuple{field("round", &GroupHold::round)}; }
};
struct GroupHeld {
  std::uint64_t round = 0;
  CallId last_begun;
  static constexpr auto fields() {
    return std::tuple{field("round", &GroupHeld::round),
                      field("last_begun", &GroupHeld::last_begun)};
  }
};
/// What was agreed; ends the hold of its round, and of the failure of `failed_seen` and before.
struct GroupAgreed {
  std::uint64_t round = 0;
  CallId failed_seen;         ///< the last failed call of this rank that the controller knows
  std::vector<CallId> skips;  ///< run on no rank
  CallId rebuild_at;          ///< rebuilds the communicators first; 0: none
  std::int64_t rebuild_epoch = 0;
  static constexpr auto fields() {
    return std::tuple{
        field("round", &GroupAgreed::round), field("failed_seen", &GroupAgreed::failed_seen),
        field("skips", &GroupAgreed::skips), field("rebuild_at", &GroupAgreed::rebuild_at),
        field("rebuild_epoch", &GroupAgreed::rebuild_epoch)};
  }
};

struct GroupAbort {
  Error cause;
  CallId broken_call;    ///< is skipped when not begun; 0: none
  bool leaving = false;  ///< the group is dead: wait for no peer
  static constexpr auto fields() {
    return std::tuple{field("cause", &GroupAbort::cause),
                      field("broken_call", &GroupAbort::broken_call),
                      field("leaving", &GroupAbort::leaving)};
  }
};

struct GroupCancel {
  CallId call;
  static constexpr auto fields() { return std::tuple{field("call", &GroupCancel::call)}; }
};

/// The answer to `group.status`: a RankStatus, and the rank's steady clock.
struct RankReport {
  bool busy = false;
  std::string method;
  std::string waits_for;
  double busy_seconds = 0;
  double waiting_seconds = 0;
  std::int64_t calls_done = 0;
  std::int64_t progress = 0;
  CallId last_begun;
  std::int64_t now_ns = 0;
  static constexpr auto fields() {
    return std::tuple{field("busy", &RankReport::busy),
                      field("method", &RankReport::method),
                      field("waits_for", &RankReport::waits_for),
                      field("busy_seconds", &RankReport::busy_seconds),
                      field("waiting_seconds", &RankReport::waiting_seconds),
                      field("calls_done", &RankReport::calls_done),
                      field("progress", &RankReport::progress),
                      field("last_begun", &RankReport::last_begun),
                      field("now_ns", &RankReport::now_ns)};
  }
  static RankReport of(const RankStatus& status) {
    RankReport report;
    report.busy = status.busy;
    report.method = status.method;
    report.waits_for = status.waits_for;
    report.busy_seconds = status.busy_seconds;
    report.waiting_seconds = status.waiting_seconds;
    report.calls_done = status.calls_done;
    report.progress = status.progress;
    return report;
  }
  RankStatus status(RankId rank) const {
    RankStatus status;
    status.rank = rank;
    status.busy = busy;
    status.method = method;
    status.waits_for = waits_for;
    status.busy_seconds = busy_seconds;
    status.waiting_seconds = waiting_seconds;
    status.calls_done = calls_done;
    status.progress = progress;
    return status;
  }
};

}  // namespace troupe::runtime
