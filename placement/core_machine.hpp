#pragma once

// The inside of PlacementCore: its state, and the steps over it, by subject in core_requests.cpp,
// core_groups.cpp and core_nodes.cpp. Nobody else includes this.
//
// Ownership of space: a bundle's place is allocated in `cluster_` from the decision to place it
// until it is given up here; the node may learn of either a little later. That order is safe since
// the node refuses what is taken, and quick since one pass carries cancels before prepares.
// **Threads:** one at a time.
// **Invariants:** those that check_invariants() checks.

#include "placement/placement_core.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::placement {

enum class PartStage : std::uint8_t {
  kToPrepare,
  kPreparing,
  kPrepared,
  kToCommit,
  kCommitting,
  kCommitted,
};

/// What an attempt asks of one node.
struct AttemptPart {
  PartStage stage = PartStage::kToPrepare;
  std::uint64_t sent_in = 0;  ///< number of the last pass with it; 0: the node never heard of it
  std::vector<Slot> slots{};
};

struct Attempt {
  Epoch epoch{};
  bool one_phase = false;
  std::map<NodeId, AttemptPart> parts{};
};

struct Resize {
  RequestToken token = 0;
  std::uint64_t number = 0;
  TimePoint deadline{};
  GroupRequest request{};  ///< the grown one
};

/// Where the answer to one item of a message goes.
struct AnswerSlot {
  RequestToken token = 0;
  std::size_t index = 0;
};

struct Group {
  LedgerGroup ledger{};  ///< exactly what the records say
  GroupStatus status = GroupStatus::kPending;
  TimePoint created{};
  TimePoint queued_since{};
  std::uint32_t next_slot = 0;
  std::optional<Attempt> attempt{};
  std::optional<Resize> resize{};
  std::uint32_t failures = 0;  ///< attempts since the last success
  TimePoint not_before{};
  std::optional<TimePoint> lost_since{};
  std::vector<std::int32_t> lost{};  ///< bundles that were active and have no place now
  std::string why{};
  std::uint64_t infeasible_at = 0;  ///< topology version of the verdict
  std::set<NodeId> cancelling{};    ///< nodes that have not confirmed a cancel
  std::set<NodeId> on_nodes{};      ///< that hold a committed bundle of it
  std::vector<AnswerSlot> removers{};
  std::optional<Error> removal_cause{};
  /// Session and pass in which each slot was committed, to judge older truths of its node.
  std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> committed_in{};

  GroupId id() const { return ledger.id; }
  const std::string& name() const { return ledger.request.name; }
  /// What it should be: with the bundles of a growth that waits.
  const GroupRequest& wanted() const { return resize ? resize->request : ledger.request; }
  bool complete() const { return ledger.slots.size() == wanted().bundles.size(); }
};

/// Slots of one group that a node is to give up.
struct CancelWork {
  std::map<std::uint32_t, Epoch> slots{};
  std::uint64_t sent_in = 0;  ///< 0: to be sent
};
struct RenumberWork {
  Epoch epoch{};
  std::map<std::uint32_t, std::int32_t> bundles{};
  std::uint64_t sent_in = 0;
};

struct SentOp {
  NodeOpKind kind = NodeOpKind::kPrepare;
  GroupId group{};
  Epoch epoch{};
};
struct SentPass {
  TimePoint at{};
  bool truth = false;
  std::vector<SentOp> ops{};
};

/// A node: what its agent said, and the session with it.
struct NodeLink {
  NodeId id{-1};  ///< given when it joins the cluster
  NodeSpec spec{};
  std::uint64_t incarnation = 0;
  std::uint64_t hello = 0;
  ConnectionId connection = 0;  ///< 0: none
  bool in_cluster = false;      ///< false: known from the ledger only
  bool attached = false;        ///< it answered the first pass of this session
  std::uint64_t session = 0;
  std::uint64_t number = 0;  ///< of the last pass
  TimePoint last_pass{};
  TimePoint truth_at{};
  bool want_truth = false;
  std::optional<TimePoint> lost_at{};  ///< while it has no connection
  std::map<std::uint64_t, SentPass> sent{};
  std::set<GroupId> due{};  ///< groups whose part here has something to send
  std::map<GroupId, CancelWork> cancels{};
  std::map<GroupId, RenumberWork> renumbers{};
  std::set<GroupId> open_parts{};  ///< groups with an attempt that includes this node
  std::set<GroupId> holders{};     ///< groups with a committed bundle here
  bool renew = false;              ///< a pass is due although there is nothing to say
  std::optional<TimePoint> wake_at{};
};

