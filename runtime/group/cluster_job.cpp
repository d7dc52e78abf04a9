#include "runtime/group/cluster_job.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/comm/lane_interfaces.hpp"
#include "runtime/exchange/column_exchange.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/group/group_messages.hpp"
#include "runtime/group/remote_rank.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr std::size_t kStoreKeysMax = 1 << 16;   // of one group
constexpr std::size_t kStoreBytesMax = 4 << 10;  // of one value
constexpr std::size_t kKeyBytesMax = 512;
constexpr std::size_t kWaitersMax = 1 << 14;  // of one group
constexpr std::string_view kControllerOwner = "controller";

using OwnerKey = std::pair<std::string, std::int32_t>;

}  // namespace

struct ClusterJob::State {
  struct Waiter {
    std::string key;
    Deadline deadline;
    Responder responder;
  };
  struct Group {
    std::map<std::string, std::string, std::less<>> store;
    std::vector<Waiter> waiters;
  };
  struct Owner {
    std::vector<std::byte> address;
    Ref<Channel> channel;
  };

  std::string job;
  std::mutex mutex;  // guards what follows
  std::map<std::string, Group, std::less<>> groups;
  std::map<std::string, Ref<RemoteRank>, std::less<>> expected;  // by peer name
  std::map<OwnerKey, Owner> owners;
  std::string holder;

  std::mutex work_mutex;  // guards what follows
  std::condition_variable work_changed;
  std::deque<std::function<void()>> work;
  bool stop = false;
  std::thread worker;

  void run() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock lock(work_mutex);
        work_changed.wait(lock, [this] { return stop || !work.empty(); });
        if (work.empty()) return;
        next = std::move(work.front());
        work.pop_front();
      }
      next();
    }
  }

  result<std::shared_ptr<ChannelService>> accept(const PeerName& peer, Ref<Channel> channel);
  result<std::vector<std::byte>> set(std::string_view group, StoreEntry entry,
                                     std::vector<Waiter>& ready);
  void get(const std::string& group, std::string key, Deadline deadline, Responder responder);
};

ClusterJob::ClusterJob(ActorSystem& system, RankLauncher& launcher, ClusterJobOptions options)
    : system_(system),
      launcher_(launcher),
      options_(std::move(options)),
      state_(std::make_shared<State>()) {}

result<std::unique_ptr<ClusterJob>> ClusterJob::open(ActorSystem& system, LinkHub* hub,
                                                     RankLauncher& launcher,
                                                     ClusterJobOptions options) {
  TROUPE_TRY_VOID(check_job_name("job", options.job));
  if (options.lanes == TransportLanes::kAuto) {
    TROUPE_TRY(options.lanes, lanes_of_environment());
  }
  if (options.lanes == TransportLanes::kTcp) options.environment.emplace(kLanesVariable, "tcp");
  std::unique_ptr<ClusterJob> job(new ClusterJob(system, launcher, std::move(options)));
  TROUPE_TRY(job->key_, make_session_key());
  TROUPE_TRY(const SessionKey session, make_session_key());
  job->state_->job = job->options_.job;
  job->state_->holder = job->options_.job;
  for (const std::byte byte : session)
    job->state_->holder += fmt::format("{:02x}", static_cast<unsigned>(byte));
  if (job->options_.exchange) {
    TROUPE_TRY_VOID(job->open_exchange());
  }
  job->state_->worker = std::thread([state = job->state_.get()] { state->run(); });
  if (hub == nullptr) return job;
  // The hub keeps the listener, and may outlive the job.
  TROUPE_TRY(const ListenAddress bound,
             hub->listen(job->options_.listen_host, 0,
                         [state = job->state_](const PeerName& peer, Ref<Channel> channel) {
                           return state->accept(peer, std::move(channel));
                         }));
  job->address_ = bound.to_string();
  if (!job->options_.announced_host.empty())
    job->address_ = fmt::format("{}:{}", job->options_.announced_host, bound.port);
  return job;
}

ClusterJob::~ClusterJob() {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->groups.empty()) {
      log::error("job {}: destroyed before its group {}", options_.job,
                 state_->groups.begin()->first);
    }
  }
  {
    const std::lock_guard lock(state_->work_mutex);
    state_->stop = true;
  }
  state_->work_changed.notify_all();
  if (state_->worker.joinable()) state_->worker.join();
}

