#include "runtime/cluster/agent_launcher.hpp"

#include "runtime/base/incarnation.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cluster/log_forwarder.hpp"
#include "runtime/cluster/log_printer.hpp"
#include "runtime/cluster/node_protocol.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/link/link_hub.hpp"
#include "runtime/link/reconnecting_channel.hpp"
#include "runtime/link/service_table.hpp"
#include "runtime/task/when_done.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

namespace troupe::runtime {
namespace {

constexpr Duration kAgentAnswersWithin = std::chrono::seconds(10);
constexpr Duration kHelloAgainAfter = std::chrono::milliseconds(200);
constexpr Duration kFarewellWithin = std::chrono::seconds(1);

using Bytes_ = std::vector<std::byte>;
using Name = std::pair<std::string, RankId>;
/// What is done once the lock is released.
using Later = std::vector<std::function<void()>>;

std::string rank_text(const Name& name) {
  return fmt::format("{} rank {}", name.first, name.second.value);
}

}  // namespace

class AgentLauncher::Impl final : public ChannelService, public std::enable_shared_from_this<Impl> {
 public:
  Impl(ActorSystem& system, LinkHub& hub, AgentLauncherOptions options)
      : system_(system),
        hub_(hub),
        options_(std::move(options)),
        instance_(new_incarnation()),
        printer_(options_.print) {}

  result<void> open() {
    TROUPE_TRY_VOID(check_job_name("job", options_.job));
    if (!options_.locate)
      return fail(ErrorCode::kInvalidArgument, "job {}: nothing says where its bundles lie",
                  options_.job);
    return {};
  }
  void close();

  pending<void> launch(const RankLaunch& launch, std::function<void(Error)> on_exit);
  void stop(const Name& name);
  Ref<Channel> channel_to(const std::string& address) const;

  void on_request(Channel& /*channel*/, std::string_view method, std::span<const std::byte>,
                  Deadline, Responder responder) override {
    responder.reply(fail(ErrorCode::kNotFound, "controller: no method '{}'", method));
  }
  void on_notify(Channel& channel, std::string_view method,
                 std::span<const std::byte> payload) override;

 private:
  enum class Stage : std::uint8_t { kWaiting, kAsked, kRunning };
  struct Rank {
    std::uint64_t number = 0;  ///< tells launches of one name apart
    std::string address;       ///< of its agent
    RankStart start;
    Stage stage = Stage::kWaiting;
    bool stop_wanted = false;
    completer<void> started;
    std::function<void(Error)> on_exit;
  };
  struct Agent {
    std::string node;
    std::string address;
    std::uint64_t instance = 0;  ///< 0 before its first welcome
    bool welcomed = false;       ///< on the channel at hand
    bool greeting = false;       ///< a hello is on its way
    Ref<Channel> channel;
    std::optional<TimePoint> down_since;
    Error down_why;
    std::optional<Error> refused;  ///< the last attempt
    std::unique_ptr<ReconnectingChannel> link;
  };

  void dial(Agent& agent);
  void up(const std::string& address, const Ref<Channel>& channel);
  void say_hello(const std::string& address, const Ref<Channel>& channel);
  void welcomed(const std::string& address, const Ref<Channel>& channel,
                const result<Bytes_>& answer);
  void down(const std::string& address, const Error& cause);
  void refused(const std::string& address, const Error& cause);
  void check_lost(const std::string& address);
  void lose_locked(Agent& agent, const std::string& why, Later& later);
  void reconcile_locked(Agent& agent, const ControllerWelcome& welcome, Later& later);
  void end_locked(std::map<Name, Rank>::iterator rank, Error cause, Later& later);
  void send_start_locked(const Agent& agent, const Name& name, Rank& rank, Later& later);
  void send_stop_locked(const Agent& agent, const Name& name, Duration grace, Later& later);
  void start_answered(const Name& name, std::uint64_t number, const Ref<Channel>& channel,
                      const result<Bytes_>& answer);
  void start_late(const Name& name, std::uint64_t number);
  Agent* agent_locked(const std::string& address);
  /// Runs `change` under the lock, and what it put off afterwards.
  template <class Change>
  void locked(Change change);
  template <class T>
  void ask_later(const Ref<Channel>& channel, std::string_view method, const T& message,
                 std::function<void(const result<Bytes_>&)> then, Later& later);

