#pragma once

// The meeting place of an in-process group: shared by the handles of its ranks, used by
// collective_local.cpp only.
//
// An operation has two meetings. `arrive` waits (with a deadline) until every rank has said what
// it calls, and checks that all said the same; then every rank works on the posted buffers; then
// `finish` waits until all are done, so that nobody's buffer is touched after its call returned.
// `finish` has no deadline because all that it waits for is copying between buffers.
// Ownership: handles share the group (the last one frees it).
// **Threads:** any; one mutex per group.
// **Invariants:** between `arrive` and `finish` of an operation the posted calls do not change.

#include "runtime/comm/posted_call.hpp"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

namespace troupe::runtime {

class LocalGroup : public std::enable_shared_from_this<LocalGroup> {
 public:
  /// `labels[i]` is the rank of i in the outermost group; `outer` is the group this one was split
  /// from, if any.
  LocalGroup(std::string name, std::vector<int> labels, std::size_t mailbox_bytes,
             std::weak_ptr<LocalGroup> outer = {});

  int size() const { return labels_.size(); }
  const std::string& name() const { return labels_.name; }
  std::int64_t epoch() const;
  std::optional<Error> failure() const;

  result<void> arrive(int rank, const PostedCall& call, Deadline deadline);
  void finish();
  /// Valid between arrive and finish.
  const PostedCall& call_of(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }
  /// Valid between arrive and finish of a split: this rank's new group and rank in it.
  std::pair<std::shared_ptr<LocalGroup>, int> split_of(int rank) const {
    return splits_[static_cast<std::size_t>(rank)];
  }

  result<void> send(int rank, ConstBuffer data, int peer, int tag, Deadline deadline);
  result<void> receive(int rank, Buffer data, int peer, int tag, Deadline deadline);

  void abort(int rank, Error cause);
  void depart(int rank);
  result<void> replace(int rank);
  result<void> rebuild(int rank, std::int64_t new_epoch, Deadline deadline);

 private:
  struct Message {
    ElementType type = ElementType::kByte;
    std::size_t count = 0;
    std::vector<std::byte> bytes;
  };
  struct Mailbox {
    std::map<std::pair<int, int>, std::deque<Message>> queues;  // (sender, tag) → in order
    std::size_t bytes = 0;
    std::condition_variable changed;
  };

  using Lock = std::unique_lock<std::mutex>;

  std::optional<Error> present_failure() const;  // needs the lock
  void fail_group(Lock& lock, Error error);      // keeps the first error; wakes everybody
  std::optional<Error> outer_failure() const;    // without the lock
  void make_splits();
  void end_rebuild(std::optional<Error> error);

  const GroupLabels labels_;
  const std::size_t mailbox_bytes_;
  const std::weak_ptr<LocalGroup> outer_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable met_;
  std::condition_variable finished_;
  std::vector<PostedCall> calls_;
  std::vector<char> arrived_;
  int arrived_count_ = 0;
  std::uint64_t meetings_ = 0;
  int finished_count_ = 0;
  std::uint64_t finishes_ = 0;
  std::vector<std::pair<std::shared_ptr<LocalGroup>, int>> splits_;
  std::vector<std::weak_ptr<LocalGroup>> children_;

  std::optional<Error> failure_;
  std::optional<Error> departure_;
  std::vector<char> departed_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;

  std::int64_t epoch_ = 0;
  std::vector<std::optional<std::int64_t>> rebuilding_;
  int rebuilding_count_ = 0;
  std::uint64_t rebuilds_ended_ = 0;
  std::optional<Error> rebuild_error_;
};

}  // namespace troupe::runtime