result<void> ClusterJob::open_exchange() {
  ExchangeOptions exchange;
  exchange.self = ColumnOwner{std::string(kControllerOwner), RankId{0}};
  TransportOptions transport;
  transport.name = fmt::format("controller of {}", options_.job);
  transport.key = key_;
  transport.lanes = options_.lanes;
  transport.interfaces = lane_interfaces(options_.listen_host);
  TROUPE_TRY(exchange_, ColumnExchange::open(std::move(exchange), std::move(transport)));
  exchange_->set_peer_lookup([state = state_](const ColumnOwner& owner,
                                              Deadline) -> result<std::vector<std::byte>> {
    const std::lock_guard lock(state->mutex);
    const auto found = state->owners.find({owner.group, owner.rank.value});
    if (found != state->owners.end()) return found->second.address;
    return fail(ErrorCode::kNotFound, "{} rank {} holds no columns", owner.group, owner.rank.value);
  });
  exchange_->set_lease_sender([state = state_](const ColumnOwner& owner, std::string_view method,
                                               std::vector<std::byte> payload) -> result<void> {
    Ref<Channel> channel;
    {
      const std::lock_guard lock(state->mutex);
      const auto found = state->owners.find({owner.group, owner.rank.value});
      if (found != state->owners.end()) channel = found->second.channel;
    }
    if (!channel)
      return fail(ErrorCode::kRankDead, "{} rank {} is gone", owner.group, owner.rank.value);
    return channel->notify(method, std::move(payload));
  });
  return {};
}

std::string ClusterJob::holder() const { return state_->holder; }

result<std::shared_ptr<ChannelService>> ClusterJob::State::accept(const PeerName& peer,
                                                                  Ref<Channel> channel) {
  Ref<RemoteRank> rank;
  {
    const std::lock_guard lock(mutex);
    const auto found = expected.find(peer.name);
    if (peer.role == PeerRole::kRank && found != expected.end()) rank = found->second;
  }
  if (!rank) return fail(ErrorCode::kNotFound, "job {}: {} is not expected", job, peer.to_string());
  return rank->attach(std::move(channel));
}

result<std::shared_ptr<ChannelService>> ClusterJob::accept(const PeerName& peer,
                                                           Ref<Channel> channel) {
  return state_->accept(peer, std::move(channel));
}

result<void> ClusterJob::add_group(const std::string& group) {
  const std::lock_guard lock(state_->mutex);
  if (group == kControllerOwner || !state_->groups.try_emplace(group).second)
    return fail(ErrorCode::kAlreadyExists, "job {}: a group '{}' exists", options_.job, group);
  return {};
}

void ClusterJob::remove_group(const std::string& group) {
  State::Group removed;
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->groups.find(group);
    if (found == state_->groups.end()) return;
    removed = std::move(found->second);
    state_->groups.erase(found);
    std::erase_if(state_->expected,
                  [&](const auto& entry) { return entry.second->group() == group; });
  }
  for (auto& waiter : removed.waiters)
    waiter.responder.reply(fail(ErrorCode::kCancelled, "store: the group is closed"));
}

void ClusterJob::expect(const Ref<RemoteRank>& rank) {
  const std::lock_guard lock(state_->mutex);
  state_->expected[rank->peer_name()] = rank;
}

void ClusterJob::set_address(const ColumnOwner& owner, std::vector<std::byte> address,
                             Ref<Channel> channel) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->owners[{owner.group, owner.rank.value}] = {address, std::move(channel)};
  }
  if (exchange_) exchange_->set_peer(owner, std::move(address));
}

void ClusterJob::owner_lost(const ColumnOwner& owner, const Error& cause) {
  std::vector<Ref<Channel>> others;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->owners.erase({owner.group, owner.rank.value}) == 0) return;
    for (const auto& [key, one] : state_->owners) others.push_back(one.channel);
  }
  if (exchange_) exchange_->peer_lost(owner, cause);
  const auto notice = encode_value(OwnerLost{owner.group, owner.rank, cause});
  if (!notice) return;
  for (const auto& channel : others) {
    // A channel that does not take it is going down itself.
    if (channel) (void)channel->notify(kExchangeLost, *notice);
  }
}

