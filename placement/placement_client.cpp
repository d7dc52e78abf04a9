#include "placement/placement_client.hpp"

#include "placement/protocol_codec.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/task/when_done.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

namespace troupe::placement {

using runtime::Channel;
using runtime::completer;
using runtime::make_pending;
using runtime::pending;
using runtime::Ref;
using runtime::Responder;
using Reply = result<std::vector<std::byte>>;

namespace {

constexpr Duration kSessionWithin = std::chrono::seconds(5);

std::uint64_t new_instance() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return static_cast<std::uint64_t>(now) ^ (static_cast<std::uint64_t>(::getpid()) << 48);
}

Error make_error(ErrorCode code, std::string message) {
  return Error{.code = code, .message = std::move(message), .origin = {}, .causes = {}};
}

bool is_over(GroupStatus status) {
  return status == GroupStatus::kInfeasible || status == GroupStatus::kRemoved;
}

/// Why nobody may wait for the group any longer.
Error end_of(const std::string& name, const GroupNews& news) {
  const std::string text = fmt::format("group '{}' is {}", name, group_status_name(news.status));
  if (!news.cause) return make_error(ErrorCode::kCancelled, text);
  Error cause = *news.cause;
  const ErrorCode code = cause.code;
  return std::move(cause).wrap(code, text);
}

}  // namespace

class PlacementClient::Impl : public std::enable_shared_from_this<PlacementClient::Impl> {
 public:
  using Done = std::function<void(Reply)>;

  explicit Impl(PlacementClientOptions wanted) : options_(std::move(wanted)) {
    if (options_.instance == 0) options_.instance = new_instance();
  }
  ~Impl() { fail_all(make_error(ErrorCode::kAborted, "the placement client is gone")); }

  void attach(Ref<Channel> head);
  void down(const Channel& channel);
  void told(std::span<const std::byte> payload);
  /// `done` is called once: with the answer, an error, or at the deadline.
  void ask(std::string method, std::vector<std::byte> bytes, Deadline deadline, Done done);

  std::uint64_t next_number() {
    const std::lock_guard lock(mutex_);
    return ++last_number_;
  }
  void adopt(GroupId id, const std::string& name, bool detached);
  /// The handle of a group is dropped.
  void drop(GroupId id);
  pending<GroupNews> wait_active(GroupId id, Deadline deadline);
  GroupNews news(GroupId id) const;
  void watch(GroupId id, GroupWatcher watcher);

 private:
  struct Asked {
    std::string method;
    std::vector<std::byte> bytes;
    Deadline deadline{};
    Done done;
    runtime::CallTimer::Id timer{};
  };
  struct Waiting {
    completer<GroupNews> end;
    runtime::CallTimer::Id timer{};
  };
  struct Entry {
    std::string name;
    bool held = false;  ///< by a handle
    bool detached = false;
    GroupNews news;
    GroupWatcher watcher;
    std::map<std::uint64_t, Waiting> waiters;
  };

  void session_answered(const Ref<Channel>& head, const Reply& answer);
  void send(std::uint64_t id, const Asked& asked, const Ref<Channel>& head);
  void answered(std::uint64_t id, const Ref<Channel>& head, Reply answer);
  void finish(std::uint64_t id, Reply answer);
  void expire(std::uint64_t id);
  void fail_all(const Error& cause);
  void apply(const GroupChange& change);

  PlacementClientOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  Ref<Channel> head_;
  bool in_session_ = false;
  std::uint64_t last_number_ = 0;  // of creates and resizes
  std::uint64_t last_id_ = 0;      // of asked and waiters
  std::map<std::uint64_t, Asked> asked_;
  std::map<GroupId, Entry> groups_;
  runtime::CallTimer timer_;  // last: its callbacks use what is above
};

void PlacementClient::Impl::attach(Ref<Channel> head) {
  OpenSession session{.owner = {options_.owner, options_.instance}, .known = {}};
  {
    const std::lock_guard lock(mutex_);
    head_ = head;
    in_session_ = false;
    for (const auto& [id, entry] : groups_) {
      if (entry.news.status != GroupStatus::kRemoved) session.known.push_back(id);
    }
  }
  runtime::when_done<std::vector<std::byte>>(
      head->request("placement.session", encode_session(session), Deadline::in(kSessionWithin)),
      [weak = weak_from_this(), head](const Reply& answer) {
        if (const auto self = weak.lock()) self->session_answered(head, answer);
      });
}

