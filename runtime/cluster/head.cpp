#include "runtime/cluster/head.hpp"

#include "runtime/base/log.hpp"
#include "runtime/cluster/node_protocol.hpp"
#include "runtime/link/service_table.hpp"
#include "runtime/task/when_done.hpp"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::runtime {
namespace {

constexpr Duration kNodeAnswersWithin = std::chrono::seconds(2);
constexpr Duration kStopGrace = std::chrono::seconds(5);
constexpr Duration kEverybodyLeavesWithin = std::chrono::seconds(10);

std::uint64_t wall_clock_epoch() {
  return static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

template <class T>
void reply_value(Responder& responder, const result<T>& value) {
  if (!value) {
    responder.reply(fail(value.error()));
  } else {
    responder.reply(encode_value(*value));
  }
}

}  // namespace

struct HeadServer::State : std::enable_shared_from_this<HeadServer::State> {
  State(ActorSystem& actors, HeadOptions head_options)
      : system(actors), options(std::move(head_options)), directory(options.directory) {
    if (options.epoch == 0) options.epoch = wall_clock_epoch();
  }

  void request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
               Deadline deadline, Responder responder);
  void notice(Channel& channel, std::string_view method, std::span<const std::byte> payload);
  void connection_down(Channel& channel, const Error& cause);

  result<NodeRegistered> register_node(Channel& channel, std::span<const std::byte> payload);
  result<JobAnnounced> announce_job(Channel& channel, std::span<const std::byte> payload);
  result<void> part(Channel& channel, std::string_view method, std::span<const std::byte> payload);
  result<NodeEntry> drain_node(std::span<const std::byte> payload);
  result<StopAnswer> stop_these(std::span<const std::byte> payload);
  void stop_job(const std::string& job, const StopRequest& wanted,
                const std::map<std::string, Ref<Channel>>& controllers,
                const std::map<std::string, Ref<Channel>>& agents);
  void ask_lanes(std::span<const std::byte> payload, Deadline deadline, Responder responder);

  /// Gives the event to the core and its effects to the listeners.
  result<void> apply(const DirectoryEvent& event);
  void queue_locked(const DirectoryEffect& effect);
  void deliver();
  void set_timer_locked();
  void tick();

  ConnectionId id_of_locked(Channel& channel);
  std::map<std::string, Ref<Channel>> channels_of_locked(
      const std::map<std::string, ConnectionId>& connections) const;
  HeadStatus status() const;
  /// Everybody else may leave first, for so long.
  void stop(const std::string& reason, Duration patience);
  bool may_stop_locked() const;

  ActorSystem& system;
  HeadOptions options;
  const TimePoint started = steady_now();
  std::vector<DirectoryListener*> listeners;  // fixed once started

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  DirectoryCore directory;
  std::string address;
  std::map<const Channel*, ConnectionId> ids;
  std::map<ConnectionId, Ref<Channel>> channels;
  std::uint64_t last_id = 0;
  std::deque<std::function<void()>> news;  // for the listeners, in order
  bool delivering = false;
  bool closed = false;
  std::optional<CallTimer::Id> timer;
  std::optional<TimePoint> timer_at;
  std::optional<std::string> stop_reason;
  TimePoint stop_by{};
};

/// What every channel of the head is served by, under the prefixes of the head itself.
class HeadServer::Service final : public ChannelService {
 public:
  explicit Service(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void on_request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
                  Deadline deadline, Responder responder) override {
    state_->request(channel, method, payload, deadline, std::move(responder));
  }
  void on_notify(Channel& channel, std::string_view method,
                 std::span<const std::byte> payload) override {
    state_->notice(channel, method, payload);
  }
  void on_down(Channel& channel, const Error& cause) override {
    state_->connection_down(channel, cause);
  }

 private:
  std::shared_ptr<State> state_;
};

