#pragma once

// The staleness ledger: which prompts are under way, under which weights they began, and which of
// them the trainer may use. Pure: each method is one event; it has no clock and draws no numbers.
//
// Three bounds that other systems call "staleness" are three options here:
//  - `lead_max` η, on the lead: with v published versions, at most (η + v + 1)·B groups are issued
//    (consumed ones counted; a cancelled one gives its place back). Paces; throws nothing away.
//  - `age_max`, on the age at use: published version − version of the oldest token.
//  - `span_max`, on the versions crossed inside one trajectory.
// `policy` says what happens at the bounds; docs/asynchronous.md has the rules and the proofs.
//
// Life of a group: issue → running → finish → finished → take → taken → end_step → consumed; from
// each of the first three it may leave by a `CancelRecord` instead. The driver does what the
// ledger answers: starts what it issued, trains what it took, stops what records name.
// **Ownership:** owns numbers only; trajectories are the driver's.
// **Threads:** one at a time.
// **Invariants (`check_invariants`):** issued = running + finished + taken + consumed + cancelled,
// the last by reason; each number issued leaves exactly once; with `kWait` no group is used more
// than `effective().lead` trained steps after the version it was issued at, and none is dropped for
// age; with lead 0 and nothing over-sampled, step s trains exactly groups s·B … (s+1)·B − 1, in
// order, whatever the order in which they finished.
// **Cost:** O(log open) a call, O(open) for `take` and `published`; memory O(open groups).

#include "actors/pacing/cancel_reason.hpp"
#include "actors/pacing/trajectory.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

enum class StalePolicy : std::uint8_t {
  kWait,      ///< steps keep places for groups that would be too old later, and wait for them
  kDrop,      ///< groups beyond a bound are cancelled and their places issued anew
  kTruncate,  ///< tokens beyond a bound are masked; a group without any left is cancelled
};
/// `wait`, `drop`, `truncate`.
std::string_view stale_policy_name(StalePolicy policy);
result<StalePolicy> stale_policy_from_name(std::string_view name);

struct LedgerOptions {
  std::int64_t groups_per_step = 1;  ///< B
  std::int64_t lead_max = 0;         ///< η, in steps; 0 is the synchronous order
  StalePolicy policy = StalePolicy::kWait;
  std::optional<std::int64_t> age_max{};   ///< versions; empty: what `lead_max` implies
  std::optional<std::int64_t> span_max{};  ///< versions; empty: unbounded
  std::int64_t groups_extra = 0;           ///< over-sampling: issued beyond what steps need
  std::int64_t running_max = 0;            ///< groups generated at a time; 0: as pacing allows
  std::int64_t open_max = 0;               ///< groups not yet consumed; 0: as pacing allows
  std::int64_t steps_max = 0;          ///< of the run: nothing is issued for later ones; 0: none
  std::int64_t barren_groups_max = 0;  ///< cancelled in a row; 0: ten steps' worth

  /// kInvalidArgument naming option and value, also for bounds that would deadlock.
  result<void> check() const;
};

/// The bound that really holds, with the option that makes it.
struct EffectiveBound {
  std::int64_t lead = 0;              ///< steps between issue and use, at most
  std::optional<std::int64_t> age{};  ///< versions at use; empty: unbounded
  std::optional<std::int64_t> span{};
  std::string limited_by{};  ///< the option that gives `lead`
  /// One line for the start of a run.
  std::string to_string() const;
};

/// Where a prompt came from, so that it can be read again after a restart.
struct PromptOrigin {
  std::uint64_t prompt_id = 0;
  std::int64_t epoch = 0;
  std::int64_t position = 0;  ///< in the epoch's order
  bool operator==(const PromptOrigin&) const = default;
};

/// Permission to generate one group.
struct GroupTicket {
  std::uint64_t group = 0;  ///< issue number: 0, 1, 2, …
  PromptOrigin origin{};
  WeightVersion issued_at{0};
  bool operator==(const GroupTicket&) const = default;
};