void PlacementClient::Impl::session_answered(const Ref<Channel>& head, const Reply& answer) {
  if (!answer) {
    if (head->failure()) return;
    log::warn("placement: the head refuses the session of {}: {}", options_.owner,
              answer.error().to_string());
    return head->close(answer.error());
  }
  std::map<std::uint64_t, Asked> again;  // what could not be asked, or whose answer was lost
  {
    const std::lock_guard lock(mutex_);
    if (head_ != head) return;
    in_session_ = true;
    for (const auto& [id, asked] : asked_)
      again[id] = Asked{asked.method, asked.bytes, asked.deadline, {}, {}};
  }
  for (const auto& [id, asked] : again) send(id, asked, head);
}

void PlacementClient::Impl::down(const Channel& channel) {
  Ref<Channel> gone;  // let go outside the lock
  const std::lock_guard lock(mutex_);
  if (head_.get() != &channel) return;
  gone = std::exchange(head_, nullptr);
  in_session_ = false;
}

void PlacementClient::Impl::ask(std::string method, std::vector<std::byte> bytes, Deadline deadline,
                                Done done) {
  Ref<Channel> head;
  std::uint64_t id = 0;
  Asked copy{std::move(method), std::move(bytes), deadline, {}, {}};
  {
    const std::lock_guard lock(mutex_);
    if (asked_.size() < options_.requests_max) {
      id = ++last_id_;
      Asked asked{copy.method, copy.bytes, deadline, std::move(done), {}};
      asked.timer = timer_.add(deadline.at, [weak = weak_from_this(), id] {
        if (const auto self = weak.lock()) self->expire(id);
      });
      asked_.emplace(id, std::move(asked));
      if (in_session_) head = head_;
    }
  }
  if (id == 0)
    return done(fail(ErrorCode::kResourceExhausted, "{}: {} requests are unanswered, the bound",
                     copy.method, options_.requests_max));
  if (head) send(id, copy, head);
}

void PlacementClient::Impl::send(std::uint64_t id, const Asked& asked, const Ref<Channel>& head) {
  runtime::when_done<std::vector<std::byte>>(
      head->request(asked.method, asked.bytes, asked.deadline),
      [weak = weak_from_this(), head, id](Reply answer) {
        if (const auto self = weak.lock()) self->answered(id, head, std::move(answer));
      });
}

void PlacementClient::Impl::answered(std::uint64_t id, const Ref<Channel>& head, Reply answer) {
  // The connection is gone, not the request: it is asked again in the next session.
  if (!answer && head->failure()) return;
  finish(id, std::move(answer));
}

void PlacementClient::Impl::finish(std::uint64_t id, Reply answer) {
  Done done;
  {
    const std::lock_guard lock(mutex_);
    const auto found = asked_.find(id);
    if (found == asked_.end()) return;
    done = std::move(found->second.done);
    timer_.remove(found->second.timer);
    asked_.erase(found);
  }
  done(std::move(answer));
}

void PlacementClient::Impl::expire(std::uint64_t id) {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    const auto found = asked_.find(id);
    if (found == asked_.end()) return;
    text = fmt::format("{}: {}", found->second.method,
                       in_session_ ? "the head has not answered" : "the head is away");
  }
  finish(id, fail(make_error(ErrorCode::kDeadline, std::move(text))));
}

void PlacementClient::Impl::fail_all(const Error& cause) {
  std::map<std::uint64_t, Asked> asked;
  std::map<GroupId, Entry> groups;
  {
    const std::lock_guard lock(mutex_);
    asked.swap(asked_);
    groups.swap(groups_);
  }
  for (auto& [id, one] : asked) one.done(fail(cause));
  for (auto& [id, entry] : groups) {
    for (auto& [number, waiter] : entry.waiters) waiter.end.fail(cause);
  }
}

void PlacementClient::Impl::told(std::span<const std::byte> payload) {
  const auto changes = decode_changes(payload);
  if (!changes) return log::warn("placement.changes: {}", changes.error().to_string());
  for (const GroupChange& change : *changes) apply(change);
}