void HeadServer::State::request(Channel& channel, std::string_view method,
                                std::span<const std::byte> payload, Deadline deadline,
                                Responder responder) {
  const TimePoint now = steady_now();
  const auto list = [&](auto page) {
    const auto wanted = decode_value<PageRequest>(payload);
    if (!wanted) return responder.reply(fail(wanted.error()));
    std::unique_lock lock(mutex);
    const auto found = (directory.*page)(*wanted, now);
    lock.unlock();
    reply_value(responder, found);
  };
  if (method == kNodeRegister) return reply_value(responder, register_node(channel, payload));
  if (method == "head.announce_job") return reply_value(responder, announce_job(channel, payload));
  if (method == "node.leave" || method == "head.end_job") {
    const auto parted = part(channel, method, payload);
    return responder.reply(parted ? result<std::vector<std::byte>>() : fail(parted.error()));
  }
  if (method == "head.status") return reply_value(responder, result<HeadStatus>(status()));
  if (method == "head.list_nodes") return list(&DirectoryCore::nodes);
  if (method == "head.list_jobs") return list(&DirectoryCore::jobs);
  if (method == "head.list_ranks") return list(&DirectoryCore::ranks);
  if (method == "head.find_node") {
    const auto query = decode_value<NodeQuery>(payload);
    if (!query) return responder.reply(fail(query.error()));
    std::unique_lock lock(mutex);
    const auto found = directory.find_node(query->name, now);
    lock.unlock();
    return reply_value(responder, found);
  }
  if (method == "head.lanes") return ask_lanes(payload, deadline, std::move(responder));
  if (method == "head.drain_node") return reply_value(responder, drain_node(payload));
  if (method == "head.stop") return reply_value(responder, stop_these(payload));
  responder.reply(fail(ErrorCode::kNotFound, "head: no method '{}'", method));
}

void HeadServer::State::notice(Channel& channel, std::string_view method,
                               std::span<const std::byte> payload) {
  result<void> done;
  if (method == kNodeState) {
    auto state = decode_value<NodeState>(payload);
    if (state) {
      std::unique_lock lock(mutex);
      const ConnectionId id = id_of_locked(channel);
      lock.unlock();
      done = apply(NodeSnapshot{id, std::move(*state)});
    } else {
      done = fail(state.error());
    }
  } else {
    done = fail(ErrorCode::kNotFound, "head: no notice '{}'", method);
  }
  if (!done) log::warn("{}: {}", channel.peer().to_string(), done.error().to_string());
}

ConnectionId HeadServer::State::id_of_locked(Channel& channel) {
  const auto [found, fresh] = ids.try_emplace(&channel, ConnectionId{});
  if (fresh) {
    found->second = ConnectionId{++last_id};
    channels.emplace(found->second, Ref<Channel>(&channel));
  }
  return found->second;
}

void HeadServer::State::connection_down(Channel& channel, const Error& cause) {
  std::unique_lock lock(mutex);
  const auto found = ids.find(&channel);
  if (found == ids.end()) return;
  const ConnectionId id = found->second;
  ids.erase(found);
  auto kept = channels.extract(id);  // dropped outside the lock; empty once the head stops
  lock.unlock();
  (void)apply(ConnectionDown{id, peer_was_silent(cause), cause.to_string()});
}

result<NodeRegistered> HeadServer::State::register_node(Channel& channel,
                                                        std::span<const std::byte> payload) {
  TROUPE_TRY(auto node, decode_value<NodeRegister>(payload));
  if (channel.peer() != PeerName{PeerRole::kNode, node.name}) {
    return fail(ErrorCode::kConflict, "{} registers as node {}: the names differ",
                channel.peer().to_string(), node.name);
  }
  std::unique_lock lock(mutex);
  const ConnectionId id = id_of_locked(channel);
  lock.unlock();
  TROUPE_TRY_VOID(apply(NodeArrived{std::move(node), id}));
  return NodeRegistered{.head_instance = options.epoch, .cluster = options.cluster};
}

result<JobAnnounced> HeadServer::State::announce_job(Channel& channel,
                                                     std::span<const std::byte> payload) {
  TROUPE_TRY(auto job, decode_value<JobAnnouncement>(payload));
  if (channel.peer() != PeerName{PeerRole::kController, job.name}) {
    return fail(ErrorCode::kConflict, "{} announces job {}: the names differ",
                channel.peer().to_string(), job.name);
  }
  std::unique_lock lock(mutex);
  const ConnectionId id = id_of_locked(channel);
  const auto* known = directory.announcement(job.name);
  const bool returned = known != nullptr && known->epoch == job.epoch;
  lock.unlock();
  TROUPE_TRY_VOID(apply(JobArrived{std::move(job), id}));
  return JobAnnounced{.head_epoch = options.epoch, .returned = returned};
}

