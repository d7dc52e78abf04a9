#pragma once

// `NodeReservations`: what one node holds for placement groups. Pure: bytes and time come from
// NodeReservationService.
//
// The node is the truth: it hands out each device, core and byte once, whatever heads say. It
// answers passes of one head session at a time and drops what is older than what it has seen:
// an older term, another session, a number that is not above the last one.
// **Threads:** one at a time.
// **Invariants:** a unit belongs to at most one slot; a prepare takes all its slots or none; a
// prepared slot is gone one lease after the last pass of the session; nothing that a head sends
// ends the process: it is refused, with the reason, and counted.
// **Cost:** linear in what a pass names; truth is linear in the slots held.

#include "placement/placement_protocol.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::placement {

/// One bundle that the node holds.
struct HeldBundle {
  GroupId group{};
  std::uint32_t slot = 0;
  std::string name{};  ///< of the group
  Epoch epoch{};
  bool committed = false;
  TimePoint lease_until{};  ///< while only prepared
  BundlePlacement placement{};
};

/// What a pass changed, for whoever runs processes on the devices.
struct ReservationChanges {
  std::vector<HeldBundle> committed{};
  std::vector<HeldBundle> released{};  ///< were committed
  std::vector<std::string> notices{};  ///< refusals worth a log line
};

/// Breaks a node on purpose, to show that the simulation notices. Never set outside of it.
enum class NodeMutation : std::uint8_t {
  kNone,
  kIgnoreOrder,     ///< applies passes of older terms, sessions and numbers
  kIgnoreCapacity,  ///< hands out what is taken
  kIgnoreCancel,    ///< confirms cancels and does nothing
};

class NodeReservations {
 public:
  using SlotKey = std::pair<GroupId, std::uint32_t>;

  /// kInvalidArgument for a bad spec. `incarnation` must differ from that of earlier processes.
  static result<NodeReservations> create(NodeSpec spec, std::uint64_t incarnation,
                                         NodeMutation mutation = NodeMutation::kNone);

  /// What to say to a head on a new channel. The old session is over at once.
  NodeHello hello();
  /// The channel is down: no session. Prepared slots live on until their lease ends.
  void session_over() { session_.reset(); }

  /// The answer; none for a pass that is stale or of another session.
  std::optional<NodeReply> step(const NodePass& pass, TimePoint now, ReservationChanges& changes);

  /// Takes no new bundles; say `hello` again to tell the head.
  void set_draining(bool draining) { spec_.draining = draining; }
  /// kInvalidArgument for a device that is not there.
  result<void> set_device_failed(std::int32_t device, bool failed);

  /// The bundle of a committed group, by the group's name.
  std::optional<HeldBundle> find(std::string_view group, std::int32_t bundle) const;
  /// Everything held, prepared slots with a lease in the future included.
  const std::map<SlotKey, HeldBundle>& held() const { return held_; }
  const NodeSpec& spec() const { return spec_; }
  std::uint64_t incarnation() const { return incarnation_; }
  /// Drops prepared slots whose lease is over; `step` does so too.
  void expire(TimePoint now);

 private:
  struct Session {
    std::uint64_t term = 0;
    std::uint64_t session = 0;
    std::uint64_t number = 0;
  };
  /// Units taken, by device and by core, and the rest.
  struct Used {
    std::vector<std::int64_t> devices;
    std::vector<std::int64_t> cores;
    std::int64_t memory = 0;
    std::map<std::string, std::int64_t> named;
  };

  NodeReservations(NodeSpec spec, std::uint64_t incarnation, NodeMutation mutation);
  bool admit(const NodePass& pass);
  result<void> apply(const NodeOp& op, const NodePass& pass, TimePoint now,
                     ReservationChanges& changes);
  result<void> prepare(const NodeOp& op, const NodePass& pass, TimePoint now);
  result<void> commit(const NodeOp& op, ReservationChanges& changes);
  result<void> cancel(const NodeOp& op, ReservationChanges& changes);
  result<void> renumber(const NodeOp& op);
  result<void> check_fits(const BundlePlacement& placement) const;
  void take(const BundlePlacement& placement);
  void give_back(const BundlePlacement& placement);

  NodeSpec spec_{};
  std::uint64_t incarnation_ = 0;
  std::uint64_t hello_ = 0;
  std::uint64_t term_max_ = 0;
  std::optional<Session> session_;
  std::map<SlotKey, HeldBundle> held_{};
  Used used_;
  NodeMutation mutation_ = NodeMutation::kNone;
};

}  // namespace troupe::placement
