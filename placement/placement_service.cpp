#include "placement/placement_service.hpp"

#include "placement/ledger_file.hpp"
#include "placement/ledger_writer.hpp"
#include "placement/protocol_codec.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/incarnation.hpp"
#include "runtime/base/log.hpp"
#include "runtime/task/failure.hpp"
#include "runtime/task/pending.hpp"
#include "runtime/task/when_done.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

namespace troupe::placement {

using runtime::Channel;
using runtime::completer;
using runtime::PeerRole;
using runtime::Ref;
using runtime::Responder;

namespace {

using Payload = std::vector<std::byte>;

Payload bytes_of(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

/// An answer as it leaves the process.
result<Payload> encode_answer(const AnswerBody& body) {
  if (const auto* error = std::get_if<Error>(&body)) return fail(*error);
  if (const auto* outcomes = std::get_if<GroupOutcomes>(&body)) return encode_outcomes(*outcomes);
  if (const auto* view = std::get_if<GroupView>(&body)) return encode_view(*view);
  if (const auto* page = std::get_if<GroupPage>(&body)) return encode_page(*page);
  if (const auto* text = std::get_if<std::string>(&body)) return bytes_of(*text);
  return Payload{};
}

result<GroupKey> decode_key(std::span<const std::byte> payload) {
  TROUPE_TRY(std::vector<GroupKey> keys, decode_keys(payload));
  if (keys.size() != 1)
    return fail(ErrorCode::kInvalidArgument, "placement: {} groups named, wanted one", keys.size());
  return std::move(keys.front());
}

/// Takes the core no longer than a change of thread would, if nothing else is open there.
bool is_small(const CoreEvent& event) {
  constexpr std::size_t kFewBundles = 64;
  if (const auto* asked = std::get_if<CreateAsked>(&event))
    return asked->groups.size() == 1 && asked->groups.front().request.bundles.size() <= kFewBundles;
  if (const auto* asked = std::get_if<RemoveAsked>(&event)) return asked->groups.size() == 1;
  return std::holds_alternative<ReplyArrived>(event) ||
         std::holds_alternative<LedgerDurable>(event);
}

}  // namespace

class PlacementService::Impl : public std::enable_shared_from_this<PlacementService::Impl> {
 public:
  /// Who waits for an answer: a peer, or a thread of this process.
  using Waiter = std::variant<Responder, completer<AnswerBody>>;

  Impl(PlacementServiceOptions options, PlacementCore core);
  void start(LedgerFile file);
  void stop();

  void request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
               Deadline deadline, Responder responder);
  void down(Channel& channel, const Error& cause);
  template <class Asked>
  result<AnswerBody> ask(Asked asked, Deadline deadline);
  result<std::vector<NodeView>> nodes(Deadline deadline);
  std::optional<Error> failure() const;

 private:
  result<CoreEvent> decode(const Channel& channel, std::string_view method,
                           std::span<const std::byte> payload, Deadline deadline,
                           ConnectionId connection, RequestToken token) const;
  ConnectionId connection_of(Channel& channel);
  void push_always(CoreEvent event);
  void run();
  bool wait_for_work(std::vector<CoreEvent>& events,
                     std::vector<completer<std::vector<NodeView>>>& looks);
  bool may_drive_here() const;
  void drive_here();
  void let_go_locked();
  void carry_out(CoreEffects& effects);
  void send(const SendPass& sent);
  void tell(const TellOwner& told);
  void give(Answer& answer);
  Ref<Channel> channel_of(ConnectionId connection) const;
  void fail_with(const Error& error);
  static void refuse(std::unordered_map<RequestToken, Waiter>& waiters, const Error& error);