result<void> HeadServer::State::part(Channel& channel, std::string_view method,
                                     std::span<const std::byte> payload) {
  TROUPE_TRY(auto farewell, decode_value<Farewell>(payload));
  std::unique_lock lock(mutex);
  const ConnectionId id = id_of_locked(channel);
  lock.unlock();
  if (method == "node.leave") return apply(NodeParted{id, std::move(farewell.reason)});
  return apply(JobParted{id, std::move(farewell.reason)});
}

result<NodeEntry> HeadServer::State::drain_node(std::span<const std::byte> payload) {
  TROUPE_TRY(const auto query, decode_value<NodeQuery>(payload));
  TROUPE_TRY_VOID(apply(NodeDrainWanted{query.name}));
  const std::scoped_lock lock(mutex);
  return directory.find_node(query.name, steady_now());
}

void HeadServer::State::ask_lanes(std::span<const std::byte> payload, Deadline deadline,
                                  Responder responder) {
  const auto query = decode_value<NodeQuery>(payload);
  if (!query) return responder.reply(fail(query.error()));
  Ref<Channel> node;
  {
    const std::scoped_lock lock(mutex);
    auto agents = channels_of_locked(directory.node_connections());
    node = std::move(agents[query->name]);
  }
  if (!node)
    return responder.reply(fail(ErrorCode::kNotFound, "node {}: it is not up", query->name));
  const Deadline within{std::min(deadline.at, Deadline::in(kNodeAnswersWithin).at)};
  const auto answer = std::make_shared<Responder>(std::move(responder));
  when_done<std::vector<std::byte>>(
      node->request("lane.status", {}, within),
      [answer](result<std::vector<std::byte>> lanes) { answer->reply(std::move(lanes)); });
}

std::map<std::string, Ref<Channel>> HeadServer::State::channels_of_locked(
    const std::map<std::string, ConnectionId>& connections) const {
  std::map<std::string, Ref<Channel>> found;
  for (const auto& [name, id] : connections) {
    if (const auto channel = channels.find(id); channel != channels.end())
      found.emplace(name, channel->second);
  }
  return found;
}

void HeadServer::State::stop_job(const std::string& job, const StopRequest& wanted,
                                 const std::map<std::string, Ref<Channel>>& controllers,
                                 const std::map<std::string, Ref<Channel>>& agents) {
  if (const auto controller = controllers.find(job); controller != controllers.end()) {
    const auto order = encode_value(Farewell{wanted.reason});
    if (order) {
      const auto told = controller->second->notify("job.stop", *order);
      if (!told) log::warn("job {}: cannot be told to stop: {}", job, told.error().to_string());
    }
  }
  if (!wanted.force) return;
  const auto order = encode_value(JobEnd{.job = job, .grace = kStopGrace});
  for (const auto& [name, agent] : agents) {
    if (!order) continue;
    when_done<std::vector<std::byte>>(
        agent->request(kJobEnd, *order, Deadline::in(kNodeAnswersWithin)),
        [name = name, job](const result<std::vector<std::byte>>& ended) {
          if (!ended && ended.error().code != ErrorCode::kNotFound)
            log::warn("node {}: job {} is not ended: {}", name, job, ended.error().to_string());
        });
  }
}

