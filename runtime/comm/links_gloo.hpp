#pragma once

// The connections between the ranks of one group, over Gloo: small frames at any time, big payload
// in transfers that both ends have agreed on, and notice of peers that are gone. Two connections
// between any two ranks: frames have one of their own, so that closing those of payload, the only
// end to a transfer half through, takes no word from anybody and passes for nobody's death.
//
// Ownership: owns connections and threads. The listener outlives `stop`.
// **Threads:** every method from any thread. The listener is called on two of the links' threads:
// `on_frame` on one, `on_closed` on the other.
// **Invariants:** frames of one sender arrive in order, each once. A peer is reported closed, its
// process gone or done with these links, at most once, and `on_frame` has been called for what
// it sent in good order before.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/comm/rendezvous_store.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

/// One stretch of bytes to or from a peer. `slot` names it at both ends; sizes agree.
struct TransferPart {
  int peer = 0;
  std::uint64_t slot = 0;
  bool outgoing = false;
  void* data = nullptr;  ///< read only when outgoing
  std::size_t bytes = 0;
};

/// How a transfer ended, and because of whom.
struct TransferEnd {
  enum class Kind : std::uint8_t { kDone, kStopped, kLate, kLost };
  Kind kind = Kind::kDone;
  int peer = 0;
  std::string why = {};
};

/// Parts under way. Posted when made; memory stays untouched by others once it is destroyed.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Blocks until every part is through, one is lost, `stop`, or `limit`. Call once.
  virtual TransferEnd wait(Deadline limit) = 0;
  /// Ends `wait`, now or when it is called; from any thread.
  virtual void stop() = 0;
};

class GlooLinks {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_frame(int peer, std::span<const std::byte> frame) = 0;
    virtual void on_closed(int peer, const std::string& why) = 0;
  };
  struct Options {
    std::string name;
    int rank = 0;
    int size = 2;
    std::string host;
    std::string prefix;  ///< of the keys by which these ranks find each other; used once
    Duration connect_wait = {};
  };

  /// Connects to all peers, which must do the same.
  static result<std::unique_ptr<GlooLinks>> connect(const Options& options, RendezvousStore& store);
  /// Closes in good order: what was sent and flushed still arrives.
  virtual ~GlooLinks() = default;

  virtual void start(Listener& listener) = 0;
  /// Ends the links' threads; after it the listener is not called.
  virtual void stop() = 0;
  /// Copies nothing later: `frame` is kept until the peer has it. False when the peer is gone.
  virtual bool send(int peer, std::vector<std::byte> frame) = 0;
  /// Frames had from `peer`; it lets go of what it sent when told by `acknowledge` there.
  virtual std::uint64_t received(int peer) const = 0;
  virtual void acknowledge(int peer, std::uint64_t frames) = 0;
  /// Waits until peers have taken every frame.
  virtual void flush(Deadline deadline) = 0;
  /// Null when a connection that it needs is closed; `lost` then says to whom.
  virtual std::shared_ptr<Transfer> start_transfer(std::vector<TransferPart> parts,
                                                   TransferEnd& lost) = 0;
  /// Closes the connections of payload at once, at both ends; those of frames stay.
  virtual void break_off() = 0;
};

}  // namespace troupe::runtime
