#pragma once

// `ClusterClient`: what a controller has of a cluster: its session with the head, pools of devices,
// a launcher that starts ranks on them, and the lanes of those devices.
//
//   auto client = ClusterClient::open(system, {.access = access, .job = "job7"});
//   auto pool = (*client)->create_pool(request, terms, deadline);     // one bundle per rank
//   auto job = ClusterJob::open(system, &(*client)->hub(), (*client)->launcher(), …);
//   GroupOptions options{…, .lanes = (*pool)->lanes()};               // rank i on bundle i
//   RemoteProgram program{…, .reservation = (*pool)->name()};
//
// The head may be away: what runs goes on, requests wait for it. It is told again of the job when
// it is back.
// Ownership: owns hub, session and launcher; `system` outlives it, and it outlives its pools and
// every group that runs on them.
// **Threads:** methods from any thread; those that wait say so. Callbacks run on the link's I/O
// thread and must not block.
// **Invariants:** a pool's bundles are given up when it is destroyed, when this is, or when this
// process is gone. One gate per (node, device): all groups of the job on a device share its line.

#include "placement/cluster_access.hpp"
#include "placement/placement_client.hpp"
#include "runtime/cluster/agent_launcher.hpp"
#include "runtime/cluster/ticket_gate.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/link/link_hub.hpp"
#include "runtime/observe/trace.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::placement {

struct ClusterClientOptions {
  ClusterAccess access;
  std::string job;          ///< unique among those that run
  std::string command;      ///< for people, in `troupe list jobs`
  std::string listen_host;  ///< where ranks reach this process; empty: as the head is reached
  Duration connect_within = std::chrono::seconds(10);
  /// `troupe stop JOB`, with its reason.
  std::function<void(const std::string&)> on_stop;
  /// The head holds this controller for dead, or another one has its name: it cannot go on.
  std::function<void(const Error&)> on_lost;
  /// Lines that ranks print; standard error by default.
  std::function<void(std::string_view)> print;
};

class ClusterPool;

class ClusterClient {
 public:
  /// Waits for the head. kConflict at once for a wrong token or certificate; kAlreadyExists for a
  /// job whose controller is up; kDeadline, with the last reason as cause, when it is not there.
  static result<std::unique_ptr<ClusterClient>> open(runtime::ActorSystem& system,
                                                     ClusterClientOptions options);
  ~ClusterClient();
  ClusterClient(const ClusterClient&) = delete;
  ClusterClient& operator=(const ClusterClient&) = delete;

  runtime::LinkHub& hub();
  runtime::AgentLauncher& launcher();
  PlacementClient& placement();
  const std::string& job() const;
  /// For the listener that ranks dial.
  const std::string& listen_host() const;

  /// Asks for the group and waits until every bundle is placed. The head's own error for a request
  /// that is wrong or can never fit; kDeadline with the explanation of why it still waits.
  result<std::unique_ptr<ClusterPool>> create_pool(GroupWish wish, Deadline deadline);

  /// Turns on the devices since the last time, as spans: process `NODE device D`, thread and name
  /// say rank, phase and ticket. Waits for the agents, at most until `deadline`; those that do not
  /// answer are left for the next time.
  void record_turns(runtime::Trace& trace, Deadline deadline);

 private:
  friend class ClusterPool;
  class Impl;
  explicit ClusterClient(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

/// A placement group whose bundles have agents and lanes. Destroying it gives the bundles up.
class ClusterPool {
 public:
  ~ClusterPool();
  ClusterPool(const ClusterPool&) = delete;
  ClusterPool& operator=(const ClusterPool&) = delete;

  const std::string& name() const { return group_.name(); }
  /// By bundle, as of the last `refresh`.
  const std::vector<BundlePlacement>& placements() const { return placements_; }
  std::size_t size() const { return placements_.size(); }
  /// The gate of each bundle's first device; null for a bundle without devices.
  std::vector<runtime::LaneGate*> lanes() const;

  /// Waits until every bundle is placed (again), and takes the new places.
  result<void> refresh(Deadline deadline);
  /// The head moved or lost bundles, or removed the group.
  void watch(GroupWatcher watcher) { group_.watch(std::move(watcher)); }
  PlacementGroup& group() { return group_; }

 private:
  friend class ClusterClient;
  ClusterPool(std::shared_ptr<ClusterClient::Impl> client, PlacementGroup group)
      : client_(std::move(client)), group_(std::move(group)) {}
  std::shared_ptr<ClusterClient::Impl> client_;
  PlacementGroup group_;
  std::vector<BundlePlacement> placements_;
};

}  // namespace troupe::placement