  PlacementServiceOptions options_;
  PlacementCore core_;  // of the thread that has set driving_, as rng_ and use of writer_
  Rng rng_;
  std::unique_ptr<LedgerWriter> writer_;
  std::thread thread_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool driving_ = false;
  bool quiet_ = false;                    // of core_, when it was let go
  std::optional<TimePoint> next_wake_;    // the same
  std::optional<TimePoint> waits_until_;  // the service's thread, at most; empty: for ever
  std::vector<CoreEvent> inbox_;
  std::vector<completer<std::vector<NodeView>>> looks_;
  std::unordered_map<RequestToken, Waiter> waiters_;
  std::unordered_map<const Channel*, ConnectionId> ids_;
  std::unordered_map<ConnectionId, Ref<Channel>> channels_;
  RequestToken last_token_ = 0;
  ConnectionId last_connection_ = 0;
  bool stopping_ = false;
  std::optional<Error> failure_;
};

PlacementService::Impl::Impl(PlacementServiceOptions options, PlacementCore core)
    : options_(std::move(options)),
      core_(std::move(core)),
      rng_(options_.seed != 0 ? options_.seed : new_incarnation()),
      next_wake_(core_.next_wake()) {}

void PlacementService::Impl::start(LedgerFile file) {
  // The writer is joined by `stop` before this object goes.
  writer_ = std::make_unique<LedgerWriter>(
      std::move(file),
      LedgerWriter::Callbacks{
          .durable = [this](std::uint64_t records) { push_always(LedgerDurable{records}); },
          .failed = [this](const Error& error) { fail_with(error); }});
  thread_ = std::thread([this] { run(); });
}

void PlacementService::Impl::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !driving_; });
  }
  writer_.reset();
  std::unordered_map<RequestToken, Waiter> open;
  {
    const std::lock_guard lock(mutex_);
    open.swap(waiters_);
    channels_.clear();
  }
  refuse(open, Error{.code = ErrorCode::kAborted,
                     .message = "placement: the head stops",
                     .origin = {},
                     .causes = {}});
}

// ---- what arrives --------------------------------------------------------------------------

result<CoreEvent> PlacementService::Impl::decode(const Channel& channel, std::string_view method,
                                                 std::span<const std::byte> payload,
                                                 Deadline deadline, ConnectionId connection,
                                                 RequestToken token) const {
  if (method == "placement.hello") {
    TROUPE_TRY(NodeHello hello, decode_hello(payload));
    const runtime::PeerName& peer = channel.peer();
    if (peer.role != PeerRole::kNode || peer.name != hello.spec.name)
      return fail(ErrorCode::kConflict, "placement: {} says that it is node {}", peer.to_string(),
                  hello.spec.name);
    return HelloArrived{.connection = connection, .token = token, .hello = std::move(hello)};
  }
  if (method == "placement.session") {
    TROUPE_TRY(OpenSession session, decode_session(payload));
    return SessionAsked{.connection = connection, .token = token, .session = std::move(session)};
  }
  if (method == "placement.create") {
    TROUPE_TRY(std::vector<CreateGroup> groups, decode_creates(payload));
    return CreateAsked{.connection = connection, .token = token, .groups = std::move(groups)};
  }
  if (method == "placement.remove") {
    TROUPE_TRY(std::vector<GroupKey> groups, decode_keys(payload));
    return RemoveAsked{.connection = connection, .token = token, .groups = std::move(groups)};
  }
  if (method == "placement.resize") {
    TROUPE_TRY(ResizeGroup resize, decode_resize(payload));
    return ResizeAsked{.connection = connection,
                       .token = token,
                       .resize = std::move(resize),
                       .deadline = deadline.at};
  }
  if (method == "placement.view") {
    TROUPE_TRY(GroupKey group, decode_key(payload));
    return ViewAsked{.token = token, .group = std::move(group)};
  }
  if (method == "placement.explain") {
    TROUPE_TRY(GroupKey group, decode_key(payload));
    return ExplainAsked{.token = token, .group = std::move(group)};
  }
  if (method == "placement.list") {
    TROUPE_TRY(ListGroups list, decode_list(payload));
    return ListAsked{.token = token, .list = list};
  }
  return fail(ErrorCode::kNotFound, "placement: no method '{}'", method);
}

/// Call with mutex_ held.
ConnectionId PlacementService::Impl::connection_of(Channel& channel) {
  const auto [found, added] = ids_.try_emplace(&channel, last_connection_ + 1);
  if (added) channels_.emplace(++last_connection_, Ref<Channel>(&channel));
  return found->second;
}

