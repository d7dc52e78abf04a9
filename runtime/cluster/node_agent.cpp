#include "runtime/cluster/node_agent.hpp"

#include "runtime/base/incarnation.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cluster/node_agent_impl.hpp"


#include <algorithm>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr Duration kReportAnywayEvery = std::chrono::seconds(5);
constexpr std::size_t kReservationBytesMax = 512;
constexpr Duration kLeaveWithin = std::chrono::milliseconds(500);

}  // namespace

/// Leads back to the agent as long as there is one.
class NodeAgent::Impl::Service final : public ChannelService {
 public:
  explicit Service(std::weak_ptr<Impl> agent) : agent_(std::move(agent)) {}
  void on_request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
                  Deadline /*deadline*/, Responder responder) override {
    if (const auto agent = agent_.lock())
      return agent->on_request(channel, method, payload, std::move(responder));
    responder.reply(fail(ErrorCode::kAborted, "the node agent has ended"));
  }
  void on_notify(Channel& channel, std::string_view method,
                 std::span<const std::byte> payload) override {
    if (const auto agent = agent_.lock()) agent->on_notify(channel, method, payload);
  }
  void on_down(Channel& channel, const Error& cause) override {
    if (const auto agent = agent_.lock()) agent->on_down(channel, cause);
  }

 private:
  const std::weak_ptr<Impl> agent_;
};

NodeAgent::Impl::Impl(ActorSystem& system, LinkHub* hub, NodeAgentOptions options)
    : system_(system),
      hub_(hub),
      options_(std::move(options)),
      instance_(new_incarnation()),
      table_(std::make_shared<ServiceTable>()),
      core_(options_.name, instance_, options_.policy) {}

result<void> NodeAgent::Impl::open() {
  TROUPE_TRY_VOID(check_job_name("node", options_.name));
  const auto own = std::make_shared<Service>(weak_from_this());
  for (const char* prefix : {"rank.", "job.", "agent."}) TROUPE_TRY_VOID(table_->add(prefix, own));
  for (const auto& [prefix, service] : options_.services)
    TROUPE_TRY_VOID(table_->add(prefix, service));
  if (hub_ != nullptr) {
    auto accept = [weak = weak_from_this()](
                      const PeerName&,
                      Ref<Channel> channel) -> result<std::shared_ptr<ChannelService>> {
      const auto agent = weak.lock();
      if (!agent) return fail(ErrorCode::kAborted, "the node agent has ended");
      TROUPE_TRY_VOID(agent->attach(channel));
      return agent->service();
    };
    TROUPE_TRY(ListenAddress bound,
               hub_->listen(options_.listen_host, options_.listen_port, std::move(accept)));
    if (bound.host == "0.0.0.0" || bound.host == "::") bound.host = options_.inventory.host;
    if (!options_.announced_host.empty()) bound.host = options_.announced_host;
    address_ = bound.to_string();
  }
  RankProcessesOptions ranks;
  ranks.node = options_.name;
  ranks.agent = address_;
  if (hub_ != nullptr) ranks.token = hub_->options().token;
  ranks.environment = options_.rank_environment;
  ranks.cgroup_parent = options_.cgroup_parent;
  ranks.devices_by_place = static_cast<bool>(options_.place);
  ranks.limit_address_space = options_.limit_address_space;
  ranks.processes = options_.processes;
  ranks.logs.node = options_.name;
  ranks.logs.limits = options_.log_limits;
  // Not weak: the log's threads are joined in `close`.
  auto sink = [this](const std::string& job, const LogBatch& batch) {
    return forward_log(job, batch);
  };
  TROUPE_TRY(ranks_, RankProcesses::open(std::move(ranks), std::move(sink)));
  if (hub_ == nullptr || options_.head.empty()) return {};
  ReconnectOptions head{.address = options_.head, .service = table_};
  head.on_up = [this](const Ref<Channel>& channel) { register_with_head(channel); };
  head.on_down = [this](const Error& cause) { head_lost(cause); };
  head.on_refused = [this](const Error& cause) {
    log::debug("node {}: head {}: {}", options_.name, options_.head, cause.to_string());
  };
  to_head_ = std::make_unique<ReconnectingChannel>(*hub_, std::move(head));
  return {};
}

