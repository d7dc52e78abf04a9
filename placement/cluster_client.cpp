#include "placement/cluster_client.hpp"

#include "runtime/base/incarnation.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cluster/head_messages.hpp"
#include "runtime/link/reconnecting_channel.hpp"
#include "runtime/link/service_table.hpp"
#include "runtime/task/when_done.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace troupe::placement {

using runtime::AgentLauncher;
using runtime::AgentPlace;
using runtime::Channel;
using runtime::Ref;
using Bytes_ = std::vector<std::byte>;

namespace {

constexpr Duration kHeadAnswersWithin = std::chrono::seconds(5);
constexpr Duration kFarewellWithin = std::chrono::seconds(1);
constexpr Duration kExplainWithin = std::chrono::seconds(2);

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// These do not go away by dialling again.
bool is_final(const Error& refusal) {
  return refusal.code == ErrorCode::kConflict || refusal.code == ErrorCode::kConfig ||
         refusal.code == ErrorCode::kAlreadyExists;
}

}  // namespace

class ClusterClient::Impl : public std::enable_shared_from_this<ClusterClient::Impl> {
 public:
  Impl(runtime::ActorSystem& actors, ClusterClientOptions client_options)
      : system(actors), options(std::move(client_options)) {}

  result<void> open();
  void close();
  void announce(const Ref<Channel>& head);
  void announced(const Ref<Channel>& head, const result<Bytes_>& answer);
  void refused(const Error& cause);
  result<void> locate_nodes(const std::vector<BundlePlacement>& placements, Deadline deadline);
  result<AgentPlace> locate(const std::string& reservation, int bundle);
  void set_places(const std::string& pool, const std::vector<BundlePlacement>& placements);
  void forget_places(const std::string& pool);
  runtime::LaneGate* gate(const BundlePlacement& placement);
  Ref<Channel> channel_to(const std::string& address);
  void record_turns(runtime::Trace& trace, Deadline deadline);

  struct Agent {
    std::string node;
    std::shared_ptr<runtime::TicketOutbox> outbox;
    std::map<std::int32_t, std::unique_ptr<runtime::TicketGate>> gates;  // by device
    std::uint64_t turns_seen = 0;
  };

  runtime::ActorSystem& system;
  const ClusterClientOptions options;
  const std::uint64_t epoch = new_incarnation();
  std::string listen_host;
  std::unique_ptr<runtime::LinkHub> hub;
  std::shared_ptr<PlacementClient> placement;
  std::mutex launcher_mutex;  // guards the end of `launcher`; never held with `mutex`
  std::unique_ptr<AgentLauncher> launcher;
  std::unique_ptr<runtime::ReconnectingChannel> to_head;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool in_session = false;  // the head knows the job
  bool was_in_session = false;
  std::optional<Error> refusal;                            // it never will
  std::optional<Error> last_why;                           // why it does not yet
  std::map<std::string, std::string> addresses;            // of agents, by node
  std::map<std::string, std::vector<std::string>> places;  // nodes of bundles, by pool
  std::map<std::string, Agent> agents;                     // by address
};

namespace {

/// What the head tells a controller beside placement.
class StopService final : public runtime::ChannelService {
 public:
  explicit StopService(std::function<void(const std::string&)> on_stop)
      : on_stop_(std::move(on_stop)) {}
  void on_request(Channel& /*channel*/, std::string_view method,
                  std::span<const std::byte> /*payload*/, Deadline /*deadline*/,
                  runtime::Responder responder) override {
    responder.reply(fail(ErrorCode::kNotFound, "controller: no method '{}'", method));
  }
  void on_notify(Channel& /*channel*/, std::string_view method,
                 std::span<const std::byte> payload) override {
    if (method != "job.stop") return;
    const auto farewell = runtime::decode_value<runtime::Farewell>(payload);
    if (!farewell) return log::warn("job.stop: {}", farewell.error().to_string());
    if (on_stop_) on_stop_(farewell->reason);
  }

 private:
  std::function<void(const std::string&)> on_stop_;
};

}  // namespace

