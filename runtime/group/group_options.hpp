#pragma once

// Options and reports of worker groups.
//
// **Threads:** plain values.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/group/mesh.hpp"
#include "runtime/task/cancel.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

class CallTrace;
class LaneGate;

/// How a call reaches the engines of ranks in this process; see worker_group.hpp, **Cost**.
enum class CallRoute : std::uint8_t {
  kDirect,  ///< put into the engines' queues by the caller; the shells observe
  kShells,  ///< one actor message per rank, which its shell puts into the queue
};

struct GroupOptions {
  std::string name = "group";
  Mesh mesh = {};           ///< one rank per position
  bool collectives = true;  ///< give the ranks in-process collectives
  /// One gate per rank, or none; methods with a phase run inside the gate's turn.
  std::vector<LaneGate*> lanes = {};
  CallTrace* trace = nullptr;
  Duration call_deadline = std::chrono::minutes(30);   ///< for calls that give none
  Duration create_deadline = std::chrono::minutes(5);  ///< for all workers to be constructed
  /// How long destruction waits for engines that are inside a method; then their threads are
  /// left behind (they keep what they use alive) and a warning names the method.
  Duration shutdown_wait = std::chrono::seconds(2);
  std::size_t calls_max = 1024;  ///< calls in flight; more end at once with kResourceExhausted
  /// A method that neither ends nor reports progress for this long is logged once.
  Duration stuck_after = std::chrono::seconds(60);
  Duration heartbeat = std::chrono::milliseconds(500);    ///< how often the watch asks each shell
  Duration heartbeat_deadline = std::chrono::seconds(3);  ///< then the rank counts as dead
  CallRoute route = CallRoute::kDirect;
};

/// `group.call_with<&W::m>(CallOptions().within(2s).under(token), batch)`. With constructors and
/// not an aggregate, so that it may be made inside a co_await expression (see task.hpp).
class CallOptions {
 public:
  CallOptions() {}  // NOLINT: user-provided on purpose
  /// Absolute; travels to the ranks.
  CallOptions& until(Deadline deadline) {
    deadline_ = deadline;
    return *this;
  }
  CallOptions& within(Duration span) { return until(Deadline::in(span)); }
  /// The call is cancelled when the token is.
  CallOptions& under(CancelToken token) {
    cancel_ = std::move(token);
    return *this;
  }
  const std::optional<Deadline>& deadline() const { return deadline_; }
  const CancelToken& cancel() const { return cancel_; }

 private:
  std::optional<Deadline> deadline_;
  CancelToken cancel_;
};

/// What a shell says about its rank.
struct RankStatus {
  RankId rank;
  bool dead = false;
  bool busy = false;
  std::string method;          ///< that runs now; empty when idle
  std::string waits_for;       ///< e.g. `lane turn`, or what the worker said; may be empty
  double busy_seconds = 0;     ///< in this method
  double waiting_seconds = 0;  ///< for waits_for
  std::int64_t calls_done = 0;
  std::int64_t progress = 0;  ///< steps reported by the worker since it started
  std::string cause;          ///< why it is dead
  /// `rank 3: update for 1.2 s, waits for lane turn for 1.1 s`.
  std::string to_string() const;
};

}  // namespace troupe::runtime
