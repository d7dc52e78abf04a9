#pragma once

// `RankServer`: one rank as its own process sees it: a channel to the controller in front of an
// engine thread. `run_rank` (runtime/cluster/rank_host.hpp) drives it; tests do so in one process.
//
// Ownership: the caller keeps it until `serve` has returned; then the channel holds nothing of it.
// **Threads:** `serve` blocks its caller. What the controller says arrives on the link's I/O thread
// and is answered there, also while the engine is busy or stuck; the worker lives on the engine
// thread.
// **Invariants:** results leave in the order of calls. The engine begins no call while a round of
// agreement holds it, nor after a call that failed until the controller has heard of it, if the
// group has collectives.
// **Cost:** a result is sent by the engine when no call waits behind it, else several together.

#include "runtime/group/group_codec.hpp"
#include "runtime/group/group_messages.hpp"
#include "runtime/group/rank_programs.hpp"
#include "runtime/link/channel.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

class ColumnExchange;
class RankServerService;

struct RankServerOptions {
  RankRecord record;
  const RankPrograms* programs = nullptr;
  std::string version = {};        ///< of Troupe, for messages
  std::string host = "127.0.0.1";  ///< own address, for collectives
  TransportLanes lanes = TransportLanes::kAuto;
  std::shared_ptr<RankLanes> device_lanes = {};  ///< may be null
};

/// Why a rank ended.
enum class RankEnd : std::uint8_t {
  kClosed,          ///< its controller told it to
  kRefused,         ///< its controller does not want it, or its program does not fit
  kControllerLost,  ///< the channel went down
  kDied,            ///< a CHECK or foreign exception in its worker
};

struct RankOutcome {
  RankEnd end = RankEnd::kClosed;
  Error cause;               ///< meaningless when closed
  bool engine_ended = true;  ///< false: it is stuck, and the process must end by `_exit`
};

class RankServer {
 public:
  explicit RankServer(RankServerOptions options);
  ~RankServer();
  RankServer(const RankServer&) = delete;
  RankServer& operator=(const RankServer&) = delete;

  /// Give it to `LinkHub::connect`.
  std::shared_ptr<ChannelService> service() const;
  /// Introduces the rank over its channel, constructs the worker and serves calls until the end.
  /// `engine_within` is what the engine may take to end.
  RankOutcome serve(Ref<Channel> controller, Duration engine_within);
  /// Ends `serve` as if the controller had closed the group.
  void close();
  /// What the shell says of the rank; for the agent's watchdog.
  RankStatus status() const;

 private:
  friend class RankServerService;
  class State;
  Ref<State> state_;
  std::shared_ptr<RankServerService> service_;
};

}  // namespace troupe::runtime