void PlacementService::Impl::request(Channel& channel, std::string_view method,
                                     std::span<const std::byte> payload, Deadline deadline,
                                     Responder responder) {
  ConnectionId connection = 0;
  RequestToken token = 0;
  {
    const std::lock_guard lock(mutex_);
    connection = connection_of(channel);
    token = ++last_token_;
  }
  result<CoreEvent> event = decode(channel, method, payload, deadline, connection, token);
  if (!event) return responder.reply(fail(std::move(event).error()));
  std::optional<Error> refusal;
  bool here = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      refusal = failure_;
    } else if (stopping_ || inbox_.size() >= options_.inbox_max) {
      refusal = Error{.code = ErrorCode::kResourceExhausted,
                      .message = fmt::format("placement: {} messages wait for the head, at most {}",
                                             inbox_.size(), options_.inbox_max),
                      .origin = {},
                      .causes = {}};
    } else {
      waiters_.emplace(token, std::move(responder));
      inbox_.push_back(std::move(*event));
      here = may_drive_here();
      driving_ = driving_ || here;
    }
  }
  if (refusal) return responder.reply(fail(std::move(*refusal)));
  if (here) return drive_here();
  changed_.notify_one();
}

void PlacementService::Impl::down(Channel& channel, const Error& cause) {
  Ref<Channel> gone;  // let go outside the lock
  {
    const std::lock_guard lock(mutex_);
    const auto found = ids_.find(&channel);
    if (found == ids_.end()) return;
    inbox_.push_back(
        ConnectionLost{.connection = found->second, .silent = runtime::peer_was_silent(cause)});
    const auto held = channels_.find(found->second);
    gone = std::move(held->second);
    channels_.erase(held);
    ids_.erase(found);
  }
  changed_.notify_one();
}

/// For what must not be lost; there is at most one a channel or flush, or a pass that was sent.
void PlacementService::Impl::push_always(CoreEvent event) {
  bool here = false;
  {
    const std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(event));
    if (driving_) return;  // who drives looks again
    here = may_drive_here();
    driving_ = here;
  }
  if (here) return drive_here();
  changed_.notify_one();
}

/// Puts the request into the inbox under a token of its own and waits for the answer.
template <class Asked>
result<AnswerBody> PlacementService::Impl::ask(Asked asked, Deadline deadline) {
  auto ends = runtime::make_pending<AnswerBody>();
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return fail(*failure_);
    asked.token = ++last_token_;
    waiters_.emplace(asked.token, std::move(ends.second));
    inbox_.push_back(std::move(asked));
  }
  changed_.notify_one();
  TROUPE_TRY(AnswerBody body, ends.first.wait(deadline));
  if (const auto* error = std::get_if<Error>(&body)) return fail(*error);
  return body;
}

result<std::vector<NodeView>> PlacementService::Impl::nodes(Deadline deadline) {
  auto ends = runtime::make_pending<std::vector<NodeView>>();
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return fail(*failure_);
    looks_.push_back(std::move(ends.second));
  }
  changed_.notify_one();
  return ends.first.wait(deadline);
}

std::optional<Error> PlacementService::Impl::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// ---- the driver ----------------------------------------------------------------------------

/// False when it is time to stop; else this thread drives.
bool PlacementService::Impl::wait_for_work(std::vector<CoreEvent>& events,
                                           std::vector<completer<std::vector<NodeView>>>& looks) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stopping_ || failure_) return false;
    const bool due = next_wake_ && steady_now() >= *next_wake_;
    if (!driving_ && (due || !inbox_.empty() || !looks_.empty())) break;
    waits_until_ = driving_ ? std::nullopt : next_wake_;
    if (waits_until_) {
      changed_.wait_until(lock, *waits_until_);
    } else {
      changed_.wait(lock);
    }
  }
  driving_ = true;
  events.clear();
  events.swap(inbox_);
  looks.swap(looks_);
  return true;
}

/// Whoever drove lets the next one do so. Call with mutex_ held.
void PlacementService::Impl::let_go_locked() {
  quiet_ = core_.is_quiet();
  next_wake_ = core_.next_wake();
  driving_ = false;
}

void PlacementService::Impl::run() {
  std::vector<CoreEvent> events;
  std::vector<completer<std::vector<NodeView>>> looks;
  try {
    while (wait_for_work(events, looks)) {
      for (const auto& look : std::exchange(looks, {})) look.complete(core_.nodes());
      CoreEffects effects = core_.step(events, steady_now(), rng_);
      carry_out(effects);
      const std::lock_guard lock(mutex_);
      let_go_locked();
    }
  } catch (...) {
    fail_with(runtime::error_of_current_exception());
    const std::lock_guard lock(mutex_);
    driving_ = false;
  }
}