result<void> ClusterClient::Impl::open() {
  const runtime::PeerName self{runtime::PeerRole::kController, options.job};
  listen_host = options.listen_host;
  if (listen_host.empty()) {
    TROUPE_TRY(listen_host, local_address_towards(options.access.address));
  }
  TROUPE_TRY(auto link, options.access.listening_link(self, listen_host));
  TROUPE_TRY(hub, runtime::LinkHub::open(system, std::move(link)));
  TROUPE_TRY(placement, PlacementClient::create({.owner = options.job, .instance = epoch}));
  runtime::AgentLauncherOptions agents_options;
  agents_options.job = options.job;
  agents_options.print = options.print;
  agents_options.locate = [this](const std::string& reservation, int bundle) {
    return locate(reservation, bundle);
  };
  TROUPE_TRY(launcher, AgentLauncher::open(system, *hub, std::move(agents_options)));
  const auto table = std::make_shared<runtime::ServiceTable>();
  TROUPE_TRY_VOID(table->add("placement.", placement));
  TROUPE_TRY_VOID(table->add("job.", std::make_shared<StopService>(options.on_stop)));
  runtime::ReconnectOptions head{.address = options.access.address, .service = table};
  head.peer = runtime::PeerName{runtime::PeerRole::kHead, "head"};
  // Not weak: the channel is stopped, callbacks and all, before this goes.
  head.on_up = [this](const Ref<Channel>& channel) { announce(channel); };
  head.on_down = [this](const Error& cause) {
    log::warn("head {}: {}; what runs goes on", options.access.address, cause.to_string());
    const std::scoped_lock lock(mutex);
    in_session = false;
    last_why = cause;
  };
  head.on_refused = [this](const Error& cause) { refused(cause); };
  to_head = std::make_unique<runtime::ReconnectingChannel>(*hub, std::move(head));
  std::unique_lock lock(mutex);
  const auto until = steady_now() + options.connect_within;
  changed.wait_until(lock, until, [this] { return in_session || refusal; });
  if (in_session) return {};
  Error cause =
      refusal ? *refusal : last_why.value_or(make_error(ErrorCode::kDeadline, "no answer from it"));
  const ErrorCode code = refusal ? cause.code : ErrorCode::kDeadline;
  return fail(std::move(cause).wrap(
      code, fmt::format("the head at {} does not take job {} on{}", options.access.address,
                        options.job, refusal ? "" : " in time")));
}

void ClusterClient::Impl::close() {
  std::unique_ptr<AgentLauncher> ended;
  {
    const std::scoped_lock lock(launcher_mutex);
    ended = std::move(launcher);
  }
  ended = nullptr;  // ends the ranks, at their agents
  if (to_head) {
    if (const Ref<Channel> head = to_head->current()) {
      if (auto bytes = runtime::encode_value(runtime::Farewell{"its controller ends"}))
        (void)head->request("head.end_job", std::move(*bytes), Deadline::in(kFarewellWithin))
            .wait(Deadline::in(kFarewellWithin));
    }
    to_head->stop();
  }
}

void ClusterClient::Impl::announce(const Ref<Channel>& head) {
  auto bytes = runtime::encode_value(runtime::JobAnnouncement{.name = options.job,
                                                              .epoch = epoch,
                                                              .host = host_name(),
                                                              .pid = ::getpid(),
                                                              .command = options.command});
  if (!bytes) return refused(bytes.error());
  runtime::when_done<Bytes_>(
      head->request("head.announce_job", std::move(*bytes), Deadline::in(kHeadAnswersWithin)),
      [weak = weak_from_this(), head](const result<Bytes_>& answer) {
        if (const auto self = weak.lock()) self->announced(head, answer);
      });
}

void ClusterClient::Impl::announced(const Ref<Channel>& head, const result<Bytes_>& answer) {
  if (!answer) {
    refused(answer.error());
    if (!head->failure()) head->close(answer.error());
    return;
  }
  placement->attach(head);
  const std::scoped_lock lock(mutex);
  in_session = true;
  was_in_session = true;
  last_why.reset();
  changed.notify_all();
}

