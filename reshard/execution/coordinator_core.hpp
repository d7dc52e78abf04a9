#pragma once

// The coordinator's half of the publication protocol as a pure state machine: two-phase commit.
//
// **Threads:** none; its owner serialises `step`.
// **Invariants:** commit is sent only after every target is verified; after it was decided abort is
// never sent, and commit is repeated until all have answered or the step's time is over; the
// publication finishes exactly once. A target that failed because it waited for another one is not
// the reason while that one's answer may still come: its error is held back, for 2 s at most.

#include "reshard/execution/messages.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <map>
#include <optional>
#include <set>
#include <variant>
#include <vector>

namespace troupe::reshard {

struct CoordinatorOptions {
  PublicationId id;
  Checks checks;
  std::vector<Member> members;
  Duration begin_within = std::chrono::seconds(10);
  Duration receive_within = std::chrono::minutes(5);
  Duration commit_within = std::chrono::seconds(30);
  Duration repeat_every = std::chrono::seconds(2);  ///< a command without an answer
  bool sources_send = false;  ///< they must act too: kReceive goes to them as well (NCCL)
};

struct PublicationOutcome {
  std::map<Member, ReceiveStatistics> received;  ///< of the targets
  /// Targets that serve the new version. With an error: who committed before it was known.
  std::set<Member> committed;
};

/// A member cannot be reached any more.
struct MemberLost {
  Member member;
  Error cause;
};
struct ClockTick {};
using CoordinatorEvent = std::variant<Reply, MemberLost, ClockTick>;

struct SendCommand {
  Member to;
  Command command;
};
struct FinishPublication {
  std::optional<Error> error;  ///< empty: every member has committed
};
using CoordinatorEffect = std::variant<SendCommand, FinishPublication>;

class CoordinatorCore {
 public:
  enum class State : std::uint8_t { kBeginning, kReceiving, kCommitting, kAborting, kDone };

  explicit CoordinatorCore(CoordinatorOptions options);

  std::vector<CoordinatorEffect> start(TimePoint now);
  std::vector<CoordinatorEffect> step(const CoordinatorEvent& event, TimePoint now);
  /// When `step` wants a ClockTick at the latest.
  TimePoint due() const;
  State state() const { return state_; }
  const PublicationOutcome& outcome() const { return outcome_; }

 private:
  using Effects = std::vector<CoordinatorEffect>;
  void enter(State state, TimePoint now, Effects& effects);
  void command(const Member& to, Effects& effects);
  void on_reply(const Reply& reply, TimePoint now, Effects& effects);
  void on_lost(const MemberLost& lost, TimePoint now, Effects& effects);
  void on_tick(TimePoint now, Effects& effects);
  void advance(TimePoint now, Effects& effects);
  void fail_with(Error error, TimePoint now, Effects& effects);
  /// Ends the publication when the reason of an error that is held back is known.
  void settle(TimePoint now, Effects& effects);
  Duration within() const;
  std::string who_serves() const;

  CoordinatorOptions options_;
  State state_ = State::kBeginning;
  TimePoint until_{};
  TimePoint repeat_at_{};
  std::set<Member> waiting_;  ///< whose answer to this step is missing
  std::set<Member> lost_;
  std::map<Member, std::vector<std::byte>> addresses_;
  /// Of targets that waited for somebody whose answer may tell more.
  struct Held {
    Member waited_for;
    Error error;
    TimePoint until;
  };
  std::map<Member, Held> held_;
  std::optional<Error> error_;
  PublicationOutcome outcome_;
};

}  // namespace troupe::reshard