struct CancelRecord {
  std::uint64_t group = 0;
  PromptOrigin origin{};
  CancelReason reason = CancelReason::kAsked;
  WeightVersion issued_at{0};
  WeightVersion cancelled_at{0};  ///< published version then
  bool operator==(const CancelRecord&) const = default;
};

/// A group that the trainer got.
struct TakenGroup {
  GroupTicket ticket{};
  VersionSpan span{};
  std::int64_t age = 0;        ///< published version − oldest token, when it was taken
  std::int64_t lead_used = 0;  ///< trained steps − version at issue
  /// Tokens of older weights must be masked; empty: none.
  std::optional<WeightVersion> mask_older_than{};
  bool operator==(const TakenGroup&) const = default;
};

/// What one step used. Integers only: a metric is a division away.
struct StepAccount {
  std::int64_t step = 0;  ///< from 0: it made version step + 1
  std::int64_t groups = 0;
  std::map<std::int64_t, std::int64_t> ages{};   ///< data staleness → groups
  std::map<std::int64_t, std::int64_t> spans{};  ///< largest span of a trajectory → groups
  std::int64_t publish_lag = 0;                  ///< trained − published, at its first take
  std::array<std::int64_t, kCancelReasons> cancelled{};  ///< since the last step ended
  bool operator==(const StepAccount&) const = default;
};

enum class GroupStage : std::uint8_t { kRunning, kFinished, kTaken };

/// One open group; also its form in saved state.
struct OpenGroup {
  GroupTicket ticket{};
  GroupStage stage = GroupStage::kRunning;
  VersionSpan span{};        ///< of all its trajectories; known once finished (or `began`)
  std::int64_t crossed = 0;  ///< largest span of one trajectory
  std::int64_t age = 0;      ///< when taken
  bool operator==(const OpenGroup&) const = default;
};

/// Everything that resuming needs. `taken` groups are saved as finished: their step did not end.
struct LedgerState {
  std::uint64_t next_group = 0;
  std::int64_t steps_trained = 0;
  std::int64_t published = 0;
  std::int64_t consumed = 0;
  std::int64_t barren = 0;
  std::array<std::int64_t, kCancelReasons> cancelled{};
  std::vector<OpenGroup> open{};
  bool operator==(const LedgerState&) const = default;

  result<std::vector<std::byte>> to_bytes() const;
  static result<LedgerState> from_bytes(std::span<const std::byte> bytes);
};

class StalenessLedger {
 public:
  static result<StalenessLedger> create(const LedgerOptions& options);
  /// Goes on from saved state: running groups are open again, to be started anew by the driver
  /// (`open_groups`). kCorrupt when the numbers contradict each other or break a bound that
  /// `options` set.
  static result<StalenessLedger> restore(const LedgerOptions& options, const LedgerState& state);
  LedgerState save() const;

  // ---- issue ----
  /// Groups that may be issued now.
  std::int64_t free_groups() const;
  /// kResourceExhausted, with `explain()`, when none may.
  result<GroupTicket> issue(const PromptOrigin& origin);
  /// Says what issue waits for, with the numbers.
  std::string explain() const;

  // ---- events ----
  /// Every rollout rank serves `version` or newer from here on; only after a publication that
  /// succeeded. Versions count
  /// trained steps: kConflict when it goes back or was not trained yet. Returns what became too old
  /// (`kDrop`), running groups too when `began` told their first version.
  result<std::vector<CancelRecord>> published(WeightVersion version);
  /// The first token of the group was sampled under `version`; optional, for early cancels.
  result<void> began(std::uint64_t group, WeightVersion version);
  /// All trajectories of the group are there, rewards included; their spans. Returns the record if
  /// a bound says that it cannot be used. kNotFound for a group that is not running.
  result<std::optional<CancelRecord>> finish(std::uint64_t group,
                                             std::span<const VersionSpan> samples);
  /// Gives an open group up. kNotFound when it is not open (any more).
  result<CancelRecord> cancel(std::uint64_t group, CancelReason reason);
  /// Nothing more is issued. Gives up what no step will use when the steps are over (`kEndOfRun`);
  /// with `cancel_all` everything that is open and not taken.
  std::vector<CancelRecord> close(bool cancel_all);