result<StopAnswer> HeadServer::State::stop_these(std::span<const std::byte> payload) {
  TROUPE_TRY(const auto wanted, decode_value<StopRequest>(payload));
  const int targets =
      (wanted.job.empty() ? 0 : 1) + (wanted.node.empty() ? 0 : 1) + (wanted.all ? 1 : 0);
  if (targets != 1)
    return fail(ErrorCode::kInvalidArgument, "stop: one job, one node or all, not {} of them",
                targets);
  std::map<std::string, Ref<Channel>> agents;
  std::map<std::string, Ref<Channel>> controllers;
  {
    const std::scoped_lock lock(mutex);
    agents = channels_of_locked(directory.node_connections());
    controllers = channels_of_locked(directory.job_connections());
    if (!wanted.node.empty() && !agents.contains(wanted.node))
      return fail(ErrorCode::kNotFound, "stop: node {} is not up", wanted.node);
    const bool known = directory.announcement(wanted.job) != nullptr;
    if (!wanted.job.empty() && !controllers.contains(wanted.job) && !(wanted.force && known))
      return fail(ErrorCode::kNotFound, "stop: no job {} runs", wanted.job);
  }
  StopAnswer answer{.jobs = {}, .nodes = {}, .head = wanted.all};
  if (!wanted.job.empty()) answer.jobs.push_back(wanted.job);
  if (!wanted.node.empty()) answer.nodes.push_back(wanted.node);
  if (wanted.all) {
    for (const auto& [name, controller] : controllers) answer.jobs.push_back(name);
    for (const auto& [name, agent] : agents) answer.nodes.push_back(name);
  }
  for (const std::string& job : answer.jobs) stop_job(job, wanted, controllers, agents);
  for (const std::string& node : answer.nodes) {
    TROUPE_TRY(auto order, encode_value(AgentDrain{.grace = kStopGrace, .reason = wanted.reason}));
    when_done<std::vector<std::byte>>(
        agents.at(node)->request(kAgentDrain, std::move(order), Deadline::in(kNodeAnswersWithin)),
        [node](const result<std::vector<std::byte>>& told) {
          if (!told) log::warn("node {}: cannot stop: {}", node, told.error().to_string());
        });
  }
  if (wanted.all) stop(wanted.reason, kEverybodyLeavesWithin);
  return answer;
}

result<void> HeadServer::State::apply(const DirectoryEvent& event) {
  {
    const std::scoped_lock lock(mutex);
    if (closed) return fail(ErrorCode::kCancelled, "head: it is stopping");
    TROUPE_TRY(const auto effects, directory.step(event, steady_now()));
    for (const DirectoryEffect& effect : effects) queue_locked(effect);
    set_timer_locked();
  }
  deliver();
  return {};
}

void HeadServer::State::queue_locked(const DirectoryEffect& effect) {
  const auto tell = [this](auto call) {
    news.push_back([this, call] {
      for (DirectoryListener* listener : listeners) call(*listener);
    });
  };
  if (const auto* up = std::get_if<NodeUp>(&effect)) {
    log::info("node {} is up{}", up->name, up->returned ? " again" : "");
    const auto channel = channels.find(up->connection);
    if (channel == channels.end()) return;
    tell([node = *directory.registration(up->name), peer = channel->second,
          returned = up->returned](auto& listener) { listener.on_node_up(node, peer, returned); });
  } else if (const auto* down = std::get_if<NodeDown>(&effect)) {
    log::warn("{}", down->cause.message);
    tell([gone = *down](auto& l) { l.on_node_down(gone.name, gone.epoch, gone.cause); });
  } else if (const auto* draining = std::get_if<NodeDraining>(&effect)) {
    log::info("node {} drains", draining->name);
    tell([name = draining->name](auto& listener) { listener.on_node_draining(name); });
  } else if (const auto* job = std::get_if<JobUp>(&effect)) {
    log::info("job {} is here{}", job->name, job->returned ? " again" : "");
    const auto channel = channels.find(job->connection);
    if (channel == channels.end()) return;
    tell([about = *directory.announcement(job->name), peer = channel->second,
          returned = job->returned](auto& listener) { listener.on_job_up(about, peer, returned); });
  } else if (const auto* over = std::get_if<JobDown>(&effect)) {
    log::info("{}", over->cause.message);
    tell([gone = *over](auto& listener) { listener.on_job_down(gone.name, gone.cause); });
  }
}

void HeadServer::State::deliver() {
  std::unique_lock lock(mutex);
  if (delivering) return;  // whoever delivers sees what was queued since
  delivering = true;
  while (!news.empty()) {
    const auto one = std::move(news.front());
    news.pop_front();
    lock.unlock();
    one();
    lock.lock();
  }
  delivering = false;
  changed.notify_all();
}