result<std::vector<std::byte>> ClusterJob::State::set(std::string_view group, StoreEntry entry,
                                                      std::vector<Waiter>& ready) {
  const std::lock_guard lock(mutex);
  const auto found = groups.find(group);
  if (found == groups.end()) return fail(ErrorCode::kNotFound, "store: no group '{}'", group);
  if (entry.key.size() > kKeyBytesMax || entry.value.size() > kStoreBytesMax) {
    return fail(ErrorCode::kInvalidArgument,
                "store: key of {} and value of {} bytes, at most {} {}", entry.key.size(),
                entry.value.size(), kKeyBytesMax, kStoreBytesMax);
  }
  if (found->second.store.size() >= kStoreKeysMax && !found->second.store.contains(entry.key))
    return fail(ErrorCode::kResourceExhausted, "store: {} keys", kStoreKeysMax);
  auto& waiters = found->second.waiters;
  const auto first_ready = std::partition(waiters.begin(), waiters.end(),
                                          [&](const Waiter& one) { return one.key != entry.key; });
  std::move(first_ready, waiters.end(), std::back_inserter(ready));
  waiters.erase(first_ready, waiters.end());
  found->second.store[std::move(entry.key)] = std::move(entry.value);
  return std::vector<std::byte>();
}

void ClusterJob::State::get(const std::string& group, std::string key, Deadline deadline,
                            Responder responder) {
  std::vector<Waiter> late;  // answered after the lock
  result<std::vector<std::byte>> answer;
  {
    const std::lock_guard lock(mutex);
    const auto found = groups.find(group);
    if (found == groups.end()) {
      answer = fail(ErrorCode::kNotFound, "store: no group '{}'", group);
    } else if (const auto at = found->second.store.find(key); at != found->second.store.end()) {
      answer = encode_value(at->second);
    } else {
      auto& waiters = found->second.waiters;
      const auto first_late = std::partition(
          waiters.begin(), waiters.end(), [](const Waiter& one) { return !one.deadline.passed(); });
      std::move(first_late, waiters.end(), std::back_inserter(late));
      waiters.erase(first_late, waiters.end());
      if (waiters.size() >= kWaitersMax) {
        answer = fail(ErrorCode::kResourceExhausted, "store: {} waiters", kWaitersMax);
      } else {
        waiters.push_back({std::move(key), deadline, std::move(responder)});
      }
    }
  }
  for (Waiter& one : late) {
    one.responder.reply(fail(ErrorCode::kDeadline, "store: '{}' was not set in time", one.key));
  }
  if (responder.open()) responder.reply(std::move(answer));
}

void ClusterJob::serve(const std::string& group, std::string_view method,
                       std::span<const std::byte> payload, Deadline deadline, Responder responder) {
  if (method == kStoreSet || method == kStoreGet) {
    auto entry = decode_value<StoreEntry>(payload);
    if (!entry) return responder.reply(fail(std::move(entry).error()));
    if (method == kStoreGet)
      return state_->get(group, std::move(entry->key), deadline, std::move(responder));
    std::vector<State::Waiter> ready;
    const std::string value = entry->value;
    responder.reply(state_->set(group, std::move(*entry), ready));
    for (auto& waiter : ready) waiter.responder.reply(encode_value(value));
    return;
  }
  if (method == kExchangeLookup) {
    const auto owner = decode_value<OwnerName>(payload);
    if (!owner) return responder.reply(fail(owner.error()));
    if (owner->group == kControllerOwner && exchange_) return responder.reply(exchange_->address());
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->owners.find({owner->group, owner->rank.value});
    if (found != state_->owners.end()) return responder.reply(found->second.address);
    return responder.reply(
        fail(ErrorCode::kNotFound, "{} rank {} holds no columns", owner->group, owner->rank.value));
  }
  responder.reply(fail(ErrorCode::kNotFound, "controller: no method '{}'", method));
}

void ClusterJob::post(std::function<void()> work) {
  {
    const std::lock_guard lock(state_->work_mutex);
    state_->work.push_back(std::move(work));
  }
  state_->work_changed.notify_one();
}

}  // namespace troupe::runtime
