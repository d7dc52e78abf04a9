#include "runtime/link/endpoint.hpp"

#include "runtime/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>

namespace troupe::runtime {
namespace {

/// The request whose handler runs on this thread, so that an exception can be its answer.
struct Handling {
  const Endpoint* endpoint = nullptr;
  std::uint64_t call = 0;
  bool dropped = false;
};
thread_local Handling* handling_here = nullptr;

/// What a frame holds besides method and payload, rounded up: 23 words of envelope.
constexpr std::size_t kEnvelopeBytes = 256;

std::span<const std::byte> bytes_of(const Envelope& envelope) {
  if (const auto* inside = std::get_if<std::vector<std::byte>>(&envelope.payload.place))
    return *inside;
  return {};
}

/// Runs a callback of the service. An exception that leaves it is returned as text.
template <class Call>
std::optional<std::string> guarded(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
  return std::nullopt;
}

/// An error that fits a frame whatever its message was.
Error shortened(const Error& error) {
  constexpr std::size_t kMessageBytes = 4096;
  return Error{.code = error.code,
               .message = error.to_string().substr(0, kMessageBytes),
               .origin = {},
               .causes = {}};
}

}  // namespace

Endpoint::Endpoint(PeerName peer, std::string address, const EndpointLimits& limits,
                   Ref<ChannelTransport> transport)
    : peer_(std::move(peer)),
      address_(std::move(address)),
      limits_(limits),
      transport_(std::move(transport)) {}

std::string Endpoint::place() const { return fmt::format("{} ({})", peer_.to_string(), address_); }

result<std::vector<std::byte>> Endpoint::encode(const Envelope& envelope) const {
  const std::size_t payload = envelope.payload.bytes;
  const std::size_t bytes = kEnvelopeBytes + envelope.method.size() + payload;
  if (bytes > limits_.frame_bytes_max)
    return fail(ErrorCode::kInvalidArgument,
                "{}: method of {} bytes and payload of {} bytes need {} with their envelope, "
                "wanted at most {}",
                place(), envelope.method.size(), payload, bytes, limits_.frame_bytes_max);
  return encode_envelope(envelope);
}

pending<std::vector<std::byte>> Endpoint::request(std::string_view method,
                                                  std::vector<std::byte> payload,
                                                  Deadline deadline) {
  using Outcome = pending<std::vector<std::byte>>;
  const TimePoint now = steady_now();
  if (deadline.at <= now)
    return Outcome::of(fail(ErrorCode::kDeadline,
                            "{}: request '{}' not sent, its deadline has passed", place(), method));
  auto [answer, out] = make_pending<std::vector<std::byte>>();
  auto call = enter(out, method, deadline);
  if (!call) return Outcome::of(fail(std::move(call).error()));
  Envelope envelope;
  envelope.kind = MessageKind::kCall;
  envelope.call = CallId{*call};
  envelope.method = method;
  envelope.set_deadline(deadline, now);
  envelope.payload = payload_in_frame(std::move(payload));
  auto frame = encode(envelope);
  result<void> sent;
  if (!frame) {
    sent = fail(std::move(frame).error());
  } else {
    // Set before sending, so that no answer can come before the hook is there to be dropped.
    out.on_cancel([self = Ref<Endpoint>(this), id = *call](const Error&) { (void)self->take(id); });
    sent = transport_->send(std::move(*frame), false);
  }
  if (!sent) {
    // Unless `down` was faster: then it has the cause already.
    if (take(*call)) out.fail(std::move(sent).error());
  }
  return std::move(answer);
}

result<std::uint64_t> Endpoint::enter(const completer<std::vector<std::byte>>& out,
                                      std::string_view method, Deadline deadline) {
  std::uint64_t call = 0;
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return fail(*failure_);
    if (open_.size() >= limits_.requests_max)
      return fail(ErrorCode::kResourceExhausted,
                  "{}: request '{}' refused: {} requests are unanswered, at most {}", place(),
                  method, open_.size(), limits_.requests_max);
    call = ++last_call_;
    open_.emplace(call, Open{out, std::string(method)});
    push_due_locked({deadline.at, call});
    if (!woken_at_ || deadline.at < *woken_at_) {
      woken_at_ = deadline.at;
      wake = true;
    }
  }
  if (wake) transport_->wake_at(deadline.at);
  return call;
}

void Endpoint::push_due_locked(Due due) {
  // Entries of requests that ended stay in the heap until they are most of it.
  constexpr std::size_t kSlack = 64;
  if (due_.size() >= 2 * open_.size() + kSlack) {
    std::erase_if(due_, [this](const Due& one) { return !open_.contains(one.second); });
    std::make_heap(due_.begin(), due_.end(), std::greater<>());
  }
  due_.push_back(due);
  std::push_heap(due_.begin(), due_.end(), std::greater<>());
}

std::optional<Endpoint::Open> Endpoint::take(std::uint64_t call) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(call);
  if (found == open_.end()) return std::nullopt;
  std::optional<Open> taken(std::move(found->second));
  open_.erase(found);
  return taken;
}

void Endpoint::expire(TimePoint now) {
  std::vector<Open> late;
  std::optional<TimePoint> next;
  {
    const std::lock_guard lock(mutex_);
    woken_at_.reset();
    while (!due_.empty()) {
      const auto [at, call] = due_.front();
      const auto found = open_.find(call);
      if (found != open_.end() && at > now) {
        next = at;
        woken_at_ = at;
        break;
      }
      std::pop_heap(due_.begin(), due_.end(), std::greater<>());
      due_.pop_back();
      if (found == open_.end()) continue;
      late.push_back(std::move(found->second));
      open_.erase(found);
    }
  }
  for (const Open& one : late) {
    one.out.fail(
        Error{.code = ErrorCode::kDeadline,
              .message = fmt::format("{}: no answer to '{}' by its deadline", place(), one.method),
              .origin = {},
              .causes = {}});
  }
  if (next) transport_->wake_at(*next);
}

