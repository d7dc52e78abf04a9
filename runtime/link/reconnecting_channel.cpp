#include "runtime/link/reconnecting_channel.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace troupe::runtime {
namespace {

/// The service of the user, with an ear for `on_down`.
class Watched final : public ChannelService {
 public:
  Watched(std::shared_ptr<ChannelService> service, std::function<void(const Error&)> down)
      : service_(std::move(service)), down_(std::move(down)) {}
  void on_request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
                  Deadline deadline, Responder responder) override {
    if (service_ != nullptr) {
      service_->on_request(channel, method, payload, deadline, std::move(responder));
    } else {
      responder.reply(fail(ErrorCode::kNotFound, "request '{}': nothing is served here", method));
    }
  }
  void on_notify(Channel& channel, std::string_view method,
                 std::span<const std::byte> payload) override {
    if (service_ != nullptr) service_->on_notify(channel, method, payload);
  }
  void on_down(Channel& channel, const Error& cause) override {
    if (service_ != nullptr) service_->on_down(channel, cause);
    down_(cause);
  }

 private:
  const std::shared_ptr<ChannelService> service_;
  const std::function<void(const Error&)> down_;
};

}  // namespace

/// Shared with the service of the channel at hand, which may fall after the owner is gone.
struct ReconnectingChannel::State {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  Ref<PendingState<Ref<Channel>>> dialling;
  Ref<Channel> channel;
  std::uint64_t round = 0;  // of the channel at hand
  std::optional<std::pair<std::uint64_t, Error>> down;
  std::optional<Error> last_reason;
  bool stopped = false;
};

ReconnectingChannel::ReconnectingChannel(LinkHub& hub, ReconnectOptions options)
    : hub_(hub), options_(std::move(options)), state_(std::make_shared<State>()) {
  thread_ = std::thread([this] { run(); });
}

ReconnectingChannel::~ReconnectingChannel() {
  TROUPE_CHECK(std::this_thread::get_id() != thread_.get_id(),
               "reconnecting channel {}: destroyed by its own callback", options_.address);
  stop();
}

void ReconnectingChannel::stop() {
  Ref<PendingState<Ref<Channel>>> dialling;
  Ref<Channel> channel;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    dialling = state_->dialling;
    channel = std::exchange(state_->channel, nullptr);
  }
  state_->changed.notify_all();
  const Error reason = cancelled("the reconnecting channel is stopped");
  if (dialling) dialling->cancel(reason);
  if (channel) channel->close(reason);
  if (std::this_thread::get_id() != thread_.get_id() && thread_.joinable()) thread_.join();
}

Ref<Channel> ReconnectingChannel::current() const {
  const std::lock_guard lock(state_->mutex);
  return state_->channel;
}

result<Ref<Channel>> ReconnectingChannel::wait_up(Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  const auto over = [this] { return state_->channel || state_->stopped; };
  (void)state_->changed.wait_until(lock, deadline.at, over);
  if (state_->channel) return state_->channel;
  Error error{.code = state_->stopped ? ErrorCode::kCancelled : ErrorCode::kDeadline,
              .message = fmt::format("{}: {}", options_.address,
                                     state_->stopped ? "stopped" : "not connected by the deadline"),
              .origin = {},
              .causes = {}};
  if (state_->last_reason) error.causes.push_back(*state_->last_reason);
  return fail(std::move(error));
}

/// Calls a function of the user, unless stopped.
template <class Call>
void ReconnectingChannel::call_back(const char* what, const Call& call) const {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopped) return;
  }
  try {
    call();
  } catch (const std::exception& error) {
    log::error("reconnecting channel {}: {} threw: {}", options_.address, what, error.what());
  }
}

result<Ref<Channel>> ReconnectingChannel::dial(std::uint64_t round) {
  const auto service =
      std::make_shared<Watched>(options_.service, [state = state_, round](const Error& cause) {
        {
          const std::lock_guard lock(state->mutex);
          state->down.emplace(round, cause);
        }
        state->changed.notify_all();
      });
  const Deadline deadline = Deadline::in(options_.attempt_within);
  auto dialled = hub_.connect(options_.address, service, deadline, options_.peer);
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopped) dialled.cancel();
    state_->dialling = dialled.shared();
  }
  auto channel = dialled.wait(Deadline{deadline.at + std::chrono::seconds(1)});
  const std::lock_guard lock(state_->mutex);
  state_->dialling = nullptr;
  if (!channel) {
    state_->last_reason = channel.error();
    return channel;
  }
  if (state_->stopped) {
    (*channel)->close(cancelled("the reconnecting channel is stopped"));
    return channel;
  }
  state_->round = round;
  state_->channel = *channel;
  return channel;
}

/// Until the channel of `round` is down, or all is stopped.
std::optional<Error> ReconnectingChannel::wait_down(std::uint64_t round) {
  std::unique_lock lock(state_->mutex);
  const auto down = [this, round] { return state_->down && state_->down->first == round; };
  // Bounded by the channel's own liveness; looked at again each second all the same.
  while (!state_->stopped && !down()) state_->changed.wait_for(lock, std::chrono::seconds(1));
  if (state_->stopped) return std::nullopt;
  state_->channel = nullptr;
  state_->last_reason = state_->down->second;
  return state_->down->second;
}

void ReconnectingChannel::run() {
  Duration backoff = options_.backoff_first;
  for (std::uint64_t round = 1;; ++round) {
    const auto channel = dial(round);
    if (channel) {
      backoff = options_.backoff_first;
      state_->changed.notify_all();
      call_back("on_up", [&] {
        if (options_.on_up) options_.on_up(*channel);
      });
      if (const auto cause = wait_down(round)) {
        call_back("on_down", [&] {
          if (options_.on_down) options_.on_down(*cause);
        });
      }
    } else {
      call_back("on_refused", [&] {
        if (options_.on_refused) options_.on_refused(channel.error());
      });
    }
    std::unique_lock lock(state_->mutex);
    if (state_->changed.wait_for(lock, backoff, [this] { return state_->stopped; })) return;
    if (channel) continue;
    backoff = std::min(options_.backoff_max,
                       std::chrono::duration_cast<Duration>(backoff * options_.backoff_factor));
  }
}

}  // namespace troupe::runtime