  // ---- use ----
  struct Taken {
    std::vector<TakenGroup> groups{};       ///< by issue number
    std::vector<CancelRecord> cancelled{};  ///< swept
  };
  /// Up to `most` groups for the step under way, oldest first, as far as places are not kept for
  /// others. A step that wants all at once asks when `ready()` says so.
  Taken take(std::int64_t most);
  /// Groups that `take` would give now.
  std::int64_t ready() const;
  /// Groups that the step under way still needs.
  std::int64_t wanted() const { return options_.groups_per_step - taken_; }
  /// The step was trained: what it took is consumed. kConflict unless it has B groups, or is the
  /// last after `close` and has at least one.
  result<StepAccount> end_step();
  /// The step failed: what it took is finished again.
  void abandon_step();

  // ---- views ----
  /// Set once so many groups came to nothing since the trainer last got one, with none in stock,
  /// that the run should end; names the counts.
  std::optional<Error> barren() const;
  /// Nothing more is issued.
  bool closed() const { return closed_; }
  /// Closed, and nothing is open.
  bool drained() const { return closed_ && open_.empty(); }
  EffectiveBound effective() const;
  const LedgerOptions& options() const { return options_; }
  std::int64_t steps_trained() const { return steps_trained_; }
  WeightVersion published_version() const { return published_; }
  std::int64_t publish_lag() const { return steps_trained_ - published_.value; }
  std::uint64_t issued() const { return next_group_; }
  std::int64_t consumed() const { return consumed_; }
  std::int64_t running() const { return running_; }
  std::int64_t finished() const { return finished_; }
  std::int64_t cancelled(CancelReason reason) const {
    return cancelled_[static_cast<std::size_t>(reason)];
  }
  std::int64_t cancelled_total() const;
  const std::map<std::uint64_t, OpenGroup>& open_groups() const { return open_; }
  /// The last 1,024 records; every record was also returned once.
  const std::deque<CancelRecord>& last_records() const { return records_; }
  /// CHECKs the conservation of groups; for tests and for debug builds.
  void check_invariants() const;

 private:
  explicit StalenessLedger(const LedgerOptions& options) : options_(options) {}
  std::int64_t limit() const;
  std::int64_t pacing_lead() const;
  std::int64_t age_bound() const;
  std::map<std::int64_t, std::int64_t> slack() const;
  std::optional<CancelReason> unusable(const OpenGroup& group) const;
  std::optional<WeightVersion> mask_bound(const OpenGroup& group) const;
  CancelRecord leave(std::map<std::uint64_t, OpenGroup>::iterator place, CancelReason reason);
  std::vector<CancelRecord> sweep();
  std::vector<std::uint64_t> candidates() const;
  void count_stage(GroupStage stage, std::int64_t by);

  LedgerOptions options_;
  std::map<std::uint64_t, OpenGroup> open_;
  std::uint64_t next_group_ = 0;
  std::int64_t steps_trained_ = 0;
  WeightVersion published_{0};
  std::int64_t consumed_ = 0;
  std::int64_t running_ = 0;
  std::int64_t finished_ = 0;
  std::int64_t taken_ = 0;
  std::int64_t barren_ = 0;
  std::int64_t step_lag_ = 0;
  bool closed_ = false;
  std::array<std::int64_t, kCancelReasons> cancelled_{};
  std::array<std::int64_t, kCancelReasons> cancelled_before_{};  ///< when the last step ended
  std::deque<CancelRecord> records_;
};

}  // namespace troupe::actors
