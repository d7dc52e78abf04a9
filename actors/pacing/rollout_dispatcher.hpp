#pragma once

// `RolloutDispatcher`: which sample runs where, when it stops, and which groups count. Pure:
// `step(event, now) → effects`, integers only.
//
// It composes the straggler tools through options: rounds over-sampled and cut at complete groups,
// recycling of partials, tail rounds, longest first, pull-based routing, repacking of tails,
// redundant samples and hedged requests, deadlines, dynamic sampling, token accounting, length
// bias. All off, it starts samples in issue order on the rank with most room and reports groups as
// they complete.
//
// Whoever drives it keeps the trajectories: it stores the newest partial of each live attempt under
// the attempt's number and starts a sample from the partial that `StartSample` names. A group is
// issued with what its samples already have, so that a checkpoint is resumed by issuing.
// docs/asynchronous.md has the rules.
// **Threads:** one at a time.
// **Invariants (`check_invariants`):** each issued group ends in exactly one `GroupComplete` or
// `GroupDropped`; a complete group has exactly `group_size` samples, each generated once and scored
// once; a sample has at most one live attempt, two when hedged; each attempt started is ended by
// one event of its rank, or with its rank; stops are sent once. Events about attempts that are over
// change nothing but the account. Everything that waits has a deadline option or waits for a rank.
// **Cost:** O(log n + ranks) a start, O(open samples) a tick; memory O(open samples), at most
// `groups_max` groups.

#include "actors/pacing/cancel_reason.hpp"
#include "actors/pacing/token_account.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troupe::actors {

/// One sample of one issued group.
struct SampleId {
  std::uint64_t group = 0;
  std::uint32_t index = 0;
  auto operator<=>(const SampleId&) const = default;
};

/// What becomes of groups that lose the race of a round.
enum class CutAction : std::uint8_t {
  kDrop,     ///< given up: `GroupDropped`, reason `cut`
  kRestart,  ///< generated again from the start, in a later round
  kResume,   ///< go on from their partials, in a later round
};
enum class DeadlineAction : std::uint8_t {
  kTruncate,  ///< the sample ends with what it has
  kRetry,     ///< goes on from its partial on another rank, `retries_max` times, then kDrop
  kDrop,      ///< its group is given up
};
enum class RefillAction : std::uint8_t {
  kKeep,  ///< beyond `refills_max` groups without variance count as complete
  kFail,  ///< `Starved`: the run should end
};

struct DispatchOptions {
  std::int32_t group_size = 1;  ///< G

  // Rounds. Off: groups run as soon as they are issued.
  bool rounds = false;  ///< groups run in rounds that are cut when enough groups are complete
  CutAction cut = CutAction::kResume;
  /// Groups that were cut wait until there are so many, and then have a round of their own, which
  /// ends when all are complete; so they do when there is nothing else. 0: they go on in the next
  /// round.
  std::int64_t tail_round_groups = 0;

  // Redundancy.
  std::int32_t samples_extra = 0;  ///< per group; the first G that are scored win
  Duration hedge_after{0};         ///< then an idle rank may run the sample too; 0: never

  // Deadlines; 0: none.
  Duration sample_deadline{0};  ///< of a sample's time on ranks, partial attempts added up
  DeadlineAction on_deadline = DeadlineAction::kTruncate;
  Duration stall_after{0};     ///< an attempt that reports nothing is stopped and goes elsewhere
  Duration score_deadline{0};  ///< a reward that does not come is asked for again
  Duration stop_within = std::chrono::seconds(10);  ///< an asked stop that is not confirmed counts
  std::int32_t retries_max = 3;                     ///< per sample, failures of every kind
  std::int32_t rank_losses_max = 16;  ///< per sample: one that kills its ranks must not go on

  // Order.
  bool longest_first = false;         ///< first a probe of each group, then by estimated rest
  std::int64_t overtakes_max = 1024;  ///< starts that may pass the oldest waiting sample
  /// Bound on an answer, and its length as long as nothing is known: set it to what sampling
  /// allows.
  std::int64_t new_tokens_max = 1 << 20;