void NodeAgent::Impl::close() {
  Ref<Channel> head;
  std::vector<Ref<Channel>> channels;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    if (timer_) system_.timer().remove(*timer_);
    head = head_;
    for (const auto& [id, channel] : channels_) channels.push_back(channel);
  }
  if (head) {
    if (auto farewell = encode_value(Farewell{.reason = "its agent ends"}))
      (void)head->request("node.leave", std::move(*farewell), Deadline::in(kLeaveWithin))
          .wait(Deadline::in(kLeaveWithin));
  }
  to_head_ = nullptr;
  std::unique_ptr<RankProcesses> ranks;
  {
    const std::lock_guard lock(mutex_);
    ranks = std::move(ranks_);
  }
  ranks = nullptr;  // kills; the exits still reach the controllers
  const Error over{.code = ErrorCode::kAborted,
                   .message = fmt::format("the agent of node {} ends", options_.name),
                   .origin = {},
                   .causes = {}};
  for (const Ref<Channel>& channel : channels) channel->close(over);
}

result<void> NodeAgent::Impl::attach(const Ref<Channel>& channel) {
  const std::lock_guard lock(mutex_);
  if (closing_) return fail(ErrorCode::kAborted, "node {}: its agent ends", options_.name);
  const Connection id = connection_locked(*channel);
  if (channel->peer().role != PeerRole::kRank) return {};
  auto known = core_.rank_up(channel->peer().name, id, steady_now());
  if (!known) {
    peers_.erase(channel.get());
    channels_.erase(id);
  }
  return known;
}

NodeAgent::Impl::Connection NodeAgent::Impl::connection_locked(Channel& channel) {
  Peer& peer = peers_[&channel];
  if (peer.id == 0) {
    peer.id = ++last_connection_;
    peer.channel = Ref<Channel>(&channel);
    channels_.emplace(peer.id, peer.channel);
  }
  return peer.id;
}

void NodeAgent::Impl::on_request(Channel& channel, std::string_view method, Payload payload,
                                 Responder responder) {
  if (method == kRankStart) return start_rank(channel, payload, std::move(responder));
  if (method == kRankStop) return responder.reply(stop_rank(channel, payload));
  if (method == kJobHello) return responder.reply(hello(channel, payload));
  if (method == kJobEnd) return responder.reply(end_job(channel, payload));
  if (method == kAgentDrain) return responder.reply(drain_asked(channel, payload));
  if (method == kAgentStatus) return responder.reply(encode_value(state()));
  responder.reply(fail(ErrorCode::kNotFound, "node {}: no method '{}'", options_.name, method));
}

void NodeAgent::Impl::start_rank(Channel& channel, Payload payload, Responder responder) {
  auto start = decode_value<RankStart>(payload);
  if (!start) return responder.reply(fail(std::move(start).error()));
  if (channel.peer().role != PeerRole::kController || channel.peer().name != start->job)
    return responder.reply(fail(ErrorCode::kInvalidArgument, "{} may not start ranks of job {}",
                                channel.peer().to_string(), start->job));
  for (const auto& [what, name] :
       {std::pair("job", &start->job), std::pair("group", &start->group)}) {
    if (auto named = check_job_name(what, *name); !named)
      return responder.reply(fail(std::move(named).error()));
  }
  if (start->reservation.size() > kReservationBytesMax)
    return responder.reply(
        fail(ErrorCode::kInvalidArgument, "{} rank {}: a reservation name of {} bytes, at most {}",
             start->group, start->rank.value, start->reservation.size(), kReservationBytesMax));
  RankPlace place;
  if (options_.place) {
    auto found = options_.place(*start);
    if (!found) return responder.reply(fail(std::move(found).error()));
    place = std::move(*found);
  }
  step([&](AgentCore::Effects& effects, Hooks&) {
    auto serial = closing_ ? fail(ErrorCode::kAborted, "node {}: its agent ends", options_.name)
                           : core_.start(*start, place, connection_locked(channel), steady_now(),
                                       effects);
    if (!serial) return responder.reply(fail(std::move(serial).error()));
    Process& process = processes_[*serial];
    process.group = start->group;
    process.rank = start->rank;
    process.job = start->job;
    process.answer = std::move(responder);
  });
  // It may have been given up between the first look and the start; `revoke` knew of no rank then.
  if (!options_.place) return;
  if (const auto still = options_.place(*start); !still)
    revoke(start->reservation, start->bundle, still.error());
}

