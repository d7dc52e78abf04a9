#pragma once

// `LaneService`: the device lanes and memory ledgers that a node agent keeps for its ranks.
//
// One lane and one ledger per (job, device): ranks wait for their turn with `lane.wait`, say what
// they keep with `memory.add`; before a turn is granted, what its phase needs is made to fit by
// `memory.move` requests to the ranks that own it. The rules are LaneCore's; this drives it.
// The agent adds it under the prefixes `lane.` and `memory.` for channels of ranks and controllers.
// Ownership: shared with the service table; must not outlive the actor system.
// **Threads:** any; a lock guards the cores, effects are performed outside it.
// **Invariants:** those of LaneCore; every request is answered by its deadline; a lane comes with
// the first ticket or entry and goes with its job; at most `lanes_max` lanes.

#include "runtime/cluster/lane_core.hpp"
#include "runtime/cluster/lane_messages.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/link/channel.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

struct LaneServiceOptions {
  std::vector<Bytes> device_capacity;  ///< by device index of this node
  std::size_t lanes_max = 4096;
  std::size_t turns_kept = 4096;                    ///< finished turns kept for `lane.turns`
  Duration move_within = std::chrono::seconds(60);  ///< for a rank to load, offload or drop
};

class LaneService final : public ChannelService {
 public:
  static std::shared_ptr<LaneService> make(ActorSystem& system, LaneServiceOptions options);
  ~LaneService() override;

  void on_request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
                  Deadline deadline, Responder responder) override;
  void on_notify(Channel& channel, std::string_view method,
                 std::span<const std::byte> payload) override;
  void on_down(Channel& channel, const Error& cause) override;

  /// The process of a rank has ended: its tickets are over, its entries vanish. `rank` is the name
  /// of its peer, `job/group/rank`. The agent calls this when the process is reaped: a channel that
  /// went down alone says nothing about what the process still does to the device.
  void rank_gone(const std::string& rank, const Error& cause);
  /// All lanes of a job go; whoever waits gets `cause`.
  void job_gone(const std::string& job, const Error& cause);

  /// For status: every lane, in order of its name.
  std::vector<LaneReport> report() const;

 private:
  struct State;
  explicit LaneService(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace troupe::runtime
