#pragma once

// One rank's side of a group between processes, and the session that groups over the same
// connections share. Used by collective_gloo.cpp and rebuild_gloo.cpp.
//
// A session is one set of connections: that of a whole group in one epoch, and of all groups split
// from it. Groups have an id in every frame.
// Ownership: handles share their session, and own their group with it; the last handle closes the
// session. A group on a thread of the session's may outlive its handle, not the session.
// **Threads:** `GlooGroup` from its handle's thread and the session's two; one mutex per group,
// never held while another is taken or a frame is sent to this very rank.
// **Invariants:** as Collective. What rank 0 decides is applied on every rank in the same order.

#include "runtime/comm/collective_gloo.hpp"
#include "runtime/comm/group_frame.hpp"
#include "runtime/comm/links_gloo.hpp"
#include "runtime/comm/meeting.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

class GlooGroup;

class GlooSession final : public GlooLinks::Listener {
 public:
  /// `links` is null for a group of one.
  explicit GlooSession(std::unique_ptr<GlooLinks> links) : links_(std::move(links)) {}
  ~GlooSession() override;
  GlooSession(const GlooSession&) = delete;
  GlooSession& operator=(const GlooSession&) = delete;
  void start() {
    if (links_) links_->start(*this);
  }

  GlooLinks& links() { return *links_; }
  /// Frames that came for the group before it was made are given to it.
  void add(std::uint64_t id, const std::shared_ptr<GlooGroup>& group);
  void remove(std::uint64_t id);
  void send(int peer, GroupFrame frame);
  /// Closes payload's connections: every group over them fails with `cause`, on all its ranks,
  /// those that have not yet.
  void break_off(const Error& cause);

  void on_frame(int peer, std::span<const std::byte> frame) override;
  void on_closed(int peer, const std::string& why) override;

 private:
  static constexpr std::size_t kOrphansMax = 4096;
  std::vector<std::shared_ptr<GlooGroup>> groups();

  std::unique_ptr<GlooLinks> links_;
  std::atomic<bool> broken_{false};
  std::mutex mutex_;  // guards what follows
  std::map<std::uint64_t, std::weak_ptr<GlooGroup>> groups_;
  std::deque<std::pair<int, GroupFrame>> orphans_;
};

class GlooGroup final {
 public:
  struct Place {
    GroupLabels labels;
    std::vector<int> peers;  ///< [R] ranks in the session
    int rank = 0;
    std::uint64_t id = 1;
    std::size_t mailbox_bytes = 0;
    std::size_t scratch_bytes = 0;
    Duration stall_wait = {};
    Duration answer_wait = {};
  };
  GlooGroup(Place place, GlooSession& session);
  GlooGroup(const GlooGroup&) = delete;
  GlooGroup& operator=(const GlooGroup&) = delete;

  const GroupLabels& labels() const { return place_.labels; }
  const Place& place() const { return place_; }
  int rank() const { return place_.rank; }
  int size() const { return place_.labels.size(); }
  std::optional<Error> failure() const;

  /// Waits until all ranks have come and agree.
  result<void> arrive(const PostedCall& call, Deadline deadline);
  /// A part between this rank and `peer` in phase `phase` of the present operation.
  TransferPart outgoing(int peer, std::uint64_t phase, const void* data, std::size_t bytes) const;
  TransferPart incoming(int peer, std::uint64_t phase, void* data, std::size_t bytes) const;
  result<void> transfer(std::vector<TransferPart> parts, Deadline deadline);
  /// The group that the ranks with the colour of `own` form, after an `arrive`; null for a negative
  /// one.
  result<std::shared_ptr<GlooGroup>> split(int colour, int key, Deadline deadline);

  result<void> send(ConstBuffer data, int peer, int tag, Deadline deadline);
  result<void> receive(Buffer data, int peer, int tag, Deadline deadline);

  /// Fails the group on all ranks; returns the failure that stands.
  Error request_failure(Error error);
  /// The same without waiting for what stands; nothing if it has failed here.
  void fail_all(const Error& error);
  /// Fails it here, and what was split from it.
  void fail_here(Error error);
  /// This rank leaves, and peers are told.
  void leave();
  void add_child(const std::shared_ptr<GlooGroup>& child);

  // From the session's threads.
  void on_frame(int peer, GroupFrame frame);
  void on_closed(int peer, const std::string& why);
  bool has_peer(int peer) const;
  /// The rank was told of as gone.
  bool has_left(int rank) const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Message {
    std::uint64_t id = 0;
    ElementType type = ElementType::kByte;
    std::size_t count = 0;
    std::vector<std::byte> bytes;
    std::shared_ptr<Transfer> transfer;  ///< when the bytes are on their way
  };
  struct Sent {
    std::vector<std::byte> bytes;
    std::shared_ptr<Transfer> transfer;
  };

  std::optional<Error> present_failure() const;  // needs the lock
  result<bool> await_go(std::uint64_t operation, Deadline deadline);
  void on_abandoned(std::uint64_t operation, Error error);
  /// Rank 0 went, or went silent, and this rank has no go for `operation`: peers may have.
  void abandon(std::uint64_t operation, const Error& error);
  void tell(std::optional<Verdict> verdict);
  /// At rank 0 tells all, elsewhere asks rank 0 to.
  void send_failure(const Error& error);
  void apply(const Verdict& verdict);
  void send_to(int rank, GroupFrame frame);
  std::uint64_t slot(std::uint64_t operation, std::uint64_t phase) const;
  Error end_error(const TransferEnd& end);
  bool wait_on_peer(Lock& lock, int peer, Deadline deadline, const std::function<bool()>& ready);
  result<void> wait_for(const std::shared_ptr<Transfer>& transfer, Deadline deadline);
  void put_message(int from, GroupFrame frame);
  result<void> take(int peer, int tag, Message message, Buffer data, Deadline deadline);

  const Place place_;
  GlooSession& session_;

  std::mutex meeting_mutex_;  // guards meeting_ and keeps verdicts in order; taken before mutex_
  std::optional<Meeting> meeting_;  // at rank 0

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::uint64_t called_ = 0;
  std::uint64_t begun_ = 0;
  std::optional<Error> failure_;
  std::optional<Error> departure_;
  std::optional<std::pair<std::uint64_t, Error>> abandoned_;  // operation that a peer will not join
  std::vector<char> departed_;
  std::vector<std::optional<TimePoint>> closed_at_;  // [R] connections seen closed
  bool left_ = false;
  std::shared_ptr<Transfer> active_;
  std::vector<std::weak_ptr<GlooGroup>> children_;
  std::map<std::pair<int, int>, std::deque<Message>> mailbox_;  // (sender, tag) → in order
  std::vector<std::size_t> unread_;                             // [R] bytes that each has not taken
  std::map<std::pair<int, std::uint64_t>, Sent> sent_;          // (receiver, id) → until taken
  std::uint64_t messages_ = 0;
};

/// What a handle holds: the group goes before the session that it uses.
struct GlooMembership {
  std::shared_ptr<GlooSession> session;
  std::shared_ptr<GlooGroup> group;
};

}  // namespace troupe::runtime
