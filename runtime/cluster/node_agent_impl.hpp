#pragma once

// The inside of NodeAgent; private to node_agent*.cpp.
//
// **Threads:** requests come on the link's I/O thread, exits on the process table's, ticks on the
// timer's; one lock guards the core, and effects are performed under it, so that they happen in the
// order in which they were decided. Hooks of the user are called without it.
// **Invariants:** lock order: mutex_, then RankProcesses', then the log's; the log sink takes
// log_mutex_ only.

#include "runtime/cluster/head_messages.hpp"
#include "runtime/cluster/node_agent.hpp"
#include "runtime/cluster/rank_processes.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/link/link_hub.hpp"
#include "runtime/link/reconnecting_channel.hpp"
#include "runtime/link/service_table.hpp"

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

class NodeAgent::Impl final : public std::enable_shared_from_this<Impl> {
 public:
  using Payload = std::span<const std::byte>;
  using Answer = result<std::vector<std::byte>>;

  Impl(ActorSystem& system, LinkHub* hub, NodeAgentOptions options);

  result<void> open();
  /// Ends ranks and channels; nothing is called back afterwards.
  void close();

  result<void> attach(const Ref<Channel>& channel);
  void on_request(Channel& channel, std::string_view method, Payload payload, Responder responder);
  void on_notify(Channel& channel, std::string_view method, Payload payload);
  void on_down(Channel& channel, const Error& cause);

  std::uint64_t instance() const { return instance_; }
  std::string address() const { return address_; }
  std::shared_ptr<ChannelService> service() const { return table_; }
  NodeState state() const;
  void revoke(const std::string& reservation, std::optional<int> bundle, const Error& cause);
  void drain(Duration grace, const std::string& reason);
  bool draining() const;
  result<void> wait_drained(Deadline deadline);
  std::string wait_stop(const std::function<bool()>& poll);

 private:
  class Service;
  using Serial = AgentCore::Serial;
  using Connection = AgentCore::Connection;
  using Hooks = std::vector<std::function<void()>>;
  struct Peer {
    Connection id = 0;
    Ref<Channel> channel;
  };
  struct Process {
    RankProcesses::Key key = 0;
    int pid = 0;
    std::string group;
    RankId rank;
    std::string job;
    Responder answer;  ///< to rank.start
  };

  // Requests; each checks who asks.
  void start_rank(Channel& channel, Payload payload, Responder responder);
  Answer stop_rank(Channel& channel, Payload payload);
  Answer hello(Channel& channel, Payload payload);
  Answer end_job(Channel& channel, Payload payload);
  Answer drain_asked(Channel& channel, Payload payload);

  /// Runs `decide` on the core under the lock, performs what it decided, then calls the hooks.
  template <class Decide>
  void step(Decide decide);
  void perform_locked(AgentCore::Effects effects, Hooks& hooks);
  void perform(AgentCore::StartProcess effect, AgentCore::Effects& more);
  void perform(const AgentCore::StopProcess& effect);
  void perform(AgentCore::AnswerStart effect);
  void perform(const AgentCore::TellExit& effect);
  void perform(const AgentCore::LookAtStuck& effect);
  void process_over(Serial serial, const DeathReport& report);
  void schedule_locked();
  void tick();
  Connection connection_locked(Channel& channel);

  bool forward_log(const std::string& job, const LogBatch& batch);

  void register_with_head(const Ref<Channel>& channel);
  void registered(const Ref<Channel>& channel, const result<std::vector<std::byte>>& answer);
  void head_lost(const Error& cause);
  void report_locked();

  ActorSystem& system_;
  LinkHub* const hub_;
  const NodeAgentOptions options_;
  const std::uint64_t instance_;
  std::string address_;
  std::shared_ptr<ServiceTable> table_;

  mutable std::mutex mutex_;  // guards all below but the log's
  std::condition_variable changed_;
  AgentCore core_;
  bool closing_ = false;
  std::map<const Channel*, Peer> peers_;
  std::map<Connection, Ref<Channel>> channels_;
  Connection last_connection_ = 0;
  std::map<Serial, Process> processes_;
  std::optional<CallTimer::Id> timer_;
  Ref<Channel> head_;  ///< registered
  std::uint64_t reported_version_ = 0;
  std::uint64_t reports_ = 0;
  TimePoint reported_at_{};
  std::optional<std::string> stop_asked_;

  std::mutex log_mutex_;                              // guards log_channels_
  std::map<std::string, Ref<Channel>> log_channels_;  ///< of controllers, by job

  std::unique_ptr<RankProcesses> ranks_;  // its callbacks use the rest
  std::unique_ptr<ReconnectingChannel> to_head_;
};

template <class Decide>
void NodeAgent::Impl::step(Decide decide) {
  Hooks hooks;
  {
    const std::lock_guard lock(mutex_);
    AgentCore::Effects effects;
    decide(effects, hooks);
    perform_locked(std::move(effects), hooks);
    schedule_locked();
  }
  changed_.notify_all();
  for (const auto& hook : hooks) hook();
}

}  // namespace troupe::runtime
