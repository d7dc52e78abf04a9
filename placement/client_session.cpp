#include "placement/client_session.hpp"

#include "placement/protocol_codec.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/incarnation.hpp"
#include "runtime/base/log.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/task/when_done.hpp"

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

constexpr std::string_view kCreate = "placement.create";
constexpr Duration kSessionWithin = std::chrono::seconds(5);

bool is_over(GroupStatus status) {
  return status == GroupStatus::kInfeasible || status == GroupStatus::kRemoved;
}

/// The answer to a remove that was asked again: what is gone was removed by the first one.
Reply forgive_gone(const std::vector<std::byte>& asked, Reply answer) {
  if (!answer) return answer;
  const auto keys = decode_keys(asked);
  auto outcomes = decode_outcomes(*answer);
  if (!keys || !outcomes || keys->size() != outcomes->size()) return answer;
  for (std::size_t i = 0; i < keys->size(); ++i) {
    const GroupId id = (*keys)[i].id;
    auto& outcome = (*outcomes)[i];
    if (id.value != 0 && !outcome && outcome.error().code == ErrorCode::kNotFound) outcome = id;
  }
  return encode_outcomes(*outcomes);
}

/// Why nobody may wait for the group any longer.
Error end_of(const std::string& name, const GroupNews& news) {
  const std::string text = fmt::format("group '{}' is {}", name, group_status_name(news.status));
  if (!news.cause) return make_error(ErrorCode::kCancelled, "{}", text);
  Error cause = *news.cause;
  const ErrorCode code = cause.code;
  return std::move(cause).wrap(code, text);
}

}  // namespace

PlacementClient::Impl::Impl(PlacementClientOptions options) : options_(std::move(options)) {
  if (options_.instance == 0) options_.instance = new_incarnation();
}

PlacementClient::Impl::~Impl() {
  fail_all(make_error(ErrorCode::kAborted, "the placement client is gone"));
}

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
    for (auto& [id, asked] : asked_) {
      again[id] = Asked{asked.method, asked.bytes, asked.deadline, {}, {}};
      ++asked.times;
    }
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
      if (asked.method == kCreate) ++creates_open_;
      asked_.emplace(id, std::move(asked));
      if (in_session_) {
        head = head_;
        asked_.at(id).times = 1;
      }
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
  Asked asked;
  {
    const std::lock_guard lock(mutex_);
    const auto found = asked_.find(id);
    if (found == asked_.end()) return;
    asked = std::move(found->second);
    timer_.remove(asked.timer);
    asked_.erase(found);
    if (asked.method == kCreate) --creates_open_;
  }
  if (asked.method == "placement.remove" && asked.times > 1)
    answer = forgive_gone(asked.bytes, std::move(answer));
  asked.done(std::move(answer));
  if (asked.method == kCreate) remove_strays();
}

void PlacementClient::Impl::mark_removed(GroupId id) {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  if (found != groups_.end()) found->second.news.status = GroupStatus::kRemoved;
}

/// Groups whose create ended here, at its deadline, before the head answered: nobody has a handle.
void PlacementClient::Impl::remove_strays() {
  std::vector<GroupId> strays;
  {
    const std::lock_guard lock(mutex_);
    if (creates_open_ > 0) return;  // an answer may still name them
    strays.assign(strays_.begin(), strays_.end());
    strays_.clear();
  }
  for (const GroupId id : strays) drop(id);
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
  finish(id, fail(make_error(ErrorCode::kDeadline, "{}", text)));
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
  bool is_stray = false;
  {
    const std::lock_guard lock(mutex_);
    // A group may be told of before the answer that named it, after a connection was lost; one
    // that is gone may be told of after its handle was.
    const auto known = groups_.find(change.group);
    if (known == groups_.end() && change.kind == ChangeKind::kRemoved) return;
    Entry& entry = known != groups_.end() ? known->second : groups_[change.group];
    if (known == groups_.end()) strays_.insert(change.group);
    is_stray = !strays_.empty();
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
  if (is_stray) remove_strays();
}

void PlacementClient::Impl::adopt(GroupId id, const std::string& name, bool detached) {
  const std::lock_guard lock(mutex_);
  strays_.erase(id);
  Entry& entry = groups_[id];
  entry.name = name;
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
      late.fail(make_error(ErrorCode::kDeadline, "{}", text));
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

}  // namespace troupe::placement
