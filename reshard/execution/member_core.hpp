#pragma once

// The members' halves of the publication protocol as pure state machines: `SourceCore` decides when
// weights are frozen, `TargetCore` when an update is prepared, filled, made active or dropped.
//
// **Threads:** none; their owners serialise `step`.
// **Invariants:** one epoch at a time; an epoch that is over, or older than one that was seen, is
// refused. A target commits only what it has verified, and verifies an epoch at most once. Commands
// may come again: the answer is the same. Every command is answered once, but for a repeated
// receive while the first one runs.

#include "reshard/execution/messages.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <optional>
#include <variant>
#include <vector>

namespace troupe::reshard {

struct SendReply {
  Reply reply;
};

// Source.

/// Make the weights readable under this epoch; answered by FreezeDone.
struct Freeze {
  PublicationId id;
  Checks checks;
};
struct Thaw {
  PublicationId id;
  bool committed = false;
};
using SourceEffect = std::variant<SendReply, Freeze, Thaw>;

struct FreezeDone {
  std::uint64_t epoch = 0;
  std::optional<Error> error;
  std::vector<std::byte> address;
};
/// The lease may be over.
struct LeaseTick {};
using SourceEvent = std::variant<Command, FreezeDone, LeaseTick>;

class SourceCore {
 public:
  SourceCore(std::int32_t rank, std::uint64_t digest)
      : self_{Side::kSource, rank}, digest_(digest) {}

  std::vector<SourceEffect> step(const SourceEvent& event, TimePoint now);
  const std::optional<PublicationId>& frozen() const { return frozen_; }
  TimePoint lease_until() const { return lease_until_; }

 private:
  using Effects = std::vector<SourceEffect>;
  void on_command(const Command& command, TimePoint now, Effects& effects);
  void begin(const Command& command, TimePoint now, Effects& effects);
  void reply(std::uint64_t epoch, ReplyKind kind, Effects& effects);
  void refuse(std::uint64_t epoch, CommandKind to, Error error, Effects& effects);
  void thaw(bool committed, Effects& effects);

  Member self_;
  std::uint64_t digest_;
  std::uint64_t newest_ = 0;  ///< epoch
  std::uint64_t over_ = 0;    ///< the newest one that was committed here
  std::optional<PublicationId> frozen_;
  bool freezing_ = false;
  TimePoint lease_until_{};
  std::vector<std::byte> address_;
};

// Target.

/// Prepare the second set; answered by PrepareDone.
struct PrepareUpdate {
  PublicationId id;
};
/// Pull; answered by FetchDone.
struct StartFetch {
  Command command;
};
/// The fetch that runs is of no use; it answers with an error soon.
struct StopFetch {};
/// Make the second set active; answered by CommitDone.
struct CommitUpdate {
  PublicationId id;
};
struct AbortUpdate {
  std::uint64_t epoch = 0;
};
using TargetEffect =
    std::variant<SendReply, PrepareUpdate, StartFetch, StopFetch, CommitUpdate, AbortUpdate>;

struct PrepareDone {
  std::uint64_t epoch = 0;
  std::optional<Error> error;
  std::vector<std::byte> address;
};
struct FetchDone {
  std::uint64_t epoch = 0;
  std::optional<Error> error;
  ReceiveStatistics received;
  std::optional<Member> waited_for{};  ///< see Reply
};
struct CommitDone {
  std::uint64_t epoch = 0;
  std::optional<Error> error;
};
using TargetEvent = std::variant<Command, PrepareDone, FetchDone, CommitDone>;

class TargetCore {
 public:
  enum class State : std::uint8_t {
    kIdle,
    kPreparing,
    kPrepared,
    kReceiving,
    kVerified,
    kCommitting
  };

  TargetCore(std::int32_t rank, std::uint64_t digest, WeightVersion active)
      : self_{Side::kTarget, rank}, digest_(digest), active_(active) {}

  std::vector<TargetEffect> step(const TargetEvent& event);
  State state() const { return state_; }
  WeightVersion active() const { return active_; }
  std::uint64_t epoch() const { return id_.epoch; }

 private:
  using Effects = std::vector<TargetEffect>;
  void on_command(const Command& command, Effects& effects);
  void begin(const Command& command, Effects& effects);
  void receive(const Command& command, Effects& effects);
  void commit(const Command& command, Effects& effects);
  void abort(const Command& command, Effects& effects);
  void on_prepared(const PrepareDone& done, Effects& effects);
  void on_fetched(const FetchDone& done, Effects& effects);
  void on_committed(const CommitDone& done, Effects& effects);
  void reply(std::uint64_t epoch, ReplyKind kind, Effects& effects);
  void refuse(std::uint64_t epoch, CommandKind to, Error error, Effects& effects);
  /// Empty when `command` is of the epoch that is under way.
  std::optional<Error> fenced(const Command& command) const;

  Member self_;
  std::uint64_t digest_;
  WeightVersion active_;
  State state_ = State::kIdle;
  PublicationId id_;          ///< under way
  std::uint64_t newest_ = 0;  ///< epoch that was seen
  std::uint64_t over_ = 0;    ///< the newest one that was committed here
  bool dropped_ = false;      ///< aborted while its fetch still runs
  std::vector<std::byte> address_;
  ReceiveStatistics received_;
};

}  // namespace troupe::reshard