/// Whether the thread that has put the one event into the inbox shall handle it. Call with mutex_
/// held.
bool PlacementService::Impl::may_drive_here() const {
  return !driving_ && quiet_ && !stopping_ && !failure_ && looks_.empty() && inbox_.size() == 1 &&
         is_small(inbox_.front());
}

/// Drives on the thread of a caller, which has set driving_, as long as little comes.
void PlacementService::Impl::drive_here() {
  std::vector<CoreEvent> events;
  try {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (!events.empty()) let_go_locked();
        if (!events.empty() && !may_drive_here()) break;
        driving_ = true;
        events = std::exchange(inbox_, {});
      }
      CoreEffects effects = core_.step(events, steady_now(), rng_);
      carry_out(effects);
    }
  } catch (...) {
    fail_with(runtime::error_of_current_exception());
    const std::lock_guard lock(mutex_);
    driving_ = false;
  }
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    const bool sooner = next_wake_ && (!waits_until_ || *next_wake_ < *waits_until_);
    wake = stopping_ || failure_ || sooner || !inbox_.empty() || !looks_.empty();
  }
  // `stop` waits for driving_, too.
  if (wake) changed_.notify_all();
}

void PlacementService::Impl::carry_out(CoreEffects& effects) {
  for (const std::string& line : effects.notices) log::info("placement: {}", line);
  for (const SendPass& sent : effects.passes) send(sent);
  for (Answer& answer : effects.answers) give(answer);
  for (const TellOwner& told : effects.changes) tell(told);
  // Last: it may take a flush, and nothing above waits for it.
  if (effects.snapshot) {
    writer_->replace(std::move(*effects.snapshot), effects.last_record);
  } else if (!effects.records.empty()) {
    writer_->append(std::move(effects.records), effects.last_record);
  }
}

Ref<Channel> PlacementService::Impl::channel_of(ConnectionId connection) const {
  const std::lock_guard lock(mutex_);
  const auto found = channels_.find(connection);
  return found == channels_.end() ? nullptr : found->second;
}

void PlacementService::Impl::send(const SendPass& sent) {
  const Ref<Channel> channel = channel_of(sent.connection);
  if (!channel) return;  // the core learns of it with the next batch
  runtime::when_done<Payload>(
      channel->request("reserve.pass", encode_pass(sent.pass),
                       Deadline::in(2 * options_.core.reply_within)),
      [weak = weak_from_this(), channel, id = sent.connection, session = sent.pass.session,
       number = sent.pass.number](const result<Payload>& bytes) {
        const auto self = weak.lock();
        if (!self || channel->failure()) return;
        result<NodeReply> reply = bytes ? decode_reply(*bytes) : fail(bytes.error());
        if (reply) {
          self->push_always(ReplyArrived{.connection = id, .reply = std::move(*reply)});
          return;
        }
        // Late or stale passes are said again and one that fits no frame is given up; a full queue
        // or a peer that talks nonsense is not going to get better on this channel.
        const ErrorCode code = reply.error().code;
        log::warn("placement: {}: {}", channel->peer().to_string(), reply.error().to_string());
        if (code == ErrorCode::kInvalidArgument) {
          self->push_always(PassFailed{
              .connection = id, .session = session, .number = number, .error = reply.error()});
        } else if (code != ErrorCode::kDeadline && code != ErrorCode::kConflict) {
          channel->close(std::move(reply).error());
        }
      });
}

void PlacementService::Impl::tell(const TellOwner& told) {
  const Ref<Channel> channel = channel_of(told.connection);
  if (!channel) return;
  // A message must fit one frame; the largest group alone does.
  std::span<const GroupChange> rest(told.changes);
  while (!rest.empty()) {
    std::size_t count = 0;
    std::size_t placements = 0;
    while (count < rest.size() && count < kRequestsPerMessageMax) {
      placements += rest[count].placements.size() + rest[count].bundles.size() / 16;
      if (count > 0 && placements > kGroupBundlesMax / 2) break;
      ++count;
    }
    const result<void> sent =
        channel->notify("placement.changes", encode_changes(rest.first(count)));
    if (!sent) {
      // An owner that misses a change would believe in what is not so: it must come back and ask.
      channel->close(sent.error());
      return;
    }
    rest = rest.subspan(count);
  }
}