void HeadServer::State::set_timer_locked() {
  const auto due = directory.next_due();
  if (closed || !due || (timer_at && *timer_at <= *due)) return;
  if (timer) system.timer().remove(*timer);
  timer_at = due;
  timer = system.timer().add(*due, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->tick();
  });
}

void HeadServer::State::tick() {
  {
    const std::scoped_lock lock(mutex);
    timer.reset();
    timer_at.reset();
  }
  (void)apply(DirectoryTick{});
}

HeadStatus HeadServer::State::status() const {
  const std::scoped_lock lock(mutex);
  HeadStatus status = directory.status();
  status.head_epoch = options.epoch;
  status.address = address;
  status.pid = ::getpid();
  status.up_s = seconds(steady_now() - started);
  return status;
}

void HeadServer::State::stop(const std::string& reason, Duration patience) {
  const std::scoped_lock lock(mutex);
  if (!stop_reason) stop_reason = reason;
  stop_by = steady_now() + patience;
  changed.notify_all();
}

bool HeadServer::State::may_stop_locked() const {
  if (!stop_reason) return false;
  const HeadStatus status = directory.status();
  const bool alone = status.nodes_up + status.nodes_draining + status.jobs_running == 0;
  return alone || steady_now() >= stop_by;
}

HeadServer::HeadServer(ActorSystem& system, HeadOptions options)
    : state_(std::make_shared<State>(system, std::move(options))),
      table_(std::make_shared<ServiceTable>()) {
  const auto service = std::make_shared<Service>(state_);
  for (const char* prefix : {"head.", "node."}) {
    const auto added = table_->add(prefix, service);
    TROUPE_CHECK(added, "head: {}", added.error().to_string());
  }
}

HeadServer::~HeadServer() {
  std::unique_lock lock(state_->mutex);
  state_->closed = true;
  const auto timer = std::exchange(state_->timer, std::nullopt);
  // Listeners are the owner's: none may be inside one once this is gone.
  state_->changed.wait(lock, [this] { return !state_->delivering; });
  state_->news.clear();
  const auto channels = std::exchange(state_->channels, {});
  lock.unlock();
  if (timer) state_->system.timer().remove(*timer);
  const Error cause{
      .code = ErrorCode::kCancelled, .message = "the head stops", .origin = {}, .causes = {}};
  for (const auto& [id, channel] : channels) channel->close(cause);
}

result<void> HeadServer::add_service(std::string prefix, std::shared_ptr<ChannelService> service) {
  return table_->add(std::move(prefix), std::move(service));
}

void HeadServer::add_listener(DirectoryListener& listener) {
  state_->listeners.push_back(&listener);
}

result<ListenAddress> HeadServer::start(LinkHub& hub) {
  const auto accept = [table = table_, state = state_](
                          const PeerName& peer,
                          Ref<Channel>) -> result<std::shared_ptr<ChannelService>> {
    if (peer.role == PeerRole::kRank)
      return fail(ErrorCode::kUnsupported, "head: ranks talk to their agent");
    const std::scoped_lock lock(state->mutex);
    if (state->closed) return fail(ErrorCode::kCancelled, "head: it is stopping");
    return table;
  };
  TROUPE_TRY(auto address, hub.listen(state_->options.host, state_->options.port, accept));
  const std::scoped_lock lock(state_->mutex);
  state_->address = address.to_string();
  return address;
}

void HeadServer::request_stop(const std::string& reason) { state_->stop(reason, Duration::zero()); }

std::string HeadServer::wait_stop(const std::function<bool()>& poll) {
  std::unique_lock lock(state_->mutex);
  while (!state_->may_stop_locked()) {
    if (poll && poll()) return "a signal";
    state_->changed.wait_for(lock, std::chrono::milliseconds(100));
  }
  return *state_->stop_reason;
}

HeadStatus HeadServer::status() const { return state_->status(); }

Ref<Channel> HeadServer::node_channel(const std::string& name) const {
  const std::scoped_lock lock(state_->mutex);
  auto agents = state_->channels_of_locked(state_->directory.node_connections());
  return std::move(agents[name]);
}

}  // namespace troupe::runtime
