#pragma once

// What asynchronous rollout knows: which groups are open, what each sample has, who runs it, and
// what has to be asked next. Pure: it has no clock, no roles and no coroutines; the service
// (rollout_service.hpp) carries questions and answers.
//
// It joins the staleness ledger, the dispatcher and the trajectories, and turns their decisions
// into three kinds of questions: work for replicas, samples to score, turns for environments.
// **Ownership:** owns ledger, dispatcher, prompts' rows and trajectories of all open groups.
// **Threads:** one at a time.
// **Invariants:** memory is bounded by what pacing lets be open; a trajectory is stored before the
// dispatcher hears of it; every issued group ends trained or in one cancel record; answers to
// attempts that are over change nothing.

#include "actors/loops/environment_role.hpp"
#include "actors/loops/streaming.hpp"
#include "actors/loops/trajectory_batch.hpp"
#include "actors/pacing/rollout_dispatcher.hpp"
#include "actors/pacing/staleness_ledger.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// Which finished groups a step takes.
enum class TakeOrder : std::uint8_t {
  kReady,  ///< whatever is finished, oldest first
  kIssue,  ///< strictly by issue number: what a step uses does not depend on arrival
};
/// `ready`, `issue`.
result<TakeOrder> take_order_from_name(std::string_view name);

struct RolloutOptions {
  LedgerOptions ledger{};
  DispatchOptions dispatch{};  ///< its group size and bounds are set from the others
  SamplingOptions sampling{};  ///< its seed is the run's
  std::int64_t group_size = 1;
  TakeOrder order = TakeOrder::kReady;
  bool environment = false;                 ///< a turn that ended goes to the environment
  std::int64_t environment_turns_max = 64;  ///< of one sample
  std::int64_t first_step = 0;  ///< steps that were trained before this run, without state

  result<void> check() const;
  /// With the dispatcher's group size and bounds set from the rest.
  RolloutOptions settled() const;
};

/// A sample whose reward is wanted.
struct ScoreJob {
  SampleId sample{};
  runtime::Batch row{};  ///< one row: prompt and response columns
};

/// A turn for an environment.
struct EnvironmentJob {
  std::uint64_t attempt = 0;
  EnvironmentTurn turn{};
};

/// Counts of things that happened, since the start.
struct RolloutCounts {
  std::int64_t starts = 0;
  std::int64_t stops = 0;        ///< attempts asked to stop
  std::int64_t interrupted = 0;  ///< attempts that ended before their sample did
  std::int64_t failed = 0;       ///< attempts that failed
  std::int64_t replicas_lost = 0;
  std::int64_t turns = 0;  ///< of environments
  std::int64_t scored = 0;
  std::int64_t score_failures = 0;
  std::int64_t released = 0;  ///< replicas that repacking freed
};

struct SavedBook;

class RolloutBook {
 public:
  static result<RolloutBook> create(const RolloutOptions& options);
  /// Goes on from `save`; partial samples start again from what they had. kCorrupt for damage,
  /// kInvalidArgument for other options than those that the state fits (both values named).
  static result<RolloutBook> restore(const RolloutOptions& options,
                                     std::span<const std::byte> bytes, TimePoint now);
  /// Ledger, prompts, trajectories and rewards of open groups; `unissued`: prompts that were read
  /// and not issued.
  result<std::vector<std::byte>> save(const runtime::Batch& unissued) const;
  /// The prompts that `save` was given, once after `restore`; empty: none.
  runtime::Batch take_unissued() { return std::move(unissued_); }

  // ---- prompts ----
  /// Groups that may be issued now.
  std::int64_t free_groups() const { return ledger_.free_groups(); }
  /// `row`: one prompt.
  result<void> issue(const runtime::Batch& row, TimePoint now);
  /// No more prompts: what is open is still used, up to a short last step.
  void end_of_data(TimePoint now);
  /// Gives up everything that was not taken.
  void close(TimePoint now);

  // ---- replicas ----
  void join(const ReplicaInfo& info, TimePoint now);
  void lose(RankId replica, TimePoint now);
  /// Nothing new for it until `held` is false; what it runs goes on.
  void hold(RankId replica, bool held, TimePoint now);
  /// Asks for everything that runs there to be given back.
  void recall(RankId replica, TimePoint now);
  bool has_work(RankId replica) const;
  /// Samples that are on the replica.
  std::int64_t running_on(RankId replica) const;
  /// Starts and stops that wait for the replica's next slice.
  AdvanceRequest next_request(RankId replica);
  /// kConflict, kInvalidArgument: the replica broke the rules.
  result<void> replied(RankId replica, AdvanceReply reply, TimePoint now);

  // ---- rewards and environments ----
  bool has_score_jobs() const { return !score_queue_.empty(); }
  std::vector<ScoreJob> next_score_jobs(std::int64_t most);
  /// `row`: one row of reward columns.
  result<void> scored(SampleId sample, runtime::Batch row, TimePoint now);
  void score_failed(SampleId sample, const Error& error, TimePoint now);
  bool has_environment_jobs() const { return !turn_queue_.empty(); }
  std::vector<EnvironmentJob> next_environment_jobs(std::int64_t most);
  result<void> answered(std::uint64_t attempt, EnvironmentAnswer answer, TimePoint now);
  void environment_failed(std::uint64_t attempt, const Error& error, TimePoint now);

