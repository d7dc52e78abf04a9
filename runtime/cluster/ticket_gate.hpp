#pragma once

// `TicketGate`: the controller's side of a lane that an agent keeps.
//
// Gives the numbers 1, 2, 3 … to calls in the order of submission; the number travels to the rank
// (`Turn::ticket`), which waits for its turn at its agent. A turn that is destroyed tells the agent
// that the ticket will not be used any more; for one that was used and released this is no news.
// Ownership: one gate per (job, node, device), shared by the groups on it; outlives them.
// **Threads:** any; `reserve` under the actor system's lane order, as for every gate.
// **Invariants:** every number that was given is skipped once its turn is gone, in spite of lost
// connections: skips are kept until the agent has confirmed them.

#include "runtime/group/actor_system.hpp"
#include "runtime/group/lane_gate.hpp"
#include "runtime/group/lane_ticket.hpp"
#include "runtime/link/channel.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace troupe::runtime {

/// Collects the tickets of one agent that are over and tells it, one request in flight at a time.
class TicketOutbox {
 public:
  struct Options {
    /// The connection to the agent as it is now; null while there is none.
    std::function<Ref<Channel>()> channel;
    std::size_t tickets_max = std::size_t{1} << 20;  ///< unconfirmed; beyond, new calls are refused
    Duration answer_within = std::chrono::seconds(10);
    Duration again_after = std::chrono::milliseconds(100);  ///< when it could not be told
  };
  TicketOutbox(ActorSystem& system, Options options);
  ~TicketOutbox();
  TicketOutbox(const TicketOutbox&) = delete;
  TicketOutbox& operator=(const TicketOutbox&) = delete;

  void skip(LaneTicket ticket);
  bool full() const;
  std::size_t unconfirmed() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

class TicketGate final : public LaneGate {
 public:
  TicketGate(std::string lane, std::shared_ptr<TicketOutbox> outbox)
      : lane_(std::move(lane)), outbox_(std::move(outbox)) {}
  /// Never blocks. kResourceExhausted while the agent has not confirmed very many tickets.
  /// The turn's `wait` is kUnsupported: the rank waits, at its agent.
  result<std::unique_ptr<Turn>> reserve(const LaneRequest& request) override;
  const std::string& lane() const { return lane_; }

 private:
  class Place;
  const std::string lane_;
  const std::shared_ptr<TicketOutbox> outbox_;

  /// Numbers and which of them still have a place; shared with the places.
  struct Numbers {
    std::mutex mutex;  // guards the rest
    std::uint64_t last = 0;
    std::set<std::uint64_t> alive;
    std::uint64_t floor_locked() const { return alive.empty() ? last + 1 : *alive.begin(); }
  };
  const std::shared_ptr<Numbers> numbers_ = std::make_shared<Numbers>();
};

}  // namespace troupe::runtime
