#pragma once

// `AgentLanes`: the rank's side of the lanes and the memory ledger that its agent keeps.
//
// Takes turns for the engine (`RankLanes`), writes down what the worker keeps on the device
// (`MemoryBook`), and moves it when the agent asks: put `service()` into the rank's service table
// under the prefix `memory.`.
// Ownership: borrows nothing but the channel; entries must be removed before what their callbacks
// refer to goes.
// **Threads:** any. Moves run on a thread of its own, one at a time, while the rank has no turn.
// **Invariants:** a turn that was granted is released exactly once, also when the wait gave up.

#include "runtime/cluster/lane_messages.hpp"
#include "runtime/device/memory_book.hpp"
#include "runtime/group/rank_lanes.hpp"
#include "runtime/group/rank_launcher.hpp"
#include "runtime/link/channel.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

class MoveService;

class AgentLanes final : public RankLanes, public MemoryBook {
 public:
  struct Options {
    std::string job;
    int device = 0;  ///< the lane's device, as the agent counts it; the first of the bundle
    Duration answer_within = std::chrono::seconds(30);  ///< for entries; waits have their own
  };
  AgentLanes(Ref<Channel> agent, Options options);
  ~AgentLanes() override;
  AgentLanes(const AgentLanes&) = delete;
  AgentLanes& operator=(const AgentLanes&) = delete;

  /// What a phase of this rank needs beside the turn: names of entries that must be resident, and
  /// scratch bytes. Declare before the first call; an undeclared phase needs nothing but the turn.
  void declare(const std::string& phase, std::vector<std::string> resident, Bytes scratch = {});

  result<std::unique_ptr<LaneGate::Turn>> wait(const LaneTicket& ticket, const std::string& phase,
                                               Deadline deadline) override;

  // The owner of keys is replaced by this rank's name, so that ranks cannot touch each other's.
  result<void> add(MemoryEntry entry, MemoryActions actions) override;
  result<void> remove(const MemoryKey& key) override;
  result<void> resize(const MemoryKey& key, Bytes bytes) override;
  result<Bytes> room_in(const Phase& phase) const override;

  /// Serves `memory.move`; refuses once this is gone.
  std::shared_ptr<ChannelService> service() const;

 private:
  struct State;
  class HeldTurn;
  friend class MoveService;
  std::shared_ptr<State> state_;
};

/// The lanes of a rank process with devices; null for one without. For `RankPrograms`' hook of the
/// agent's parts: give it on as `lanes`, and its `service()` under `memory.`.
std::shared_ptr<AgentLanes> make_agent_lanes(Ref<Channel> agent, const RankRecord& record);

}  // namespace troupe::runtime