NodeAgent::Impl::Answer NodeAgent::Impl::stop_rank(Channel& channel, Payload payload) {
  TROUPE_TRY(const auto stop, decode_value<RankStop>(payload));
  result<void> outcome;
  step([&](AgentCore::Effects& effects, Hooks&) {
    outcome = core_.stop(stop, connection_locked(channel), effects);
  });
  if (!outcome) return fail(std::move(outcome).error());
  return std::vector<std::byte>();
}

NodeAgent::Impl::Answer NodeAgent::Impl::hello(Channel& channel, Payload payload) {
  TROUPE_TRY(const auto greeting, decode_value<JobHello>(payload));
  if (channel.peer().role != PeerRole::kController || channel.peer().name != greeting.job)
    return fail(ErrorCode::kInvalidArgument, "{} is not the controller of job {}",
                channel.peer().to_string(), greeting.job);
  result<ControllerWelcome> welcome = fail(ErrorCode::kInternal, "not decided");
  step([&](AgentCore::Effects& effects, Hooks&) {
    welcome = core_.hello(greeting, connection_locked(channel), steady_now(), effects);
    if (!welcome) return;
    const std::lock_guard lock(log_mutex_);
    log_channels_[greeting.job] = Ref<Channel>(&channel);
  });
  if (!welcome) return fail(std::move(welcome).error());
  return encode_value(*welcome);
}

NodeAgent::Impl::Answer NodeAgent::Impl::end_job(Channel& channel, Payload payload) {
  TROUPE_TRY(const auto end, decode_value<JobEnd>(payload));
  const PeerName& peer = channel.peer();
  if (peer.role != PeerRole::kHead && peer.role != PeerRole::kController)
    return fail(ErrorCode::kInvalidArgument, "{} may not end job {}", peer.to_string(), end.job);
  result<void> outcome;
  step([&](AgentCore::Effects& effects, Hooks&) {
    std::optional<Connection> from;
    if (peer.role == PeerRole::kController) from = connection_locked(channel);
    outcome = core_.end_job(end.job, from, end.grace,
                            fmt::format("{} ended job {}", peer.to_string(), end.job), effects);
  });
  if (!outcome) return fail(std::move(outcome).error());
  return std::vector<std::byte>();
}

NodeAgent::Impl::Answer NodeAgent::Impl::drain_asked(Channel& channel, Payload payload) {
  TROUPE_TRY(const auto order, decode_value<AgentDrain>(payload));
  const PeerName& peer = channel.peer();
  if (peer.role != PeerRole::kHead && peer.role != PeerRole::kClient)
    return fail(ErrorCode::kInvalidArgument, "{} may not drain node {}", peer.to_string(),
                options_.name);
  drain(order.grace, order.reason);
  {
    const std::lock_guard lock(mutex_);
    if (!stop_asked_) stop_asked_ = order.reason;
  }
  changed_.notify_all();
  return std::vector<std::byte>();
}

void NodeAgent::Impl::on_notify(Channel& channel, std::string_view method, Payload payload) {
  if (method != kRankProgress || channel.peer().role != PeerRole::kRank) {
    log::warn("node {}: {}: notice '{}' is not for an agent", options_.name,
              channel.peer().to_string(), method);
    return;
  }
  const auto progress = decode_value<RankProgress>(payload);
  if (!progress) {
    log::warn("node {}: {}: {}", options_.name, channel.peer().to_string(),
              progress.error().to_string());
    return;
  }
  step([&](AgentCore::Effects&, Hooks&) {
    core_.progress(connection_locked(channel), *progress, steady_now());
  });
}

void NodeAgent::Impl::on_down(Channel& channel, const Error& cause) {
  {
    const std::lock_guard lock(log_mutex_);
    std::erase_if(log_channels_,
                  [&channel](const auto& entry) { return entry.second.get() == &channel; });
  }
  step([&](AgentCore::Effects& effects, Hooks&) {
    const auto peer = peers_.find(&channel);
    if (peer == peers_.end()) return;
    const Connection id = peer->second.id;
    peers_.erase(peer);
    channels_.erase(id);
    core_.down(id, cause, peer_was_silent(cause), steady_now(), effects);
  });
}