void PlacementService::Impl::give(Answer& answer) {
  Waiter waiter;
  {
    const std::lock_guard lock(mutex_);
    const auto found = waiters_.find(answer.token);
    if (found == waiters_.end()) return;
    waiter = std::move(found->second);
    waiters_.erase(found);
  }
  if (auto* const responder = std::get_if<Responder>(&waiter)) {
    responder->reply(encode_answer(answer.body));
  } else {
    std::get<completer<AnswerBody>>(waiter).complete(std::move(answer.body));
  }
}

void PlacementService::Impl::refuse(std::unordered_map<RequestToken, Waiter>& waiters,
                                    const Error& error) {
  for (auto& [token, waiter] : waiters) {
    if (auto* const responder = std::get_if<Responder>(&waiter)) responder->reply(fail(error));
    if (auto* const local = std::get_if<completer<AnswerBody>>(&waiter)) local->fail(error);
  }
}

void PlacementService::Impl::fail_with(const Error& error) {
  std::unordered_map<RequestToken, Waiter> open;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
    open.swap(waiters_);
  }
  changed_.notify_all();
  log::error("placement: the head serves no more: {}", error.to_string());
  refuse(open, error);
  if (options_.on_failure) options_.on_failure(error);
}

// ---- the face ------------------------------------------------------------------------------

PlacementService::PlacementService(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
PlacementService::~PlacementService() { impl_->stop(); }

result<std::shared_ptr<PlacementService>> PlacementService::open(PlacementServiceOptions options) {
  TROUPE_TRY(LedgerFile::Opened opened, LedgerFile::open(options.ledger));
  if (opened.warning) log::warn("placement: {}", *opened.warning);
  const std::vector<std::span<const std::byte>> payloads(opened.payloads.begin(),
                                                         opened.payloads.end());
  result<LedgerState> state = replay(payloads);
  if (!state) {
    Error error = std::move(state).error();
    error.message = fmt::format("{}: {}", options.ledger.string(), error.message);
    return fail(std::move(error));
  }
  PlacementCore core(options.core, *state, steady_now());
  // The new term is durable before anything is sent under it; the file is compacted on the way.
  TROUPE_TRY_VOID(state->apply(core.start_record()));
  TROUPE_TRY(const auto frames, encode_frames(state->snapshot()));
  TROUPE_TRY_VOID(opened.file.replace(frames));
  log::info("placement: term {}, {} groups in {}", core.term(), state->groups.size(),
            options.ledger.string());
  auto impl = std::make_shared<Impl>(std::move(options), std::move(core));
  impl->start(std::move(opened.file));
  return std::shared_ptr<PlacementService>(new PlacementService(std::move(impl)));
}

void PlacementService::on_request(Channel& channel, std::string_view method,
                                  std::span<const std::byte> payload, Deadline deadline,
                                  Responder responder) {
  impl_->request(channel, method, payload, deadline, std::move(responder));
}

void PlacementService::on_down(Channel& channel, const Error& cause) {
  impl_->down(channel, cause);
}

result<GroupPage> PlacementService::list(const ListGroups& list, Deadline deadline) {
  TROUPE_TRY(AnswerBody body, impl_->ask(ListAsked{.list = list}, deadline));
  return std::get<GroupPage>(std::move(body));
}

result<std::string> PlacementService::explain(const GroupKey& group, Deadline deadline) {
  TROUPE_TRY(AnswerBody body, impl_->ask(ExplainAsked{.group = group}, deadline));
  return std::get<std::string>(std::move(body));
}

result<GroupView> PlacementService::view(const GroupKey& group, Deadline deadline) {
  TROUPE_TRY(AnswerBody body, impl_->ask(ViewAsked{.group = group}, deadline));
  return std::get<GroupView>(std::move(body));
}

result<void> PlacementService::remove(const GroupKey& group, Deadline deadline) {
  TROUPE_TRY(AnswerBody body, impl_->ask(RemoveAsked{.groups = {group}}, deadline));
  result<GroupId>& outcome = std::get<GroupOutcomes>(body).front();
  if (!outcome) return fail(std::move(outcome).error());
  return {};
}

result<std::vector<NodeView>> PlacementService::nodes(Deadline deadline) {
  return impl_->nodes(deadline);
}

std::optional<Error> PlacementService::failure() const { return impl_->failure(); }

}  // namespace troupe::placement