void PlacementClient::Impl::apply(const GroupChange& change) {
  std::map<std::uint64_t, Waiting> over;
  GroupWatcher watcher;
  GroupNews news;
  std::string name;
  {
    const std::lock_guard lock(mutex_);
    // A group may be told of before the answer that named it, after a connection was lost; one
    // that is gone may be told of after its handle was.
    const auto known = groups_.find(change.group);
    if (known == groups_.end() && change.kind == ChangeKind::kRemoved) return;
    Entry& entry = known != groups_.end() ? known->second : groups_[change.group];
    // Of an older placement; that it is gone is news whatever the epoch.
    if (change.epoch < entry.news.epoch && change.kind != ChangeKind::kRemoved) return;
    entry.news.status = change.status;
    entry.news.epoch = std::max(entry.news.epoch, change.epoch);
    entry.news.cause = change.cause;
    if (change.kind == ChangeKind::kActive || change.kind == ChangeKind::kMoved ||
        change.kind == ChangeKind::kResized)
      entry.news.placements = change.placements;
    if (entry.news.status == GroupStatus::kActive || is_over(entry.news.status))
      over.swap(entry.waiters);
    watcher = entry.watcher;
    news = entry.news;
    name = entry.name;
  }
  for (auto& [number, waiter] : over) {
    timer_.remove(waiter.timer);
    if (is_over(news.status))
      waiter.end.fail(end_of(name, news));
    else
      waiter.end.complete(news);
  }
  if (watcher) watcher(change);
}

void PlacementClient::Impl::adopt(GroupId id, const std::string& name, bool detached) {
  const std::lock_guard lock(mutex_);
  Entry& entry = groups_[id];
  entry.name = name;
  entry.held = true;
  entry.detached = detached;
}

void PlacementClient::Impl::drop(GroupId id) {
  bool remove = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(id);
    if (found == groups_.end()) return;
    remove = !found->second.detached && found->second.news.status != GroupStatus::kRemoved;
    if (!remove) groups_.erase(found);
  }
  if (!remove) return;
  const GroupKey key{.id = id, .name = {}};
  ask("placement.remove", encode_keys(std::span(&key, 1)), Deadline::in(options_.request_within),
      [weak = weak_from_this(), id](const Reply& answer) {
        // Not removed in time: the head does it when it sees that this owner is gone.
        if (!answer && answer.error().code != ErrorCode::kAborted)
          log::warn("group {}: {}", id.value, answer.error().to_string());
        const auto self = weak.lock();
        if (!self) return;
        const std::lock_guard lock(self->mutex_);
        self->groups_.erase(id);
      });
}

pending<GroupNews> PlacementClient::Impl::wait_active(GroupId id, Deadline deadline) {
  auto ends = make_pending<GroupNews>();
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  TROUPE_CHECK(found != groups_.end(), "placement client: group {} is not held", id.value);
  Entry& entry = found->second;
  if (is_over(entry.news.status)) {
    ends.second.fail(end_of(entry.name, entry.news));
  } else if (entry.news.status == GroupStatus::kActive) {
    ends.second.complete(entry.news);
  } else {
    const std::uint64_t number = ++last_id_;
    Waiting& waiting = entry.waiters[number];
    waiting.end = ends.second;
    waiting.timer = timer_.add(deadline.at, [weak = weak_from_this(), id, number] {
      const auto self = weak.lock();
      if (!self) return;
      completer<GroupNews> late;
      std::string text;
      {
        const std::lock_guard inner(self->mutex_);
        const auto group = self->groups_.find(id);
        if (group == self->groups_.end()) return;
        const auto waiter = group->second.waiters.find(number);
        if (waiter == group->second.waiters.end()) return;
        late = std::move(waiter->second.end);
        group->second.waiters.erase(waiter);
        text = fmt::format("group '{}' is still {}", group->second.name,
                           group_status_name(group->second.news.status));
      }
      late.fail(make_error(ErrorCode::kDeadline, std::move(text)));
    });
  }
  return std::move(ends.first);
}

GroupNews PlacementClient::Impl::news(GroupId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  TROUPE_CHECK(found != groups_.end(), "placement client: group {} is not held", id.value);
  return found->second.news;
}