void NodeAgent::Impl::schedule_locked() {
  if (closing_) return;
  TimePoint next = core_.next_tick();
  if (head_) {
    const bool news = core_.version() != reported_version_;
    next = std::min(next, reported_at_ + (news ? options_.report_every : kReportAnywayEvery));
  }
  if (timer_) {
    if (timer_->first <= next) return;
    system_.timer().remove(*timer_);
    timer_.reset();
  }
  if (next == TimePoint::max()) return;
  timer_ = system_.timer().add(next, [weak = weak_from_this()] {
    if (const auto agent = weak.lock()) agent->tick();
  });
}

void NodeAgent::Impl::tick() {
  step([this](AgentCore::Effects& effects, Hooks&) {
    timer_.reset();
    if (closing_) return;
    core_.tick(steady_now(), effects);
    const bool news = core_.version() != reported_version_;
    if (head_ && steady_now() >= reported_at_ + (news ? options_.report_every : kReportAnywayEvery))
      report_locked();
  });
}

NodeState NodeAgent::Impl::state() const {
  const std::lock_guard lock(mutex_);
  return core_.state(steady_now());
}

void NodeAgent::Impl::revoke(const std::string& reservation, std::optional<int> bundle,
                             const Error& cause) {
  const std::string what =
      bundle ? fmt::format("bundle {} of its reservation {}", *bundle, reservation)
             : fmt::format("its reservation {}", reservation);
  step([&](AgentCore::Effects& effects, Hooks&) {
    core_.revoke(reservation, bundle, fmt::format("{} is over: {}", what, cause.message), effects);
  });
}

void NodeAgent::Impl::drain(Duration grace, const std::string& reason) {
  step([&](AgentCore::Effects& effects, Hooks&) { core_.drain(grace, reason, effects); });
  const std::lock_guard lock(mutex_);
  if (head_) report_locked();
}

bool NodeAgent::Impl::draining() const {
  const std::lock_guard lock(mutex_);
  return core_.draining();
}

result<void> NodeAgent::Impl::wait_drained(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, deadline.at, [this] { return core_.ranks_alive() == 0; }))
    return {};
  return fail(ErrorCode::kDeadline, "node {}: {} ranks have not ended", options_.name,
              core_.ranks_alive());
}

std::string NodeAgent::Impl::wait_stop(const std::function<bool()>& poll) {
  std::unique_lock lock(mutex_);
  while (!stop_asked_) {
    lock.unlock();
    if (poll && poll()) return "this process was told to stop";
    lock.lock();
    changed_.wait_for(lock, std::chrono::milliseconds(100),
                      [this] { return stop_asked_.has_value(); });
  }
  return *stop_asked_;
}

NodeAgent::NodeAgent(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeAgent::~NodeAgent() { impl_->close(); }

result<std::unique_ptr<NodeAgent>> NodeAgent::open(ActorSystem& system, LinkHub* hub,
                                                   NodeAgentOptions options) {
  auto impl = std::make_shared<Impl>(system, hub, std::move(options));
  std::unique_ptr<NodeAgent> agent(new NodeAgent(impl));  // closes what was opened on failure
  TROUPE_TRY_VOID(impl->open());
  return agent;
}

std::shared_ptr<ChannelService> NodeAgent::service() const { return impl_->service(); }
result<void> NodeAgent::attach(Ref<Channel> channel) { return impl_->attach(channel); }
std::uint64_t NodeAgent::instance() const { return impl_->instance(); }
std::string NodeAgent::address() const { return impl_->address(); }
NodeState NodeAgent::state() const { return impl_->state(); }
void NodeAgent::revoke(const std::string& reservation, const Error& cause,
                       std::optional<int> bundle) {
  impl_->revoke(reservation, bundle, cause);
}
void NodeAgent::drain(Duration grace, const std::string& reason) { impl_->drain(grace, reason); }
bool NodeAgent::draining() const { return impl_->draining(); }
result<void> NodeAgent::wait_drained(Deadline deadline) { return impl_->wait_drained(deadline); }
std::string NodeAgent::wait_stop(const std::function<bool()>& poll) {
  return impl_->wait_stop(poll);
}

}  // namespace troupe::runtime