  // ---- steps ----
  /// Opens a round when rounds are on and it is time for one; `waits`: the trainer does.
  void pace(bool waits, TimePoint now);
  void tick(TimePoint now);
  /// Groups that may be taken now for the step under way.
  std::int64_t ready() const;
  std::int64_t wanted() const { return ledger_.wanted(); }
  /// Nothing more will come for this step.
  bool dry() const;
  /// At most `most`, by issue number; numbered in the batch from what the step has already.
  struct Taken {
    std::vector<TakenGroup> groups{};
    std::vector<BatchGroup> rows{};
    std::int64_t first = 0;  ///< place of the first in the step
  };
  Taken take(std::int64_t most, TimePoint now);
  result<StepAccount> end_step();
  /// The step failed: its groups may be taken again.
  void abandon_step();
  result<void> published(WeightVersion version, TimePoint now);

  // ---- views ----
  /// An error that ends the run: starved, barren, broken rules.
  const std::optional<Error>& failure() const { return failure_; }
  /// What holds the oldest group back, and what holds issue back.
  std::string explain(TimePoint now) const;
  /// Samples that wait for a replica or run on one.
  std::int64_t generating() const;
  /// Counts events that brought something closer to its end.
  std::uint64_t progress() const { return progress_; }
  const StalenessLedger& ledger() const { return ledger_; }
  const RolloutDispatcher& dispatcher() const { return dispatcher_; }
  const RolloutCounts& counts() const { return counts_; }
  const RolloutOptions& options() const { return options_; }
  /// CHECKs what must hold between ledger, dispatcher and trajectories; O(open).
  void check_invariants() const;

 private:
  struct Sample {
    Trajectory start{};                              ///< nothing generated
    std::map<std::uint64_t, Trajectory> partials{};  ///< by attempt; 0: what it was issued with
    bool whole = false;                              ///< `partials` has its end only
    std::optional<runtime::Batch> reward{};
    /// The trajectory of a whole one, or the longest there is.
    const Trajectory& best() const;
  };
  struct Group {
    GroupTicket ticket{};
    runtime::Batch row{};
    std::vector<Sample> samples{};
    std::vector<std::uint32_t> winners{};  ///< of a complete one
  };
  enum class Stage : std::uint8_t { kOutbox, kReplica, kEnvironment };
  struct Attempt {
    SampleId sample{};
    RankId replica{};
    Stage stage = Stage::kOutbox;
    bool asked_back = false;
  };
  struct Replica {
    ReplicaInfo info{};
    bool held = false;
    std::vector<std::uint64_t> starts{};
    std::vector<std::uint64_t> stops{};
    std::set<std::uint64_t> running{};
    // What it said that it would take, and what was sent to it since.
    std::int64_t samples_free = 0;
    std::int64_t tokens_free = 0;
    std::int64_t samples_sent = 0;
    std::int64_t tokens_sent = 0;
  };

  RolloutBook(const RolloutOptions& options, StalenessLedger ledger, RolloutDispatcher dispatcher);
  result<void> restore_group(SavedBook& saved, std::size_t place);
  /// The reward as the dispatcher compares it: equal numbers are equal.
  static result<std::int64_t> score_of(const runtime::Batch& reward);
  /// Events that come up while one is being handled wait for it.
  void send(DispatchEvent event);
  void at(TimePoint now) { now_ = std::max(now_, now); }
  void on(const StartSample& effect);
  void on(const StopAttempt& effect);
  void on(const ScoreSample& effect);
  void on(const GroupComplete& effect);
  void on(const GroupDropped& effect);
  void on(const GroupRefused& effect) { fail_with(effect.error); }
  void on(const RankRefused& effect) { fail_with(effect.error); }
  void on(const RoundBegan&) {}
  void on(const RoundEnded&) {}
  void on(const RankReleased&) { ++counts_.released; }
  void on(const Starved& effect) { fail_with(effect.error); }

  result<void> take_news(RankId replica, SampleNews& news);
  void end_attempt(std::uint64_t attempt, AttemptOutcome outcome, std::int64_t tokens);
  void finish_turn(std::uint64_t attempt);
  void open_round(bool waits);
  std::vector<Sample> samples_of(const GroupTicket& ticket, const runtime::Batch& row) const;
  void cancelled(const std::vector<CancelRecord>& records);
  /// The group will not be trained: something of it failed for good.
  void give_up(std::uint64_t group, Error error);
  void pull(RankId replica);
  RankPulls pulls_of(RankId replica) const;
  void fail_with(Error error);
  Sample* find(SampleId id);
  const Sample* find(SampleId id) const;
  /// Null when nobody wants the attempt's tokens any more.
  Trajectory* partial_of(std::uint64_t attempt);
  const Trajectory* partial_of(std::uint64_t attempt) const;

  RolloutOptions options_;
  StalenessLedger ledger_;
  RolloutDispatcher dispatcher_;
  std::map<std::uint64_t, Group> groups_;
  std::map<std::uint64_t, Attempt> attempts_;
  std::map<RankId, Replica> replicas_;
  std::deque<SampleId> score_queue_;
  std::deque<std::uint64_t> turn_queue_;
  std::deque<DispatchEvent> events_;
  bool handling_ = false;
  TimePoint now_{};
  std::vector<std::uint64_t> taken_;  ///< groups of the step under way
  std::int64_t rounds_ = 0;           ///< opened
  std::uint64_t progress_ = 0;
  runtime::Batch unissued_;
  std::optional<Error> failure_;
  std::optional<Error> last_error_;  ///< of an attempt, a reward or an environment
  RolloutCounts counts_;
};

}  // namespace troupe::actors