struct OwnerLink {
  ConnectionId connection = 0;
  std::optional<TimePoint> lost_at{};
  std::set<GroupId> groups{};
  std::map<std::uint64_t, GroupId> numbers{};  ///< live groups by the request that created them
};

struct OpenAnswer {
  std::vector<std::optional<result<GroupId>>> outcomes;
  std::size_t open = 0;
};

class CoreMachine {
 public:
  CoreMachine(CoreOptions options, LedgerState ledger, TimePoint now);

  CoreEffects step(const std::vector<CoreEvent>& events, TimePoint now, Rng& rng);
  std::optional<TimePoint> next_wake() const;
  bool is_quiet() const;
  LedgerState ledger_state() const;
  LedgerCounters counters() const { return counters_; }
  const Cluster& cluster() const { return cluster_; }
  GroupView view_of(const Group& group) const;
  const std::map<GroupId, Group>& groups() const { return groups_; }
  const std::map<std::string, NodeLink, std::less<>>& nodes() const { return nodes_; }
  std::size_t requests_open() const { return answers_.size(); }
  void check_invariants() const;

 private:
  enum class TimerKind : std::uint8_t { kGroup, kNode, kOwner, kPass };
  using Timer = std::tuple<TimePoint, TimerKind, std::uint64_t, std::string>;
  /// Something to let out once a record is durable.
  struct Deferred {
    std::uint64_t record = 0;
    std::variant<Answer, std::pair<Owner, GroupChange>> effect;
  };

  // core_requests.cpp: owners and what they ask
  void handle(const SessionAsked& event);
  void handle(const CreateAsked& event);
  void handle(const RemoveAsked& event);
  void handle(const ResizeAsked& event);
  void handle(const ViewAsked& event);
  void handle(const ExplainAsked& event);
  void handle(const ListAsked& event);
  OwnerLink* owner_of(ConnectionId connection, Owner& owner);
  void owner_down(const Owner& owner, bool silent);
  void owner_gone(const Owner& owner);
  void tell_present(const Group& group);
  result<GroupId> create(const Owner& owner, OwnerLink& link, const CreateGroup& asked);
  result<void> check_create(const CreateGroup& asked) const;
  void remove_one(const GroupKey& key, AnswerSlot slot);
  result<Group*> find(const GroupKey& key);
  result<void> resize(const ResizeAsked& event);
  result<void> shrink_group(Group& group, const ResizeGroup& asked);
  result<void> grow_group(Group& group, const ResizeAsked& event);
  void end_resize(Group& group, const Error& error);
  std::string explain_group(const Group& group);
  void open_answer(RequestToken token, std::size_t items);
  void complete(AnswerSlot slot, result<GroupId> outcome);
  void answer(RequestToken token, AnswerBody body);
  void tell(const Group& group, GroupChange change);
  GroupChange change_of(const Group& group, ChangeKind kind) const;

  // core_groups.cpp: placing, repairing, removing
  bool may_place(const Group& group) const;
  bool verdict_is_final(const Group& group) const;
  std::optional<TimePoint> verdict_at(const Group& group) const;
  void try_place(Group& group);
  void run_pass();
  void decide(Group& group, const Decision& decision);
  void decide_infeasible(Group& group, const Decision& decision);
  void start_attempt(Group& group, const std::vector<BundlePlacement>& bundles);
  void abort_attempt(Group& group);
  void attempt_failed(Group& group, const Error& error);
  void part_prepared(Group& group, NodeId node);
  void part_committed(Group& group, NodeLink& link, std::uint64_t number);
  void placed(Group& group);
  void give_up_slots(Group& group, const std::vector<std::int32_t>& bundles);
  void restart_whole(Group& group);
  void lose_bundles(Group& group, std::vector<std::int32_t> bundles, const Error& cause);
  void begin_removal(Group& group, std::optional<Error> cause);
  void finish_removal(Group& group);
  void look_at(Group& group);
  void reindex(Group& group);
  void free_bundles(const Group& group, const std::vector<std::int32_t>& bundles);
  void record_placed(Group& group);
  void record(LedgerRecord record);
  void defer(std::variant<Answer, std::pair<Owner, GroupChange>> effect);

