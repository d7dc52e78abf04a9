#pragma once

// `AgentLauncher`: rank processes of a job on many hosts, started by their node agents.
//
// One connection per agent, made with the first rank that goes there and kept: it carries starts
// and stops there, exits and log lines back, and its silence is how either side learns that the
// other is gone. A rank counts as lost when its agent is gone for `agent_grace`, came back as
// another process, or no longer knows it.
// Ownership: outlives the job that uses it; destroying it ends the job at all its agents.
// **Threads:** as RankLauncher; `on_exit` runs on the link's I/O thread or the timer's.
// **Invariants:** as RankLauncher: each launch that succeeded has one `on_exit`, whatever happens
// to agents and connections.

#include "runtime/base/clock.hpp"
#include "runtime/group/rank_launcher.hpp"
#include "runtime/link/channel.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::runtime {

class ActorSystem;
class LinkHub;

/// Where the bundle of a reservation lies.
struct AgentPlace {
  std::string node;     ///< name, for messages
  std::string address;  ///< host:port of its agent
};

struct AgentLauncherOptions {
  std::string job;  ///< also the name of this process in `hub`
  std::function<result<AgentPlace>(const std::string& reservation, int bundle)> locate;
  Duration start_within = std::chrono::seconds(60);  ///< connecting included
  Duration stop_grace = std::chrono::seconds(5);     ///< between SIGTERM and SIGKILL
  Duration agent_grace = std::chrono::seconds(3);    ///< for a lost agent to come back
  /// An agent that nobody answers for, this long after its connection closed, is gone already.
  Duration refused_grace = std::chrono::milliseconds(500);
  /// Takes whole lines, `[gpu-1 policy/3] text\n`; standard error by default.
  std::function<void(std::string_view)> print;
  /// Served to agents on these connections, by prefix, beside the launcher's own notices.
  std::vector<std::pair<std::string, std::shared_ptr<ChannelService>>> services;
};

class AgentLauncher final : public RankLauncher {
 public:
  static result<std::unique_ptr<AgentLauncher>> open(ActorSystem& system, LinkHub& hub,
                                                     AgentLauncherOptions options);
  ~AgentLauncher() override;

  pending<void> launch(const RankLaunch& launch, std::function<void(Error)> on_exit) override;
  void stop(const std::string& group, RankId rank) override;

  /// The connection to an agent, for lanes; null while there is none.
  Ref<Channel> channel_to(const std::string& address) const;

 private:
  class Impl;
  explicit AgentLauncher(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::runtime