void ClusterClient::Impl::refused(const Error& cause) {
  std::function<void(const Error&)> lost;
  {
    const std::scoped_lock lock(mutex);
    last_why = cause;
    if (!is_final(cause) || refusal) return;
    refusal = cause;
    if (was_in_session) lost = options.on_lost;  // else `open` says it
    changed.notify_all();
  }
  if (lost) lost(cause);
}

result<void> ClusterClient::Impl::locate_nodes(const std::vector<BundlePlacement>& placements,
                                               Deadline deadline) {
  for (const BundlePlacement& place : placements) {
    const Ref<Channel> head = to_head->current();
    const Deadline within{std::min(deadline.at, Deadline::in(kHeadAnswersWithin).at)};
    {
      const std::scoped_lock lock(mutex);
      // Known for good while the head is away; else asked again, since an agent that has restarted
      // listens elsewhere.
      if (!head && addresses.contains(place.node_name)) continue;
    }
    if (!head)
      return fail(ErrorCode::kRankDead, "node {}: the head is away and cannot say where it is",
                  place.node_name);
    TROUPE_TRY(auto bytes, runtime::encode_value(runtime::NodeQuery{place.node_name}));
    TROUPE_TRY(const auto reply,
               head->request("head.find_node", std::move(bytes), within).wait(within));
    TROUPE_TRY(const auto node, runtime::decode_value<runtime::NodeEntry>(reply));
    const std::scoped_lock lock(mutex);
    addresses[place.node_name] = node.address;
  }
  return {};
}

void ClusterClient::Impl::set_places(const std::string& pool,
                                     const std::vector<BundlePlacement>& placements) {
  const std::scoped_lock lock(mutex);
  std::vector<std::string> nodes;
  for (const BundlePlacement& place : placements) nodes.push_back(place.node_name);
  places[pool] = std::move(nodes);
}

void ClusterClient::Impl::forget_places(const std::string& pool) {
  const std::scoped_lock lock(mutex);
  places.erase(pool);
}

result<AgentPlace> ClusterClient::Impl::locate(const std::string& reservation, int bundle) {
  const std::scoped_lock lock(mutex);
  const auto pool = places.find(reservation);
  const auto index = static_cast<std::size_t>(bundle);
  if (pool == places.end() || bundle < 0 || index >= pool->second.size())
    return fail(ErrorCode::kNotFound, "group {}: no bundle {} of it is placed", reservation,
                bundle);
  const std::string& node = pool->second[index];
  return AgentPlace{.node = node, .address = addresses.at(node)};
}

Ref<Channel> ClusterClient::Impl::channel_to(const std::string& address) {
  const std::scoped_lock lock(launcher_mutex);
  return launcher ? launcher->channel_to(address) : nullptr;
}

runtime::LaneGate* ClusterClient::Impl::gate(const BundlePlacement& place) {
  if (place.devices.empty()) return nullptr;
  const std::int32_t device = place.devices.front().device;
  const std::scoped_lock lock(mutex);
  const std::string& address = addresses.at(place.node_name);
  Agent& agent = agents[address];
  agent.node = place.node_name;
  if (!agent.outbox) {
    // Gates, and so outboxes, end before this does; the agent's address is good for its life.
    agent.outbox = std::make_shared<runtime::TicketOutbox>(
        system,
        runtime::TicketOutbox::Options{.channel = [this, address] { return channel_to(address); }});
  }
  auto& gate = agent.gates[device];
  if (!gate) {
    gate = std::make_unique<runtime::TicketGate>(runtime::lane_name(options.job, device),
                                                 agent.outbox);
  }
  return gate.get();
}

