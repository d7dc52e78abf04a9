#pragma once

// `ClusterJob`: the controller's side of all groups whose ranks are processes.
//
//   auto job = ClusterJob::open(system, hub, launcher, {.job = "job7", .command = {"/bin/rank"}});
//   auto group = WorkerGroup<PolicyWorker>::create(**job, {.name = "policy", .mesh = mesh},
//                                                  {.name = "policy"});
//
// One listener serves the job for its life: ranks dial in, say who they are, and are matched with
// the launches that are expected; it also keeps what they need to find each other: rendezvous
// stores and the addresses of column owners.
// Ownership: made and destroyed by the caller; hub, launcher and system outlive it, and it outlives
// its groups (CHECK). Batches that came from ranks must not be resolved after it is gone.
// **Threads:** any; callbacks of channels run on the link's I/O thread.
// **Invariants:** a dial-in that no launch waits for, a second one of the same rank, and a late one
// are refused, by name. Stores and directories are bounded. A dead rank's columns are lost to
// everybody within its death.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/comm/transport.hpp"
#include "runtime/group/rank_launcher.hpp"
#include "runtime/link/channel.hpp"
#include "runtime/link/link_hub.hpp"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

class ActorSystem;
class ColumnExchange;
class RemoteRank;
struct ColumnOwner;

struct ClusterJobOptions {
  std::string job = "job";
  std::string listen_host = "127.0.0.1";
  std::string announced_host = {};  ///< that ranks dial; empty: listen_host
  /// What rank processes run; a group's program may say otherwise.
  std::vector<std::string> command = {};
  std::map<std::string, std::string> environment = {};
  /// Columns travel by reference over the data plane; without it they travel whole, and only if
  /// they fit a frame.
  bool exchange = true;
  /// Of this process and its ranks; kAuto: as TROUPE_LANES says (lane_interfaces.hpp).
  TransportLanes lanes = TransportLanes::kAuto;
  /// How long the report of a rank's end may come after its connection went down.
  Duration exit_report_within = std::chrono::seconds(1);
};

class ClusterJob {
 public:
  /// With `hub` null nothing listens; dial-ins come through `accept` (tests).
  static result<std::unique_ptr<ClusterJob>> open(ActorSystem& system, LinkHub* hub,
                                                  RankLauncher& launcher,
                                                  ClusterJobOptions options);
  ~ClusterJob();
  ClusterJob(const ClusterJob&) = delete;
  ClusterJob& operator=(const ClusterJob&) = delete;

  const ClusterJobOptions& options() const { return options_; }
  /// host:port that ranks dial.
  const std::string& address() const { return address_; }
  ActorSystem& system() const { return system_; }
  RankLauncher& launcher() const { return launcher_; }
  /// Null without one.
  ColumnExchange* exchange() const { return exchange_.get(); }
  const SessionKey& key() const { return key_; }
  /// Under which ranks grant leases to this controller; new for each job.
  std::string holder() const;

  /// The service of a rank that dialled in, or why it is refused.
  result<std::shared_ptr<ChannelService>> accept(const PeerName& peer, Ref<Channel> channel);

  // From the groups.
  /// kAlreadyExists when a group of that name lives.
  result<void> add_group(const std::string& group);
  /// Its ranks are expected no more, and its store goes.
  void remove_group(const std::string& group);
  /// A dial-in under this name belongs to `rank`.
  void expect(const Ref<RemoteRank>& rank);
  /// The rank's data plane; answers `exchange.lookup` from now on.
  void set_address(const ColumnOwner& owner, std::vector<std::byte> address, Ref<Channel> channel);
  /// Tells the exchange here, and those of all other ranks.
  void owner_lost(const ColumnOwner& owner, const Error& cause);
  /// Answers requests that are not about one group's calls: `store.*`, `exchange.lookup`.
  void serve(const std::string& group, std::string_view method, std::span<const std::byte> payload,
             Deadline deadline, Responder responder);
  /// Runs `work` on a thread of the job's, in order of coming; for what may wait for payload.
  void post(std::function<void()> work);

 private:
  ClusterJob(ActorSystem& system, RankLauncher& launcher, ClusterJobOptions options);
  result<void> open_exchange();

  struct State;
  ActorSystem& system_;
  RankLauncher& launcher_;
  const ClusterJobOptions options_;
  std::string address_;
  SessionKey key_{};
  std::unique_ptr<ColumnExchange> exchange_;
  std::shared_ptr<State> state_;
};

}  // namespace troupe::runtime
