#pragma once

// `PlacementClient` and `PlacementGroup`: placement groups for controllers and apps.
//
//   auto client = PlacementClient::create({.owner = "job7"});
//   … on_up of the channel to the head, whose service is *client: client->attach(channel);
//   PlacementGroup pool = co_await client->create_group(request);
//   GroupView view = co_await pool.wait_active(deadline);   // view.placements[i] is bundle i
//
// A client is one owner: groups that are not detached die when it is gone for the head's owner
// lease. It may lose its channel: requests wait for the next one and are asked again, the head
// tells what changed meanwhile.
// **Threads:** every method from any thread. Watchers run on the link's I/O thread and must not
// block.
// **Invariants:** every pending ends by its deadline. Dropping a PlacementGroup removes the group
// unless it is detached. An outcome is told once, also when a request had to be asked twice.

#include "placement/placement_protocol.hpp"
#include "runtime/link/channel.hpp"
#include "runtime/task/pending.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::placement {

struct PlacementClientOptions {
  std::string owner;
  std::uint64_t instance = 0;                          ///< 0: drawn from clock and process id
  std::size_t requests_max = 65'536;                   ///< unanswered
  Duration request_within = std::chrono::seconds(30);  ///< of a remove by a dropped handle
};

/// What a client knows of a group of its own.
struct GroupNews {
  GroupStatus status = GroupStatus::kPending;
  Epoch epoch{};
  std::vector<BundlePlacement> placements{};  ///< by bundle, while active
  std::optional<Error> cause{};               ///< of what went wrong last
};

using GroupWatcher = std::function<void(const GroupChange&)>;

class PlacementClient;

/// A group that this process made. Move-only.
class PlacementGroup {
 public:
  PlacementGroup() = default;
  PlacementGroup(PlacementGroup&& other) noexcept;
  PlacementGroup& operator=(PlacementGroup&& other) noexcept;
  /// Asks for the removal and does not wait for it, unless the group is detached or was removed.
  ~PlacementGroup();

  bool valid() const { return static_cast<bool>(client_); }
  GroupId id() const { return id_; }
  const std::string& name() const { return name_; }

  /// Ends when every bundle is placed; or with the cause once the group is infeasible, failed or
  /// removed; or at the deadline, which calls nothing off.
  runtime::pending<GroupNews> wait_active(Deadline deadline) const;
  /// Ends when the nodes have given its bundles up.
  runtime::pending<GroupId> remove(Deadline deadline);
  /// New bundles at the end; ends when they are placed.
  runtime::pending<GroupView> grow(std::vector<Bundle> more, Deadline deadline);
  /// Without these bundles; the others are numbered anew.
  runtime::pending<GroupView> shrink(std::vector<std::int32_t> bundles, Deadline deadline);
  runtime::pending<std::string> explain(Deadline deadline) const;
  /// As last told by the head.
  GroupNews news() const;
  /// Calls back for every change from now on; replaces the watcher before.
  void watch(GroupWatcher watcher);
  /// The group outlives this handle and, if its terms say so, this process.
  void release();

 private:
  friend class PlacementClient;
  PlacementGroup(std::shared_ptr<PlacementClient> client, GroupId id, std::string name)
      : client_(std::move(client)), id_(id), name_(std::move(name)) {}

  std::shared_ptr<PlacementClient> client_;
  GroupId id_{};
  std::string name_;
};

struct GroupWish {
  GroupRequest request{};
  GroupTerms terms{};
};

class PlacementClient final : public runtime::ChannelService,
                              public std::enable_shared_from_this<PlacementClient> {
 public:
  static result<std::shared_ptr<PlacementClient>> create(PlacementClientOptions options);
  ~PlacementClient() override;

  /// Uses this channel from now on; its service must be (or contain, under `placement.`) this.
  void attach(runtime::Ref<runtime::Channel> head);

  /// Ends when the head has taken the group on. Bad requests end in an error of their own each:
  /// kInvalidArgument (no bundles, unknown strategy, …), kAlreadyExists (name taken),
  /// kResourceExhausted (larger than any node, or than the cluster).
  runtime::pending<PlacementGroup> create_group(GroupWish wish, Deadline deadline);
  /// Many in one message, each with its own outcome.
  runtime::pending<std::vector<result<PlacementGroup>>> create_groups(std::vector<GroupWish> wishes,
                                                                      Deadline deadline);
  /// Any owner's groups. kNotFound says whether the group was removed or never existed.
  runtime::pending<GroupOutcomes> remove_groups(std::vector<GroupKey> groups, Deadline deadline);
  runtime::pending<GroupView> view(GroupKey group, Deadline deadline);
  runtime::pending<std::string> explain(GroupKey group, Deadline deadline);
  runtime::pending<GroupPage> list(ListGroups list, Deadline deadline);

  void on_request(runtime::Channel& channel, std::string_view method,
                  std::span<const std::byte> payload, Deadline deadline,
                  runtime::Responder responder) override;
  void on_notify(runtime::Channel& channel, std::string_view method,
                 std::span<const std::byte> payload) override;
  void on_down(runtime::Channel& channel, const Error& cause) override;

 private:
  friend class PlacementGroup;
  class Impl;
  explicit PlacementClient(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::placement