void PlacementClient::Impl::watch(GroupId id, GroupWatcher watcher) {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  TROUPE_CHECK(found != groups_.end(), "placement client: group {} is not held", id.value);
  found->second.watcher = std::move(watcher);
}

PlacementClient::PlacementClient(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
PlacementClient::~PlacementClient() = default;

result<std::shared_ptr<PlacementClient>> PlacementClient::create(PlacementClientOptions options) {
  if (options.owner.empty())
    return fail(ErrorCode::kInvalidArgument, "placement client: the owner has no name");
  return std::shared_ptr<PlacementClient>(
      new PlacementClient(std::make_shared<Impl>(std::move(options))));
}

void PlacementClient::attach(Ref<Channel> head) { impl_->attach(std::move(head)); }

void PlacementClient::on_request(Channel& /*channel*/, std::string_view method,
                                 std::span<const std::byte> /*payload*/, Deadline /*deadline*/,
                                 Responder responder) {
  responder.reply(fail(ErrorCode::kNotFound, "placement client: no method '{}'", method));
}

void PlacementClient::on_notify(Channel& /*channel*/, std::string_view method,
                                std::span<const std::byte> payload) {
  if (method == "placement.changes") impl_->told(payload);
}

void PlacementClient::on_down(Channel& channel, const Error& /*cause*/) { impl_->down(channel); }

pending<std::vector<result<PlacementGroup>>> PlacementClient::create_groups(
    std::vector<GroupWish> wishes, Deadline deadline) {
  auto ends = make_pending<std::vector<result<PlacementGroup>>>();
  if (wishes.size() > kRequestsPerMessageMax) {
    ends.second.fail(make_error(ErrorCode::kInvalidArgument,
                                fmt::format("{} groups in one message, at most {}", wishes.size(),
                                            kRequestsPerMessageMax)));
    return std::move(ends.first);
  }
  std::vector<CreateGroup> creates;
  creates.reserve(wishes.size());
  struct Made {
    std::string name;
    bool detached;
  };
  std::vector<Made> made;
  for (GroupWish& wish : wishes) {
    made.push_back({wish.request.name, wish.terms.detached});
    creates.push_back({impl_->next_number(), std::move(wish.request), wish.terms});
  }
  impl_->ask("placement.create", encode_creates(creates), deadline,
             [self = shared_from_this(), made = std::move(made), out = ends.second](Reply answer) {
               if (!answer) return (void)out.fail(std::move(answer).error());
               auto outcomes = decode_outcomes(*answer);
               if (!outcomes) return (void)out.fail(std::move(outcomes).error());
               if (outcomes->size() != made.size())
                 return (void)out.fail(make_error(
                     ErrorCode::kCorrupt,
                     fmt::format("{} outcomes for {} groups", outcomes->size(), made.size())));
               std::vector<result<PlacementGroup>> groups;
               for (std::size_t i = 0; i < made.size(); ++i) {
                 auto& outcome = (*outcomes)[i];
                 if (!outcome) {
                   groups.emplace_back(fail(std::move(outcome).error()));
                   continue;
                 }
                 self->impl_->adopt(*outcome, made[i].name, made[i].detached);
                 groups.emplace_back(PlacementGroup(self, *outcome, made[i].name));
               }
               out.complete(std::move(groups));
             });
  return std::move(ends.first);
}

pending<PlacementGroup> PlacementClient::create_group(GroupWish wish, Deadline deadline) {
  auto ends = make_pending<PlacementGroup>();
  std::vector<GroupWish> one;
  one.push_back(std::move(wish));
  runtime::when_done<std::vector<result<PlacementGroup>>>(
      create_groups(std::move(one), deadline),
      [out = ends.second](result<std::vector<result<PlacementGroup>>> made) {
        if (!made)
          out.fail(std::move(made).error());
        else
          out.complete(std::move(made->front()));
      });
  return std::move(ends.first);
}

namespace {

/// Completes `out` with what `decode` makes of an answer.
template <class T, class Decode>
std::function<void(Reply)> answer_to(completer<T> out, Decode decode) {
  return [out = std::move(out), decode = std::move(decode)](Reply answer) {
    if (answer)
      out.complete(decode(*answer));
    else
      out.fail(std::move(answer).error());
  };
}

result<std::string> decode_text(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

pending<GroupOutcomes> PlacementClient::remove_groups(std::vector<GroupKey> groups,
                                                      Deadline deadline) {
  auto ends = make_pending<GroupOutcomes>();
  impl_->ask("placement.remove", encode_keys(groups), deadline,
             answer_to(ends.second, decode_outcomes));
  return std::move(ends.first);
}

pending<GroupView> PlacementClient::view(GroupKey group, Deadline deadline) {
  auto ends = make_pending<GroupView>();
  impl_->ask("placement.view", encode_keys(std::span(&group, 1)), deadline,
             answer_to(ends.second, decode_view));
  return std::move(ends.first);
}

pending<std::string> PlacementClient::explain(GroupKey group, Deadline deadline) {
  auto ends = make_pending<std::string>();
  impl_->ask("placement.explain", encode_keys(std::span(&group, 1)), deadline,
             answer_to(ends.second, decode_text));
  return std::move(ends.first);
}

pending<GroupPage> PlacementClient::list(ListGroups list, Deadline deadline) {
  auto ends = make_pending<GroupPage>();
  impl_->ask("placement.list", encode_list(list), deadline, answer_to(ends.second, decode_page));
  return std::move(ends.first);
}

PlacementGroup::PlacementGroup(PlacementGroup&& other) noexcept
    : client_(std::move(other.client_)), id_(other.id_), name_(std::move(other.name_)) {
  other.client_ = nullptr;
}

PlacementGroup& PlacementGroup::operator=(PlacementGroup&& other) noexcept {
  if (this != &other) {
    if (client_) client_->impl_->drop(id_);
    client_ = std::exchange(other.client_, nullptr);
    id_ = other.id_;
    name_ = std::move(other.name_);
  }
  return *this;
}

PlacementGroup::~PlacementGroup() {
  if (client_) client_->impl_->drop(id_);
}

pending<GroupNews> PlacementGroup::wait_active(Deadline deadline) const {
  return client_->impl_->wait_active(id_, deadline);
}

pending<GroupId> PlacementGroup::remove(Deadline deadline) {
  auto ends = make_pending<GroupId>();
  const GroupKey key{.id = id_, .name = {}};
  client_->impl_->ask(
      "placement.remove", encode_keys(std::span(&key, 1)), deadline,
      answer_to(ends.second, [](std::span<const std::byte> bytes) -> result<GroupId> {
        TROUPE_TRY(auto outcomes, decode_outcomes(bytes));
        if (outcomes.size() != 1)
          return fail(ErrorCode::kCorrupt, "{} outcomes for one group", outcomes.size());
        return std::move(outcomes.front());
      }));
  return std::move(ends.first);
}

pending<GroupView> PlacementGroup::grow(std::vector<Bundle> more, Deadline deadline) {
  auto ends = make_pending<GroupView>();
  const ResizeGroup resize{.number = client_->impl_->next_number(),
                           .group = {.id = id_, .name = {}},
                           .remove = {},
                           .add = std::move(more)};
  client_->impl_->ask("placement.resize", encode_resize(resize), deadline,
                      answer_to(ends.second, decode_view));
  return std::move(ends.first);
}

pending<GroupView> PlacementGroup::shrink(std::vector<std::int32_t> bundles, Deadline deadline) {
  auto ends = make_pending<GroupView>();
  const ResizeGroup resize{.number = client_->impl_->next_number(),
                           .group = {.id = id_, .name = {}},
                           .remove = std::move(bundles),
                           .add = {}};
  client_->impl_->ask("placement.resize", encode_resize(resize), deadline,
                      answer_to(ends.second, decode_view));
  return std::move(ends.first);
}

pending<std::string> PlacementGroup::explain(Deadline deadline) const {
  return client_->explain({.id = id_, .name = {}}, deadline);
}

GroupNews PlacementGroup::news() const { return client_->impl_->news(id_); }

void PlacementGroup::watch(GroupWatcher watcher) { client_->impl_->watch(id_, std::move(watcher)); }

void PlacementGroup::release() { client_ = nullptr; }

}  // namespace troupe::placement
