#pragma once

// `PlacementCore`: the head's side of placement groups. Pure: `step(events, now, rng) → effects`.
//
// It owns the queue of groups, the cluster as the head believes it to be, one session with each
// node agent and one with each owner. Whoever drives it (PlacementService, the simulation) carries
// out the effects: writes records to the ledger, sends passes to nodes, answers requests, tells
// owners of changes. Answers and changes come out only once the records behind them are durable
// (`LedgerDurable`); passes do not wait, since what no record names is given back after a restart.
// docs/placement_protocol.md has the states and the reasons.
// **Threads:** one at a time.
// **Invariants:** a step never fails; bad requests and bad replies are answered or noted. Each
// request token is answered exactly once. One pass per node and step carries everything there is to
// say to it (more only where a frame would be too large). Nothing depends on the order of pointers
// or hashes: equal histories give equal effects.
// **Cost:** linear in what the events touch; a waiting queue adds a scheduling pass when capacity
// has grown, at most one every `pass_every`.

#include "placement/cluster.hpp"
#include "placement/ledger.hpp"
#include "placement/placement_protocol.hpp"
#include "placement/scheduler.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/rng.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace troupe::placement {

/// Breaks the core on purpose, to show that the simulation notices. Never set outside of it.
enum class CoreMutation : std::uint8_t {
  kNone,
  kForgetCancels,  ///< believes that a cancel was done when it was sent
  kKeepOldEpochs,  ///< takes what nodes hold of earlier attempts for the present one
  kAnswerEarly,    ///< tells owners before the ledger is durable
  kSkipCommit,     ///< takes a group for active when it is only prepared
  kDropRepair,     ///< forgets to replace lost bundles
};

struct CoreOptions {
  SchedulerOptions scheduler{};
  Duration lease = std::chrono::seconds(3);            ///< of prepared bundles, without a pass
  Duration renew_every = std::chrono::seconds(1);      ///< passes to nodes with prepared bundles
  Duration reply_within = std::chrono::seconds(2);     ///< then what was said is said again
  Duration reattach_within = std::chrono::seconds(2);  ///< a node whose channel closed is lost then
  Duration settle = std::chrono::seconds(3);  ///< after a start: nodes and owners may come back
  Duration owner_lease = std::chrono::seconds(3);  ///< an owner without a session is gone then
  Duration backoff_first = std::chrono::milliseconds(100);  ///< after an attempt that failed
  Duration backoff_max = std::chrono::seconds(5);
  double backoff_factor = 1.5;
  /// A group under repair gives up the bundles it still holds after so long, so that two such
  /// groups never wait for each other.
  Duration repair_hold = std::chrono::seconds(10);
  Duration truth_every = std::chrono::seconds(10);      ///< reconciliation of each node
  Duration pass_every = std::chrono::milliseconds(20);  ///< over a long queue
  Duration repass_every = std::chrono::seconds(5);      ///< while groups wait: priorities age
  std::size_t short_queue = 64;                         ///< a pass over it is made at once
  bool one_phase = true;  ///< groups on one node need no prepare of their own

  std::size_t groups_max = 100'000;
  std::size_t bundles_max = 1'000'000;  ///< of all groups
  std::size_t owners_max = 16'384;
  std::size_t requests_max = 100'000;    ///< unanswered ones
  std::size_t passes_in_flight_max = 8;  ///< to one node; what comes meanwhile goes with the next
  std::size_t pass_bytes_max = std::size_t{768} << 10;
  std::uint64_t snapshot_after = 50'000;  ///< records, or four per group if that is more

  CoreMutation mutation = CoreMutation::kNone;
};

using ConnectionId = std::uint64_t;  ///< of a channel, given by the driver; never used twice
using RequestToken = std::uint64_t;  ///< of a request, given by the driver; never used twice

// ---- events --------------------------------------------------------------------------------