  // Repacking: when nothing waits and all ranks together run at most `repack_below` samples.
  std::int64_t repack_below = 0;  ///< 0: never
  std::int32_t moves_max = 1;     ///< per sample

  // Dynamic sampling.
  bool drop_zero_variance = false;
  std::int64_t refills_max = 0;  ///< groups dropped per round for it; 0: ten times those wanted
  RefillAction on_refills = RefillAction::kFail;

  // Bounds.
  std::int64_t groups_max = 65'536;  ///< open at once
  std::int64_t ranks_max = 4'096;

  result<void> check() const;
};

// ---- events --------------------------------------------------------------------------------

/// What a sample brings along when its group is issued: nothing, a partial, or all.
struct SampleSeed {
  std::int64_t tokens = 0;
  bool finished = false;
  std::optional<std::int64_t> score{};  ///< only when finished
};
struct GroupIssued {
  std::uint64_t group = 0;  ///< rising, as the ledger numbers them
  std::int64_t prompt_tokens = 0;
  std::int64_t length_hint = 0;       ///< expected tokens of an answer; 0: unknown
  std::vector<SampleSeed> samples{};  ///< empty, or G + `samples_extra`
};
struct RankJoined {
  RankId rank{};
  std::int64_t samples_max = 0;  ///< it may run at once
  std::int64_t tokens_max = 0;   ///< of KV
};
struct RankLost {
  RankId rank{};
};
/// Late with its heartbeat: gets nothing new. What it runs goes on.
struct RankSuspected {
  RankId rank{};
  bool suspected = true;
};
/// The rank would take so much more; replaces what it said before.
struct RankPulls {
  RankId rank{};
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
};
/// A partial of the attempt is stored: `tokens` in all, prefix included.
struct AttemptProgress {
  std::uint64_t attempt = 0;
  std::int64_t tokens = 0;
};
enum class AttemptOutcome : std::uint8_t {
  kFinished,     ///< the sample is whole
  kInterrupted,  ///< stopped, asked or not (e.g. for new weights); its partial is stored
  kFailed,       ///< its own fault: what it generated does not count
};
struct AttemptEnded {
  std::uint64_t attempt = 0;
  AttemptOutcome outcome = AttemptOutcome::kFinished;
  std::int64_t tokens = 0;  ///< in all, prefix included
};
/// The reward of a finished sample, as a fixed-point number of the driver's choice.
struct SampleScored {
  SampleId sample{};
  std::int64_t score = 0;
};
struct ScoreFailed {
  SampleId sample{};
};
struct GroupCancelled {
  std::uint64_t group = 0;
  CancelReason reason = CancelReason::kAsked;
};
/// Groups may run until `groups_wanted` are complete. Nothing while groups of a round are under
/// way; a round that has none left, and got less than it wanted, ends first. Without rounds it only
/// marks where the count of refills starts anew.
struct RoundOpened {
  std::int64_t groups_wanted = 0;
};
struct DispatchTick {};

using DispatchEvent = std::variant<GroupIssued, RankJoined, RankLost, RankSuspected, RankPulls,
                                   AttemptProgress, AttemptEnded, SampleScored, ScoreFailed,
                                   GroupCancelled, RoundOpened, DispatchTick>;

// ---- effects -------------------------------------------------------------------------------

