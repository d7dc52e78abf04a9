#pragma once

// The life of one communicator as a pure state machine: join, transfers one at a time, abort,
// rebuild.
//
//   idle ─join→ initializing ─→ ready ─submit→ submitting ─→ running ─→ ready
//   any of these ─error, deadline, abort→ aborting ─→ broken ─join under a newer epoch→ …
//
// NCCL's own waits have no end, so every state that waits has one here. Once something has failed
// the device may still touch the caller's memory: whoever waits is told only when the abort has
// returned, or with kInternal that it did not (`stuck`).
// **Threads:** none; its owner serialises `step`.
// **Invariants:** each join and each ticket is answered exactly once; what carries an epoch or a
// ticket other than the present one is ignored; at most one abort per epoch; no call is asked for
// on a communicator whose abort was asked for.

#include "reshard/nccl/membership.hpp"
#include "runtime/base/clock.hpp"

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troupe::reshard::nccl {

// Events.
struct JoinWanted {
  std::uint64_t epoch = 0;
  std::int32_t members = 0;
  TimePoint until = {};
};
/// `comm` tells whether there is a communicator to poll or abort.
struct InitReturned {
  std::uint64_t epoch = 0;
  Code code = Code::kSuccess;
  std::string text = {};
  bool comm = false;
};
struct AsyncState {
  std::uint64_t epoch = 0;
  Code code = Code::kSuccess;
  std::string text = {};
};
struct SubmitWanted {
  std::uint64_t ticket = 0;
  std::string what = {};  ///< for messages, e.g. `round 3 with ranks 1, 2`
  TimePoint until = {};
};
struct SubmitReturned {
  std::uint64_t ticket = 0;
  Code code = Code::kSuccess;
  std::string text = {};
};
/// Answers RecordEvent and QueryEvent.
struct EventState {
  std::uint64_t ticket = 0;
  bool done = false;
  std::optional<Error> error = {};
};
struct AbortWanted {
  Error cause = {};
};
struct AbortReturned {
  std::uint64_t epoch = 0;
};
struct Tick {};
using CommEvent = std::variant<JoinWanted, InitReturned, AsyncState, SubmitWanted, SubmitReturned,
                               EventState, AbortWanted, AbortReturned, Tick>;

// Effects.
struct CallInit {
  std::uint64_t epoch = 0;
};
struct PollAsync {
  std::uint64_t epoch = 0;
};
struct CallSubmit {
  std::uint64_t ticket = 0;
};
/// Mark the end of the ticket on its stream, and then query.
struct RecordEvent {
  std::uint64_t ticket = 0;
};
struct QueryEvent {
  std::uint64_t ticket = 0;
};
struct CallAbort {
  std::uint64_t epoch = 0;
};
struct JoinDone {
  std::uint64_t epoch = 0;
  std::optional<Error> error = {};
};
struct TicketDone {
  std::uint64_t ticket = 0;
  std::optional<Error> error = {};
};
using CommEffect = std::variant<CallInit, PollAsync, CallSubmit, RecordEvent, QueryEvent, CallAbort,
                                JoinDone, TicketDone>;

class CommunicatorCore {
 public:
  enum class State : std::uint8_t {
    kIdle,
    kInitializing,
    kReady,
    kSubmitting,
    kRunning,
    kAborting,
    kBroken,
  };

  CommunicatorCore(std::int32_t rank, Duration abort_within)
      : rank_(rank), abort_within_(abort_within) {}

  std::vector<CommEffect> step(const CommEvent& event, TimePoint now);
  State state() const { return state_; }
  std::uint64_t epoch() const { return epoch_; }
  /// An abort is overdue: the communicator's memory must not be touched, and no join is possible
  /// before it has returned.
  bool stuck() const { return stuck_; }
  /// Something is under way that Ticks must drive.
  bool busy() const { return state_ != State::kIdle && state_ != State::kBroken; }
  /// Why it is broken.
  const std::optional<Error>& cause() const { return cause_; }

 private:
  using Effects = std::vector<CommEffect>;
  void on(const JoinWanted& event, TimePoint now, Effects& effects);
  void on(const InitReturned& event, TimePoint now, Effects& effects);
  void on(const AsyncState& event, TimePoint now, Effects& effects);
  void on(const SubmitWanted& event, TimePoint now, Effects& effects);
  void on(const SubmitReturned& event, TimePoint now, Effects& effects);
  void on(const EventState& event, TimePoint now, Effects& effects);
  void on(const AbortWanted& event, TimePoint now, Effects& effects);
  void on(const AbortReturned& event, TimePoint now, Effects& effects);
  void on(const Tick& event, TimePoint now, Effects& effects);
  void fail_with(Error error, TimePoint now, Effects& effects);
  void answer(const std::optional<Error>& error, Effects& effects);
  std::string place() const;

  std::int32_t rank_;
  Duration abort_within_;
  State state_ = State::kIdle;
  std::uint64_t epoch_ = 0;
  std::int32_t members_ = 0;
  bool init_returned_ = false;
  bool comm_ = false;     ///< there is one
  bool aborted_ = false;  ///< its abort was asked for
  bool stuck_ = false;
  bool joining_ = false;  ///< a join waits for its answer
  std::uint64_t ticket_ = 0;
  std::optional<std::uint64_t> waiting_;  ///< the ticket that waits for its answer
  std::string what_;
  TimePoint until_{};
  std::optional<Error> cause_;
};

}  // namespace troupe::reshard::nccl