result<void> Endpoint::notify(std::string_view method, std::vector<std::byte> payload) {
  if (const auto failed = failure()) return fail(*failed);
  Envelope envelope;
  envelope.kind = MessageKind::kCall;
  envelope.method = method;
  envelope.payload = payload_in_frame(std::move(payload));
  TROUPE_TRY(auto frame, encode(envelope));
  return transport_->send(std::move(frame), false);
}

void Endpoint::close(Error cause) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = cause;
  }
  transport_->close(cause);
}

std::optional<Error> Endpoint::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Endpoint::down(Error cause) {
  std::unordered_map<std::uint64_t, Open> open;
  {
    const std::lock_guard lock(mutex_);
    if (down_) return;
    down_ = true;
    if (!failure_) failure_ = std::move(cause);
    open.swap(open_);
    due_.clear();
  }
  transport_->stop();
  const Error& why = *failure_;  // written once, before down_
  for (const auto& entry : open) entry.second.out.fail(why);
  open.clear();
  const std::shared_ptr<ChannelService> service = std::move(service_);
  if (service == nullptr) return;
  if (const auto thrown = guarded([&] { service->on_down(*this, why); }))
    log::error("{}: on_down threw: {}", place(), *thrown);
}

result<void> Endpoint::received(std::span<const std::byte> frame) {
  // The frame's own MAC or checksum was checked by the reader.
  TROUPE_TRY(Envelope envelope, decode_envelope(frame, false));
  const auto payload = bytes_of(envelope);
  switch (envelope.kind) {
    case MessageKind::kHeartbeat:
      return {};
    case MessageKind::kCall:
      if (envelope.call.value != 0) {
        serve_request(envelope, payload);
      } else if (service_ != nullptr) {
        const auto thrown = guarded([&] { service_->on_notify(*this, envelope.method, payload); });
        if (thrown) log::error("{}: notice '{}' threw: {}", place(), envelope.method, *thrown);
      }
      return {};
    case MessageKind::kResult:
      if (const auto open = take(envelope.call.value)) {
        auto* bytes = std::get_if<std::vector<std::byte>>(&envelope.payload.place);
        open->out.complete(bytes == nullptr ? std::vector<std::byte>() : std::move(*bytes));
      }
      return {};
    case MessageKind::kError:
      if (const auto open = take(envelope.call.value)) open->out.fail(std::move(*envelope.error));
      return {};
    case MessageKind::kAbort:
      return fail(std::move(*envelope.error).wrap(ErrorCode::kRankDead, "closed the channel"));
  }
  return fail(ErrorCode::kCorrupt, "envelope of kind {}", int(envelope.kind));
}

void Endpoint::serve_request(const Envelope& envelope, std::span<const std::byte> payload) {
  const std::uint64_t call = envelope.call.value;
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    if (down_) return;
    full = serving_ >= limits_.requests_max;
    if (!full) ++serving_;
  }
  if (full) {
    send_reply(call, fail(ErrorCode::kResourceExhausted,
                          "request '{}' refused: {} requests are in service, at most {}",
                          envelope.method, limits_.requests_max, limits_.requests_max));
    return;
  }
  Handling here{this, call, false};
  Handling* const outer = std::exchange(handling_here, &here);
  Responder responder(Ref<ReplySink>(this), call);
  const auto thrown = guarded([&] {
    if (service_ == nullptr) {
      responder.reply(
          fail(ErrorCode::kNotFound, "request '{}': nothing is served here", envelope.method));
      return;
    }
    service_->on_request(*this, envelope.method, payload, envelope.deadline(steady_now()),
                         std::move(responder));
  });
  handling_here = outer;
  if (thrown) log::error("{}: request '{}' threw: {}", place(), envelope.method, *thrown);
  if (!here.dropped) return;
  reply(call, thrown
                  ? fail(ErrorCode::kInternal, "request '{}' threw: {}", envelope.method, *thrown)
                  : fail(ErrorCode::kInternal, "request '{}' was dropped without an answer",
                         envelope.method));
}

void Endpoint::dropped(std::uint64_t call) noexcept {
  if (handling_here != nullptr && handling_here->endpoint == this && handling_here->call == call) {
    handling_here->dropped = true;  // answered when the handler has returned or thrown
    return;
  }
  (void)guarded([&] {
    reply(call, fail(ErrorCode::kInternal, "the request was dropped without an answer"));
  });
}

void Endpoint::reply(std::uint64_t call, result<std::vector<std::byte>> outcome) {
  {
    const std::lock_guard lock(mutex_);
    --serving_;
    if (failure_) return;
  }
  send_reply(call, std::move(outcome));
}

void Endpoint::send_reply(std::uint64_t call, result<std::vector<std::byte>> outcome) {
  Envelope envelope;
  envelope.call = CallId{call};
  envelope.kind = outcome ? MessageKind::kResult : MessageKind::kError;
  if (outcome) {
    envelope.payload = payload_in_frame(std::move(*outcome));
  } else {
    envelope.error = std::move(outcome).error();
  }
  auto frame = encode(envelope);
  const auto sent = frame ? transport_->send(std::move(*frame), false)
                          : result<void>(fail(std::move(frame).error()));
  if (sent || failure()) return;
  // Neither too large nor a full queue may leave the caller without an answer.
  envelope.kind = MessageKind::kError;
  envelope.error = shortened(envelope.error && frame ? *envelope.error : sent.error());
  envelope.payload = {};
  if (auto small = encode_envelope(envelope)) (void)transport_->send(std::move(*small), true);
}

}  // namespace troupe::runtime