struct StartSample {
  RankId rank{};
  SampleId sample{};
  std::uint64_t attempt = 0;       ///< rising, never used twice
  std::uint64_t from_attempt = 0;  ///< whose partial it goes on from; 0: the issued one
  std::int64_t from_tokens = 0;    ///< of that partial; 0: from the start
  bool operator==(const StartSample&) const = default;
};
enum class StopCause : std::uint8_t {
  kCut,       ///< the round is over
  kMove,      ///< its rank gets free
  kStall,     ///< it reported nothing for too long
  kDeadline,  ///< it took too long
  kHedge,     ///< the other attempt won
  kDropped,   ///< nobody wants the sample any more
};
/// Ask the rank to stop the attempt and to answer with `AttemptEnded`.
struct StopAttempt {
  RankId rank{};
  SampleId sample{};
  std::uint64_t attempt = 0;
  StopCause cause = StopCause::kDropped;
  bool operator==(const StopAttempt&) const = default;
};
/// The sample is whole: ask for its reward.
struct ScoreSample {
  SampleId sample{};
  std::uint64_t from_attempt = 0;  ///< whose tokens; 0: the issued ones
  std::int64_t tokens = 0;
  bool cut_short = false;  ///< ended by its deadline
  bool operator==(const ScoreSample&) const = default;
};
struct GroupComplete {
  std::uint64_t group = 0;
  std::vector<std::uint32_t> samples{};  ///< the G that count, rising
  bool surplus = false;                  ///< beyond what its round wanted: counts for the next
  bool operator==(const GroupComplete&) const = default;
};
struct GroupDropped {
  std::uint64_t group = 0;
  CancelReason reason = CancelReason::kAsked;
  bool operator==(const GroupDropped&) const = default;
};
/// Refused at the door (a bound, or a number used before); nothing of it was kept.
struct GroupRefused {
  std::uint64_t group = 0;
  Error error{};
};
struct RankRefused {
  RankId rank{};
  Error error{};
};
struct RoundBegan {
  bool tail = false;               ///< a round of groups that were cut before
  std::int64_t groups_wanted = 0;  ///< to complete; those there already are taken off
  bool operator==(const RoundBegan&) const = default;
};
struct RoundEnded {
  std::int64_t complete = 0;
  std::int64_t cut = 0;  ///< groups that were stopped
  bool operator==(const RoundEnded&) const = default;
};
/// The rank runs nothing and gets nothing until groups are issued or a round opens: it may be lent,
/// or take the newest weights.
struct RankReleased {
  RankId rank{};
  bool operator==(const RankReleased&) const = default;
};
/// Dynamic sampling found nothing to learn from; names the counts.
struct Starved {
  Error error{};
};

using DispatchEffect =
    std::variant<StartSample, StopAttempt, ScoreSample, GroupComplete, GroupDropped, GroupRefused,
                 RankRefused, RoundBegan, RoundEnded, RankReleased, Starved>;
using DispatchEffects = std::vector<DispatchEffect>;

// ---- the core ------------------------------------------------------------------------------

/// What is where, for status and tests.
struct DispatchCounts {
  std::int64_t groups_open = 0;
  std::int64_t groups_complete = 0;
  std::int64_t groups_dropped = 0;
  std::int64_t waiting = 0;  ///< samples that want a rank
  std::int64_t running = 0;  ///< with a live attempt
  std::int64_t parked = 0;   ///< wait for a round
  std::int64_t scoring = 0;
  std::int64_t attempts = 0;     ///< live
  std::int64_t ghosts = 0;       ///< stopped for good, answer not yet there
  std::int64_t tail_groups = 0;  ///< wait for a tail round
  bool operator==(const DispatchCounts&) const = default;
};

class DispatchMachine;

class RolloutDispatcher {
 public:
  static result<RolloutDispatcher> create(const DispatchOptions& options);
  ~RolloutDispatcher();
  RolloutDispatcher(RolloutDispatcher&&) noexcept;
  RolloutDispatcher& operator=(RolloutDispatcher&&) noexcept;

  /// Never fails: events that make no sense (any more) change nothing. `now` does not go back.
  DispatchEffects step(const DispatchEvent& event, TimePoint now);
  /// When to send a tick if nothing else happens before; empty: never.
  std::optional<TimePoint> next_wake() const;

  DispatchCounts counts() const;
  const TokenAccount& tokens() const;
  const LengthBias& length_bias() const;
  /// What the oldest open group waits for, for status and error messages.
  std::string explain(TimePoint now) const;
  void check_invariants() const;

 private:
  explicit RolloutDispatcher(std::unique_ptr<DispatchMachine> machine);
  std::unique_ptr<DispatchMachine> machine_;
};

}  // namespace troupe::actors