  // core_nodes.cpp: sessions with nodes
  void handle(const HelloArrived& event);
  void handle(const ReplyArrived& event);
  void handle(const PassFailed& event);
  void handle(const ConnectionLost& event);
  result<void> greet(const HelloArrived& event);
  result<void> change_spec(NodeLink& link, const NodeSpec& spec);
  void node_down(NodeLink& link, bool silent);
  void node_lost(const std::string& name, const Error& cause);
  void end_session(NodeLink& link, bool node_stays);
  void op_done(NodeLink& link, const SentOp& op, std::uint64_t number,
               const std::optional<Error>& refusal);
  void reconcile(NodeLink& link, const NodeReply& reply);
  void judge_held(NodeLink& link, const HeldSlot& held);
  void join_cluster(NodeLink& link);
  void cancel_at(NodeLink& link, GroupId group, const std::map<std::uint32_t, Epoch>& slots);
  void cancel_done(NodeLink& link, GroupId id);
  void look_at(NodeLink& link);
  void send_due(NodeLink& link);
  void resend_late(NodeLink& link);
  void add_cancels(NodeLink& link, std::vector<NodeOp>& ops);
  void add_renumbers(NodeLink& link, std::vector<NodeOp>& ops);
  std::optional<NodeOp> part_op(NodeLink& link, GroupId id);
  void send_pass(NodeLink& link, std::vector<NodeOp> ops);
  void wake_link_at(NodeLink& link, TimePoint at);
  NodeLink* link_of(NodeId id);
  NodeLink* link_of_connection(ConnectionId connection);
  Group* group_of(GroupId id);

  void handle(const LedgerDurable& event);
  void handle(const Tick& /*event*/) {}
  void release_deferred();
  void run_timers();
  void add_timer(TimePoint at, TimerKind kind, std::uint64_t key, std::string name = {});
  void wake_pass_at(TimePoint at);
  void snapshot_if_due();
  Epoch next_epoch();
  void notice(std::string text) { effects_.notices.push_back(std::move(text)); }
  void check_group(const Group& group) const;
  void check_link(const NodeLink& link) const;

  CoreOptions options_;
  LedgerCounters counters_{};
  TimePoint started_{};
  TimePoint now_{};
  Rng* rng_ = nullptr;  // of the present step
  CoreEffects effects_;

  Cluster cluster_;
  Scheduler scheduler_;
  std::map<GroupId, Group> groups_{};
  std::map<std::string, GroupId, std::less<>> names_{};
  std::size_t bundles_ = 0;  // wanted by all groups
  std::map<std::string, NodeLink, std::less<>> nodes_{};
  std::map<NodeId, std::string> node_names_{};
  std::map<ConnectionId, std::string> node_connections_{};
  std::map<ConnectionId, Owner> owner_connections_{};
  std::map<Owner, OwnerLink> owners_{};
  std::map<RequestToken, OpenAnswer> answers_{};
  std::deque<Deferred> deferred_;
  std::set<GroupId> waiting_;
  std::set<std::string> busy_;  // nodes with something to send
  std::set<Timer> timers_;
  bool pass_wanted_ = false;
  TimePoint next_pass_{};
  std::optional<TimePoint> pass_at_{};  // the pass timer that counts
  std::uint64_t epoch_counter_ = 0;
  std::uint64_t session_counter_ = 0;
  std::uint64_t records_ = 0;  // appended
  std::uint64_t durable_ = 0;  // of these
  std::uint64_t records_at_snapshot_ = 0;
};

}  // namespace troupe::placement