void ClusterClient::Impl::record_turns(runtime::Trace& trace, Deadline deadline) {
  std::map<std::string, std::pair<std::string, std::uint64_t>> wanted;  // node and turns seen
  {
    const std::scoped_lock lock(mutex);
    for (const auto& [address, agent] : agents) wanted[address] = {agent.node, agent.turns_seen};
  }
  for (auto& [address, about] : wanted) {
    auto& [node, seen] = about;
    for (;;) {
      const Ref<Channel> channel = channel_to(address);
      const auto bytes = runtime::encode_value(runtime::LaneTurnsRequest{options.job, seen});
      if (!channel || !bytes) break;
      const auto reply = channel->request("lane.turns", *bytes, deadline).wait(deadline);
      if (!reply) break;
      const auto answer = runtime::decode_value<runtime::LaneTurns>(*reply);
      if (!answer || answer->last == seen) break;
      if (answer->lost > 0) log::warn("node {}: {} turns were not kept", node, answer->lost);
      seen = answer->last;
      const TimePoint now = steady_now();
      const auto ago = [&](double span) {
        return now - std::chrono::duration_cast<Duration>(std::chrono::duration<double>(span));
      };
      for (const runtime::LaneTurnReport& turn : answer->turns) {
        const std::string device = turn.lane.substr(turn.lane.rfind('/') + 1);
        const std::string rank = turn.rank.substr(turn.rank.find('/') + 1);
        trace.span({.place = {fmt::format("{} device {}", node, device), "lane"},
                    .name = fmt::format("{} {} ticket {}", rank, turn.phase, turn.number),
                    .category = "lane",
                    .begin = ago(turn.began_s_ago),
                    .end = ago(turn.ended_s_ago)});
      }
    }
    const std::scoped_lock lock(mutex);
    agents[address].turns_seen = seen;
  }
}

ClusterClient::ClusterClient(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ClusterClient::~ClusterClient() { impl_->close(); }

result<std::unique_ptr<ClusterClient>> ClusterClient::open(runtime::ActorSystem& system,
                                                           ClusterClientOptions options) {
  auto impl = std::make_shared<Impl>(system, std::move(options));
  std::unique_ptr<ClusterClient> client(new ClusterClient(impl));
  TROUPE_TRY_VOID(impl->open());
  return client;
}

runtime::LinkHub& ClusterClient::hub() { return *impl_->hub; }
AgentLauncher& ClusterClient::launcher() { return *impl_->launcher; }
PlacementClient& ClusterClient::placement() { return *impl_->placement; }
const std::string& ClusterClient::job() const { return impl_->options.job; }
const std::string& ClusterClient::listen_host() const { return impl_->listen_host; }

result<std::unique_ptr<ClusterPool>> ClusterClient::create_pool(GroupWish wish, Deadline deadline) {
  TROUPE_TRY(auto group, impl_->placement->create_group(std::move(wish), deadline).wait(deadline));
  std::unique_ptr<ClusterPool> pool(new ClusterPool(impl_, std::move(group)));
  TROUPE_TRY_VOID(pool->refresh(deadline));
  return pool;
}

void ClusterClient::record_turns(runtime::Trace& trace, Deadline deadline) {
  impl_->record_turns(trace, deadline);
}

ClusterPool::~ClusterPool() { client_->forget_places(group_.name()); }

result<void> ClusterPool::refresh(Deadline deadline) {
  auto news = group_.wait_active(deadline).wait(deadline);
  if (!news && news.error().code == ErrorCode::kDeadline) {
    const Deadline soon = Deadline::in(kExplainWithin);
    const auto why = group_.explain(soon).wait(soon);
    return fail(std::move(news).error().wrap(
        ErrorCode::kDeadline, fmt::format("group {} is not placed in time: {}", name(),
                                          why ? *why : why.error().to_string())));
  }
  if (!news) return fail(std::move(news).error());
  TROUPE_TRY_VOID(client_->locate_nodes(news->placements, deadline));
  client_->set_places(name(), news->placements);
  placements_ = std::move(news->placements);
  return {};
}

std::vector<runtime::LaneGate*> ClusterPool::lanes() const {
  std::vector<runtime::LaneGate*> gates;
  for (const BundlePlacement& place : placements_) gates.push_back(client_->gate(place));
  return gates;
}

}  // namespace troupe::placement