struct SessionAsked {
  ConnectionId connection = 0;
  RequestToken token = 0;
  OpenSession session{};
};
struct CreateAsked {
  ConnectionId connection = 0;
  RequestToken token = 0;
  std::vector<CreateGroup> groups{};
};
struct RemoveAsked {
  ConnectionId connection = 0;
  RequestToken token = 0;
  std::vector<GroupKey> groups{};
};
struct ResizeAsked {
  ConnectionId connection = 0;
  RequestToken token = 0;
  ResizeGroup resize{};
  TimePoint deadline{};  ///< growth that still waits then is called off
};
struct ViewAsked {
  RequestToken token = 0;
  GroupKey group{};
};
struct ExplainAsked {
  RequestToken token = 0;
  GroupKey group{};
};
struct ListAsked {
  RequestToken token = 0;
  ListGroups list{};
};
struct HelloArrived {
  ConnectionId connection = 0;
  RequestToken token = 0;
  NodeHello hello{};
};
struct ReplyArrived {
  ConnectionId connection = 0;
  NodeReply reply{};
};
/// A pass could not be sent, e.g. because it does not fit a frame.
struct PassFailed {
  ConnectionId connection = 0;
  std::uint64_t session = 0;
  std::uint64_t number = 0;
  Error error{};
};
struct ConnectionLost {
  ConnectionId connection = 0;
  bool silent = false;  ///< it was mute for as long as makes a peer dead
};
struct LedgerDurable {
  std::uint64_t records = 0;  ///< all up to this number
};
struct Tick {};

using CoreEvent = std::variant<SessionAsked, CreateAsked, RemoveAsked, ResizeAsked, ViewAsked,
                               ExplainAsked, ListAsked, HelloArrived, ReplyArrived, PassFailed,
                               ConnectionLost, LedgerDurable, Tick>;

// ---- effects -------------------------------------------------------------------------------

struct SendPass {
  ConnectionId connection = 0;
  NodePass pass{};
};
struct Done {};
using AnswerBody = std::variant<Done, GroupOutcomes, GroupView, GroupPage, std::string, Error>;
struct Answer {
  RequestToken token = 0;
  AnswerBody body{};
};
struct TellOwner {
  ConnectionId connection = 0;
  std::vector<GroupChange> changes{};
};

struct CoreEffects {
  std::vector<LedgerRecord> records{};  ///< to append, in order
  std::uint64_t last_record = 0;        ///< the number of the last of all records so far
  /// The whole state up to `last_record`: the ledger may be replaced by it.
  std::optional<std::vector<LedgerRecord>> snapshot{};
  std::vector<SendPass> passes{};
  std::vector<Answer> answers{};
  std::vector<TellOwner> changes{};
  std::vector<std::string> notices{};  ///< for the log
};

// ---- the core ------------------------------------------------------------------------------

/// A node as the head sees it.
struct NodeView {
  std::string name{};
  NodeId id{};
  bool attached = false;
  std::size_t bundles = 0;
  std::set<GroupId> cancelling{};  ///< groups that it was asked to give bundles up of
};

class CoreMachine;

class PlacementCore {
 public:
  /// Continues from what a ledger says, under a term above its last.
  PlacementCore(CoreOptions options, LedgerState ledger, TimePoint now);
  ~PlacementCore();
  PlacementCore(PlacementCore&&) noexcept;
  PlacementCore& operator=(PlacementCore&&) noexcept;

  /// The record that makes the new term durable. It must be so before anything is sent.
  LedgerRecord start_record() const;
  CoreEffects step(const std::vector<CoreEvent>& events, TimePoint now, Rng& rng);
  /// When to send a Tick if nothing else happens before; empty: never.
  std::optional<TimePoint> next_wake() const;
  /// Hardly anything is open: no group waits for room, and few requests for answers.
  bool is_quiet() const;

  void for_each_group(const std::function<void(const LedgerGroup&, GroupStatus)>& visit) const;
  /// What a replay of all records so far gives.
  LedgerState ledger_state() const;
  const Cluster& cluster() const;
  GroupView view(GroupId id) const;  ///< CHECKs that it exists
  std::vector<GroupId> group_ids() const;
  std::vector<NodeView> nodes() const;
  std::uint64_t term() const;
  std::size_t requests_open() const;
  std::size_t attempts_open() const;
  /// CHECKs what the parts of the core say about each other; for tests and simulation.
  void check_invariants() const;

 private:
  std::unique_ptr<CoreMachine> machine_;
};

}  // namespace troupe::placement
