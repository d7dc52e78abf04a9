#pragma once

// The inside of `PlacementClient`: its session with the head, what it has asked, and what it knows
// of its groups. Nobody but placement_client.cpp and client_session.cpp includes this.
//
// **Threads:** every method from any thread; one lock, never held while callbacks run.
// **Invariants:** each question ends once: with an answer, an error, or at its deadline. A question
// that a lost channel left open is asked again in the next session.

#include "placement/placement_client.hpp"
#include "runtime/group/actor_system.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::placement {

class PlacementClient::Impl : public std::enable_shared_from_this<PlacementClient::Impl> {
 public:
  using Reply = result<std::vector<std::byte>>;
  using Done = std::function<void(Reply)>;

  explicit Impl(PlacementClientOptions options);
  ~Impl();

  void attach(runtime::Ref<runtime::Channel> head);
  void down(const runtime::Channel& channel);
  void told(std::span<const std::byte> payload);
  /// `done` is called once: with the answer, an error, or at the deadline.
  void ask(std::string method, std::vector<std::byte> bytes, Deadline deadline, Done done);

  std::uint64_t next_number() {
    const std::lock_guard lock(mutex_);
    return ++last_number_;
  }
  void adopt(GroupId id, const std::string& name, bool detached);
  /// Its removal was confirmed.
  void mark_removed(GroupId id);
  /// The handle of a group is dropped.
  void drop(GroupId id);
  runtime::pending<GroupNews> wait_active(GroupId id, Deadline deadline);
  GroupNews news(GroupId id) const;
  void watch(GroupId id, GroupWatcher watcher);

 private:
  struct Asked {
    std::string method;
    std::vector<std::byte> bytes;
    Deadline deadline{};
    Done done;
    runtime::CallTimer::Id timer{};
    int times = 0;  ///< it was sent
  };
  struct Waiting {
    runtime::completer<GroupNews> end;
    runtime::CallTimer::Id timer{};
  };
  struct Entry {
    std::string name;
    bool detached = false;
    GroupNews news;
    GroupWatcher watcher;
    std::map<std::uint64_t, Waiting> waiters;
  };

  void session_answered(const runtime::Ref<runtime::Channel>& head, const Reply& answer);
  void send(std::uint64_t id, const Asked& asked, const runtime::Ref<runtime::Channel>& head);
  void remove_strays();
  void answered(std::uint64_t id, const runtime::Ref<runtime::Channel>& head, Reply answer);
  void finish(std::uint64_t id, Reply answer);
  void expire(std::uint64_t id);
  void fail_all(const Error& cause);
  void apply(const GroupChange& change);

  PlacementClientOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  runtime::Ref<runtime::Channel> head_;
  bool in_session_ = false;
  std::uint64_t last_number_ = 0;  // of creates and resizes
  std::uint64_t last_id_ = 0;      // of asked and waiters
  std::map<std::uint64_t, Asked> asked_;
  std::map<GroupId, Entry> groups_;
  std::set<GroupId> strays_;      // told of, and no handle knows them
  std::size_t creates_open_ = 0;  // questions that may still name them
  runtime::CallTimer timer_;      // last: its callbacks use what is above
};

}  // namespace troupe::placement
