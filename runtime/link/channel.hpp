#pragma once

// `Channel`: a two-way line to one named, authenticated peer; requests, replies and notices.
//
// Either side may ask the other. A channel is made by `LinkHub` (sockets), or by
// `make_channel_pair` (in one process, for tests); users hold `Ref<Channel>` and give each channel
// one `ChannelService` that answers what the peer asks. Dropping every Ref does not close it.
// **Threads:** every method of Channel and Responder from any thread. Callbacks of a service run on
// the link's I/O thread, one at a time per channel, and must not block.
// **Invariants:** what one side sends arrives in order and at most once. Every request ends in
// exactly one of: reply, the peer's error, its deadline, the cause for which the channel went down.
// `on_down` comes exactly once and is the last callback. Queues are bounded: what does not fit is
// refused with kResourceExhausted and nothing is dropped silently.

#include "runtime/base/clock.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/result.hpp"
#include "runtime/task/pending.hpp"
#include "runtime/task/ref.hpp"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::runtime {

enum class PeerRole : std::uint8_t { kHead, kNode, kController, kRank, kClient };

/// `head`, `node`, `controller`, `rank`, `client`.
std::string_view peer_role_name(PeerRole role);

/// Who a process is, e.g. {kNode, "gpu-1"} or {kRank, "job7/policy/3"}.
struct PeerName {
  PeerRole role = PeerRole::kClient;
  std::string name;
  auto operator<=>(const PeerName&) const = default;
  /// `node gpu-1`
  std::string to_string() const;
};

/// Where replies go: the channel that the request came by.
class ReplySink : public RefCounted {
 protected:
  friend class Responder;
  virtual void reply(std::uint64_t call, result<std::vector<std::byte>> outcome) = 0;
  /// The responder of `call` went away unused.
  virtual void dropped(std::uint64_t call) noexcept = 0;
};

/// The duty to answer one request. Moved to whoever answers; may outlive the channel, and then the
/// answer goes nowhere.
class [[nodiscard]] Responder {
 public:
  Responder() = default;
  Responder(Ref<ReplySink> sink, std::uint64_t call) : sink_(std::move(sink)), call_(call) {}
  Responder(Responder&& other) noexcept
      : sink_(std::exchange(other.sink_, nullptr)), call_(other.call_) {}
  Responder& operator=(Responder&& other) noexcept;
  /// Dropped without an answer: the caller gets kInternal.
  ~Responder();

  /// Answers; the first answer counts and later ones do nothing.
  void reply(result<std::vector<std::byte>> outcome);
  /// False once it has answered, or was moved from.
  bool open() const { return static_cast<bool>(sink_); }

 private:
  Ref<ReplySink> sink_;
  std::uint64_t call_ = 0;
};

class Channel;

/// What a process does for the peers of its channels. One service may serve many channels; which
/// one it was is told by reference, and `Ref<Channel>(&channel)` keeps it.
/// An exception that leaves `on_request` becomes a kInternal reply.
class ChannelService {
 public:
  virtual ~ChannelService() = default;
  /// `payload` is valid during the call only; `deadline` is the caller's, by this clock.
  virtual void on_request(Channel& channel, std::string_view method,
                          std::span<const std::byte> payload, Deadline deadline,
                          Responder responder) = 0;
  virtual void on_notify(Channel& /*channel*/, std::string_view /*method*/,
                         std::span<const std::byte> /*payload*/) {}
  /// Exactly once, the last callback of this channel. `cause` names the peer and why.
  virtual void on_down(Channel& /*channel*/, const Error& /*cause*/) {}
};

class Channel : public ReplySink {
 public:
  virtual const PeerName& peer() const = 0;
  /// Of the peer, for messages: `127.0.0.1:4711`, or `local`.
  virtual std::string address() const = 0;
  /// Asks the peer. kInvalidArgument when method and payload do not fit a frame,
  /// kResourceExhausted when the queue or the table of open requests is full; these are ready at
  /// once. Cancelling the pending frees its slot; the peer may still do the work.
  virtual pending<std::vector<std::byte>> request(std::string_view method,
                                                  std::vector<std::byte> payload,
                                                  Deadline deadline) = 0;
  /// Tells the peer something; no answer. An error means that it was not sent.
  virtual result<void> notify(std::string_view method, std::vector<std::byte> payload) = 0;
  /// Takes the channel down with `cause`, which also reaches the peer when the line still works.
  /// What was queued before is sent first. Does nothing when it is down.
  virtual void close(Error cause) = 0;
  /// Why it is down; empty while it is up.
  virtual std::optional<Error> failure() const = 0;
  /// Bytes accepted and not yet given to the operating system.
  virtual std::size_t bytes_queued() const = 0;
};

/// Whether a channel went down because nothing was heard for `dead_after`, rather than because it
/// was closed: then the peer has been gone for that long already.
inline bool peer_was_silent(const Error& down_cause) {
  return down_cause.root_cause().code == ErrorCode::kDeadline;
}

}  // namespace troupe::runtime
