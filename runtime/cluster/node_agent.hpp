#pragma once

// `NodeAgent`: one per host. Starts rank processes for controllers, watches them, forwards what
// they print, and reports to the head.
//
// Decisions are AgentCore's; this is the shell: a listener and a reconnecting channel to the head,
// a ProcessTable, a LogForwarder, a timer. placement/ and lanes add their services by prefix, since
// they lie above. The head may come and go: running jobs do not notice, and the agent registers
// again.
// Ownership: made by `troupe node` (or a test); destroying it kills its ranks.
// **Threads:** any thread may call; callbacks of options run on the link's I/O thread, `place`
// included, and must not block.
// **Invariants:** AgentCore's, and: a rank whose channel to the agent goes down (it was silent for
// the link's `dead_after`, also under SIGSTOP) is killed; exits reach the controller after the
// rank's last lines.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/cluster/agent_core.hpp"
#include "runtime/cluster/host_inventory.hpp"
#include "runtime/cluster/log_lines.hpp"
#include "runtime/cluster/process.hpp"
#include "runtime/link/channel.hpp"
#include "runtime/link/link_options.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

class ActorSystem;
class LinkHub;

struct NodeAgentOptions {
  std::string name;  ///< of the node, unique in the cluster
  HostInventory inventory;
  std::string listen_host = "127.0.0.1";
  std::uint16_t listen_port = 0;
  /// Under which others reach this host; empty: listen_host, or the host's name for a wildcard.
  std::string announced_host;
  std::string head;  ///< host:port; empty: none
  AgentPolicy policy;
  ProcessTableOptions processes;
  LogLimits log_limits;
  std::string cgroup_parent;                            ///< see ProcessSpec
  bool limit_address_space = false;                     ///< see RankProcessesOptions
  std::map<std::string, std::string> rank_environment;  ///< for every rank, e.g. TLS files
  std::string version;                                  ///< of Troupe
  /// Checks the reservation of a start and says where it runs. None: ranks are not pinned.
  std::function<result<RankPlace>(const RankStart&)> place;
  /// Served to every peer beside the agent's own methods, by prefix.
  std::vector<std::pair<std::string, std::shared_ptr<ChannelService>>> services;
  /// Registered with a head (again); its channel serves requests both ways.
  std::function<void(const Ref<Channel>&, const NodeRegistered&)> head_up;
  std::function<void(const Error&)> head_down;
  std::size_t log_backlog_max = std::size_t{4}
                                << 20;              ///< of a controller's channel; then lines wait
  Duration report_every = std::chrono::seconds(1);  ///< snapshots to the head, at most so often
  /// The process of a rank is over, whatever the reason; e.g. to skip its lane tickets. On the
  /// process table's thread.
  std::function<void(const RankExit&)> rank_over;
  /// A job's controller is gone, or has ended it, and so are its ranks here.
  std::function<void(const std::string& job)> job_over;
};

class NodeAgent {
 public:
  /// With `hub` null there is no listener and no head; channels come through `attach`.
  static result<std::unique_ptr<NodeAgent>> open(ActorSystem& system, LinkHub* hub,
                                                 NodeAgentOptions options);
  ~NodeAgent();
  NodeAgent(const NodeAgent&) = delete;
  NodeAgent& operator=(const NodeAgent&) = delete;

  /// What serves any peer of this agent.
  std::shared_ptr<ChannelService> service() const;
  /// A peer has connected; the listener does this itself.
  result<void> attach(Ref<Channel> channel);

  std::uint64_t instance() const;
  /// host:port that controllers and ranks dial; empty without a listener.
  std::string address() const;
  NodeState state() const;
  /// The reservation, or one bundle of it, is gone (removed or expired): its ranks are killed.
  void revoke(const std::string& reservation, const Error& cause,
              std::optional<int> bundle = std::nullopt);

  /// Refuses new ranks, tells the head, stops the ranks there are.
  void drain(Duration grace, const std::string& reason);
  bool draining() const;
  /// Waits until no rank is left after `drain`.
  result<void> wait_drained(Deadline deadline);
  /// Blocks until the head asks this agent to stop (`agent.drain`), or `poll` says so (looked at
  /// every 100 ms); says why. Ranks are still being ended then: see `wait_drained`.
  std::string wait_stop(const std::function<bool()>& poll);

 private:
  class Impl;
  explicit NodeAgent(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::runtime