  ActorSystem& system_;
  LinkHub& hub_;
  const AgentLauncherOptions options_;
  const std::uint64_t instance_;
  LogPrinter printer_;
  mutable std::mutex mutex_;  // guards the following
  std::map<std::string, Agent> agents_;
  std::map<Name, Rank> ranks_;
  std::uint64_t launches_ = 0;
  bool closing_ = false;
};

template <class Change>
void AgentLauncher::Impl::locked(Change change) {
  Later later;
  {
    const std::lock_guard lock(mutex_);
    change(later);
  }
  for (const auto& action : later) action();
}

template <class T>
void AgentLauncher::Impl::ask_later(const Ref<Channel>& channel, std::string_view method,
                                    const T& message,
                                    std::function<void(const result<Bytes_>&)> then, Later& later) {
  auto bytes = encode_value(message);
  later.emplace_back([channel, method, bytes = std::move(bytes), then = std::move(then)] {
    if (!bytes) return then(fail(bytes.error()));
    when_done<Bytes_>(channel->request(method, *bytes, Deadline::in(kAgentAnswersWithin)), then);
  });
}

AgentLauncher::Impl::Agent* AgentLauncher::Impl::agent_locked(const std::string& address) {
  const auto found = agents_.find(address);
  return found == agents_.end() ? nullptr : &found->second;
}

pending<void> AgentLauncher::Impl::launch(const RankLaunch& launch,
                                          std::function<void(Error)> on_exit) {
  auto place = options_.locate(launch.reservation, launch.bundle);
  if (!place) return pending<void>::of(fail(std::move(place).error()));
  const Name name(launch.group, launch.rank);
  auto [started, producer] = make_pending<void>();
  std::optional<Error> refusal;
  std::uint64_t number = 0;
  locked([&](Later& later) {
    if (closing_ || launch.job != options_.job || ranks_.contains(name)) {
      const bool twice = ranks_.contains(name);
      refusal =
          Error{.code = twice ? ErrorCode::kAlreadyExists : ErrorCode::kInvalidArgument,
                .message = fmt::format("{}: {}", rank_text(name),
                                       twice ? "it runs already" : "not of job " + options_.job),
                .origin = {},
                .causes = {}};
      return;
    }
    number = ++launches_;
    Rank rank;
    rank.number = number;
    rank.address = place->address;
    rank.start = RankStart{.job = launch.job,
                           .group = launch.group,
                           .rank = launch.rank,
                           .reservation = launch.reservation,
                           .bundle = launch.bundle,
                           .controller = launch.controller,
                           .command = launch.command,
                           .environment = launch.environment};
    rank.started = producer;
    rank.on_exit = std::move(on_exit);
    Rank& kept = ranks_.emplace(name, std::move(rank)).first->second;
    Agent& agent = agents_[place->address];
    if (agent.address.empty()) {
      agent.node = place->node;
      agent.address = place->address;
      dial(agent);
    }
    if (agent.welcomed) return send_start_locked(agent, name, kept, later);
    // It refused the job before; it may think otherwise by now.
    if (agent.channel && !agent.greeting)
      later.emplace_back([this, address = agent.address, channel = agent.channel] {
        say_hello(address, channel);
      });
  });
  if (refusal) return pending<void>::of(fail(std::move(*refusal)));
  system_.timer().add(steady_now() + options_.start_within,
                      [weak = weak_from_this(), name, number] {
                        if (const auto self = weak.lock()) self->start_late(name, number);
                      });
  return std::move(started);
}

void AgentLauncher::Impl::dial(Agent& agent) {
  auto table = std::make_shared<ServiceTable>();
  // Names of our own prefixes cannot be taken: they are the first.
  (void)table->add("rank.", shared_from_this());
  (void)table->add("log.", shared_from_this());
  for (const auto& [prefix, service] : options_.services) {
    if (const auto added = table->add(prefix, service); !added)
      log::error("job {}: {}", options_.job, added.error().to_string());
  }
  ReconnectOptions link{.address = agent.address, .service = std::move(table)};
  if (!agent.node.empty()) link.peer = PeerName{PeerRole::kNode, agent.node};
  link.on_up = [this, address = agent.address](const Ref<Channel>& channel) {
    up(address, channel);
  };
  link.on_down = [this, address = agent.address](const Error& cause) { down(address, cause); };
  link.on_refused = [this, address = agent.address](const Error& cause) {
    refused(address, cause);
  };
  agent.link = std::make_unique<ReconnectingChannel>(hub_, std::move(link));
}

void AgentLauncher::Impl::up(const std::string& address, const Ref<Channel>& channel) {
  locked([&](Later& later) {
    Agent* agent = agent_locked(address);
    agent->channel = channel;
    agent->refused.reset();
    later.emplace_back([this, address, channel] { say_hello(address, channel); });
  });
}

void AgentLauncher::Impl::say_hello(const std::string& address, const Ref<Channel>& channel) {
  Later later;
  {
    const std::lock_guard lock(mutex_);
    agent_locked(address)->greeting = true;
  }
  ask_later(
      channel, kJobHello, JobHello{.job = options_.job, .instance = instance_},
      [weak = weak_from_this(), address, channel](const result<Bytes_>& answer) {
        if (const auto self = weak.lock()) self->welcomed(address, channel, answer);
      },
      later);
  for (const auto& action : later) action();
}

void AgentLauncher::Impl::welcomed(const std::string& address, const Ref<Channel>& channel,
                                   const result<Bytes_>& answer) {
  auto welcome = answer ? decode_value<ControllerWelcome>(*answer)
                        : result<ControllerWelcome>(fail(answer.error()));
  locked([&](Later& later) {
    Agent* agent = agent_locked(address);
    if (closing_ || agent->channel != channel || channel->failure()) return;
    agent->greeting = false;
    if (!welcome && welcome.error().code == ErrorCode::kConflict) {
      // An earlier controller's ranks are being ended there.
      system_.timer().add(steady_now() + kHelloAgainAfter,
                          [weak = weak_from_this(), address, channel] {
                            const auto self = weak.lock();
                            if (self && !channel->failure()) self->say_hello(address, channel);
                          });
      return;
    }
    if (!welcome)
      return lose_locked(*agent, fmt::format("refuses the job: {}", welcome.error().message),
                         later);
    if (agent->instance != 0 && agent->instance != welcome->instance)
      lose_locked(*agent, "has been started anew", later);
    agent->instance = welcome->instance;
    agent->node = welcome->node;
    agent->welcomed = true;
    agent->down_since.reset();
    reconcile_locked(*agent, *welcome, later);
  });
}

void AgentLauncher::Impl::reconcile_locked(Agent& agent, const ControllerWelcome& welcome,
                                           Later& later) {
  std::vector<Name> there;
  for (const RankState& state : welcome.ranks) {
    there.emplace_back(state.group, state.rank);
    const auto rank = ranks_.find(there.back());
    const bool ours = rank != ranks_.end() && rank->second.address == agent.address &&
                      rank->second.stage != Stage::kWaiting;
    // Given up while the agent was away.
    if (!ours || rank->second.stop_wanted)
      send_stop_locked(agent, there.back(), Duration::zero(), later);
  }
  for (auto at = ranks_.begin(); at != ranks_.end();) {
    const auto rank = at++;
    if (rank->second.address != agent.address) continue;
    const bool listed = std::find(there.begin(), there.end(), rank->first) != there.end();
    if (rank->second.stage == Stage::kWaiting) {
      send_start_locked(agent, rank->first, rank->second, later);
    } else if (!listed) {
      // Its end may have been told over the channel that broke: of its lives there, the last.
      const auto told =
          std::find_if(welcome.told.rbegin(), welcome.told.rend(), [&rank](const RankExit& exit) {
            return exit.group == rank->first.first && exit.rank == rank->first.second;
          });
      if (told != welcome.told.rend() && rank->second.stage == Stage::kRunning) {
        end_locked(rank, told->cause, later);
        continue;
      }
      end_locked(
          rank,
          Error{.code = ErrorCode::kRankDead,
                .message = fmt::format("{} is lost: node {} no longer knows it",
                                       rank_text(rank->first), agent.node),
                .origin = {.group = rank->first.first, .rank = rank->first.second, .node = {}},
                .causes = {}},
          later);
    } else if (rank->second.stage == Stage::kAsked) {
      // The answer was lost with the channel; that it is there is the answer.
      rank->second.stage = Stage::kRunning;
      later.emplace_back([started = rank->second.started] { started.complete({}); });
    }
  }
}

void AgentLauncher::Impl::send_start_locked(const Agent& agent, const Name& name, Rank& rank,
                                            Later& later) {
  rank.stage = Stage::kAsked;
  ask_later(
      agent.channel, kRankStart, rank.start,
      [weak = weak_from_this(), name, number = rank.number,
       channel = agent.channel](const result<Bytes_>& answer) {
        if (const auto self = weak.lock()) self->start_answered(name, number, channel, answer);
      },
      later);
}

void AgentLauncher::Impl::start_answered(const Name& name, std::uint64_t number,
                                         const Ref<Channel>& channel,
                                         const result<Bytes_>& answer) {
  locked([&](Later& later) {
    const auto rank = ranks_.find(name);
    if (rank == ranks_.end() || rank->second.number != number ||
        rank->second.stage != Stage::kAsked)
      return;
    if (!answer && channel->failure()) return;  // found out when the agent is back, or is lost
    if (!answer) return end_locked(rank, answer.error(), later);
    rank->second.stage = Stage::kRunning;
    later.emplace_back([started = rank->second.started] { started.complete({}); });
    const Agent* agent = agent_locked(rank->second.address);
    if (rank->second.stop_wanted && agent->welcomed)
      send_stop_locked(*agent, name, options_.stop_grace, later);
  });
}

/// A start that is not over in time is given up; should the process come to life, it is stopped.
void AgentLauncher::Impl::start_late(const Name& name, std::uint64_t number) {
  locked([&](Later& later) {
    const auto rank = ranks_.find(name);
    if (closing_ || rank == ranks_.end() || rank->second.number != number ||
        rank->second.stage == Stage::kRunning)
      return;
    const Agent* agent = agent_locked(rank->second.address);
    if (agent->welcomed && rank->second.stage == Stage::kAsked)
      send_stop_locked(*agent, name, Duration::zero(), later);
    Error error{.code = ErrorCode::kDeadline,
                .message = fmt::format("{}: node {} at {} has not started it within {:.1f} s",
                                       rank_text(name), agent->node, agent->address,
                                       seconds(options_.start_within)),
                .origin = {.group = name.first, .rank = name.second, .node = {}},
                .causes = {}};
    if (agent->refused) error.causes.push_back(*agent->refused);
    end_locked(rank, std::move(error), later);
  });
}

/// The end of a rank: of its launch when it never ran, of its life otherwise.
void AgentLauncher::Impl::end_locked(std::map<Name, Rank>::iterator rank, Error cause,
                                     Later& later) {
  Rank gone = std::move(rank->second);
  ranks_.erase(rank);
  const bool ran = gone.stage == Stage::kRunning;
  later.emplace_back(
      [ran, started = gone.started, on_exit = std::move(gone.on_exit), cause = std::move(cause)] {
        if (!ran) {
          started.fail(cause);
        } else if (on_exit) {
          on_exit(cause);
        }
      });
}

void AgentLauncher::Impl::stop(const Name& name) {
  locked([&](Later& later) {
    const auto rank = ranks_.find(name);
    if (rank == ranks_.end()) return;
    rank->second.stop_wanted = true;
    if (rank->second.stage == Stage::kWaiting)
      return end_locked(rank, cancelled(rank_text(name) + ": stopped before it was started"),
                        later);
    const Agent* agent = agent_locked(rank->second.address);
    if (rank->second.stage == Stage::kRunning && agent->welcomed)
      send_stop_locked(*agent, name, options_.stop_grace, later);
  });
}

void AgentLauncher::Impl::send_stop_locked(const Agent& agent, const Name& name, Duration grace,
                                           Later& later) {
  const RankStop order{.job = options_.job,
                       .group = name.first,
                       .rank = name.second,
                       .grace = grace,
                       .reason = "its controller stops it"};
  ask_later(
      agent.channel, kRankStop, order,
      [name](const result<Bytes_>& answer) {
        if (!answer) log::debug("{}: stop: {}", rank_text(name), answer.error().to_string());
      },
      later);
}

void AgentLauncher::Impl::on_notify(Channel& channel, std::string_view method,
                                    std::span<const std::byte> payload) {
  if (method == kLogLines) {
    if (const auto batch = decode_value<LogBatch>(payload)) printer_.add(to_text(*batch));
    return;
  }
  const auto exit = method == kRankExit
                        ? decode_value<RankExit>(payload)
                        : result<RankExit>(fail(ErrorCode::kNotFound, "notice '{}'", method));
  if (!exit) {
    log::warn("{}: {}", channel.peer().to_string(), exit.error().to_string());
    return;
  }
  locked([&](Later& later) {
    const auto rank = ranks_.find(Name(exit->group, exit->rank));
    if (rank == ranks_.end() || rank->second.stage == Stage::kWaiting) return;
    const Agent* agent = agent_locked(rank->second.address);
    if (agent->channel.get() != &channel) return;
    if (rank->second.stage == Stage::kAsked) {
      // It ran: its answer went with the channel before this one.
      rank->second.stage = Stage::kRunning;
      later.emplace_back([started = rank->second.started] { started.complete({}); });
    }
    end_locked(rank, exit->cause, later);
  });
}

void AgentLauncher::Impl::down(const std::string& address, const Error& cause) {
  locked([&](Later& later) {
    Agent* agent = agent_locked(address);
    agent->welcomed = false;
    agent->channel = nullptr;
    agent->down_since = steady_now();
    agent->down_why = cause;
    if (peer_was_silent(cause)) return lose_locked(*agent, "is gone: " + cause.to_string(), later);
    system_.timer().add(steady_now() + options_.agent_grace, [weak = weak_from_this(), address] {
      if (const auto self = weak.lock()) self->check_lost(address);
    });
  });
}

void AgentLauncher::Impl::refused(const std::string& address, const Error& cause) {
  locked([&](Later& later) {
    Agent* agent = agent_locked(address);
    agent->refused = cause;
    if (!agent->down_since || steady_now() - *agent->down_since < options_.refused_grace) return;
    lose_locked(*agent, "is gone: " + agent->down_why.to_string(), later);
  });
}

void AgentLauncher::Impl::check_lost(const std::string& address) {
  locked([&](Later& later) {
    Agent* agent = agent_locked(address);
    if (closing_ || !agent->down_since) return;
    if (steady_now() - *agent->down_since < options_.agent_grace) return;
    lose_locked(*agent, "is gone: " + agent->down_why.to_string(), later);
  });
}

/// Ranks that wait for their first connection go on waiting: their deadline is `start_within`.
void AgentLauncher::Impl::lose_locked(Agent& agent, const std::string& why, Later& later) {
  agent.down_since.reset();
  const bool refused_us = static_cast<bool>(agent.channel);
  for (auto at = ranks_.begin(); at != ranks_.end();) {
    const auto rank = at++;
    if (rank->second.address != agent.address) continue;
    if (rank->second.stage == Stage::kWaiting && !refused_us) continue;
    Error error{.code = ErrorCode::kRankDead,
                .message = fmt::format("{} is lost: the agent of node {} at {} {}",
                                       rank_text(rank->first), agent.node, agent.address, why),
                .origin = {.group = rank->first.first, .rank = rank->first.second, .node = {}},
                .causes = {}};
    end_locked(rank, std::move(error), later);
  }
}

Ref<Channel> AgentLauncher::Impl::channel_to(const std::string& address) const {
  const std::lock_guard lock(mutex_);
  const auto found = agents_.find(address);
  if (found == agents_.end() || !found->second.welcomed) return nullptr;
  return found->second.channel;
}

void AgentLauncher::Impl::close() {
  std::vector<Ref<Channel>> channels;
  std::vector<std::unique_ptr<ReconnectingChannel>> links;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    for (auto& [address, agent] : agents_) {
      if (agent.welcomed) channels.push_back(agent.channel);
      links.push_back(std::move(agent.link));
    }
  }
  std::vector<pending<Bytes_>> answers;
  for (const Ref<Channel>& channel : channels) {
    if (auto bytes = encode_value(JobEnd{.job = options_.job, .grace = options_.stop_grace}))
      answers.push_back(channel->request(kJobEnd, *bytes, Deadline::in(kFarewellWithin)));
  }
  const Deadline deadline = Deadline::in(kFarewellWithin);
  for (auto& answer : answers) (void)answer.wait(deadline);
  links.clear();
  locked([&](Later& later) {
    while (!ranks_.empty())
      end_locked(ranks_.begin(),
                 cancelled(rank_text(ranks_.begin()->first) + ": its launcher has ended the job"),
                 later);
  });
}

AgentLauncher::AgentLauncher(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
AgentLauncher::~AgentLauncher() { impl_->close(); }

result<std::unique_ptr<AgentLauncher>> AgentLauncher::open(ActorSystem& system, LinkHub& hub,
                                                           AgentLauncherOptions options) {
  auto impl = std::make_shared<Impl>(system, hub, std::move(options));
  TROUPE_TRY_VOID(impl->open());
  return std::unique_ptr<AgentLauncher>(new AgentLauncher(std::move(impl)));
}

pending<void> AgentLauncher::launch(const RankLaunch& launch, std::function<void(Error)> on_exit) {
  return impl_->launch(launch, std::move(on_exit));
}
void AgentLauncher::stop(const std::string& group, RankId rank) { impl_->stop(Name(group, rank)); }
Ref<Channel> AgentLauncher::channel_to(const std::string& address) const {
  return impl_->channel_to(address);
}

}  // namespace troupe::runtime
