#pragma once

// The parts behind `RolloutDispatcher`; only its sources include this.
//
// dispatch_machine.cpp: events of ranks and attempts; dispatch_groups.cpp: groups from issue to
// their end; dispatch_rounds.cpp: rounds and cuts; dispatch_queue.cpp: who starts where, hedges,
// repacking; dispatch_timers.cpp: deadlines; dispatch_checks.cpp: views and invariants.
// **Threads:** one at a time.
// **Invariants:** see rollout_dispatcher.hpp; `saved` tokens are of `saved_attempt`'s partial, and
// every live attempt of a sample began at `saved`; an attempt that is alone folds what it reports
// into `saved` at once.

#include "actors/pacing/length_estimate.hpp"
#include "actors/pacing/rank_router.hpp"
#include "actors/pacing/rollout_dispatcher.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::actors {

enum class SampleStage : std::uint8_t { kWaiting, kRunning, kParked, kScoring, kDone };

/// Place in the queue: class, minus the estimated rest, group, index.
using WaitKey = std::tuple<int, std::int64_t, std::uint64_t, std::uint32_t>;

struct DispatchAttempt {
  SampleId sample{};
  RankId rank{};
  std::int64_t from = 0;    ///< tokens that it began with, or that were folded since
  std::int64_t tokens = 0;  ///< reported
  std::int64_t need = 0;    ///< KV tokens that it was started with room for
  TimePoint started{};
  TimePoint heard{};
  Duration ran_before{0};
  bool stopping = false;
  StopCause cause = StopCause::kDropped;
  TimePoint stop_by{};
  bool ghost = false;  ///< nobody waits for it any more
  WasteReason ghost_reason = WasteReason::kDropped;
};

struct DispatchSample {
  SampleStage stage = SampleStage::kWaiting;
  std::int64_t saved = 0;
  std::uint64_t saved_attempt = 0;
  std::vector<std::uint64_t> live{};
  bool started = false;
  bool cut_short = false;
  Duration ran{0};
  TimePoint scoring_since{};
  std::int32_t retries = 0;
  std::int32_t rank_losses = 0;
  std::int32_t moves = 0;
  std::int64_t score = 0;
  std::optional<RankId> avoid{};  ///< where it stalled last
  WaitKey key{};
  std::int64_t queued_at = 0;  ///< starts so far, when it was queued
};

struct DispatchGroup {
  std::int64_t prompt_tokens = 0;
  GroupLength length{};
  std::vector<DispatchSample> samples{};
  std::vector<std::uint32_t> scored{};  ///< in the order in which scores came
  bool active = true;                   ///< may run now
  bool tail = false;                    ///< waits for a tail round, or runs in one
  bool probed = false;
};

class DispatchMachine {
 public:
  explicit DispatchMachine(const DispatchOptions& options)
      : options_(options), estimate_(options.new_tokens_max) {}

  DispatchEffects step(const DispatchEvent& event, TimePoint now);
  std::optional<TimePoint> next_wake() const;
  DispatchCounts counts() const;
  const TokenAccount& tokens() const { return account_; }
  const LengthBias& length_bias() const { return bias_; }
  std::string explain(TimePoint now) const;
  void check_invariants() const;

 private:
  // Events: dispatch_machine.cpp, but for rounds.
  void on(const GroupIssued& event);
  void on(const RankJoined& event);
  void on(const RankLost& event);
  void on(const RankSuspected& event);
  void on(const RankPulls& event);
  void on(const AttemptProgress& event);
  void on(const AttemptEnded& event);
  void on(const SampleScored& event);
  void on(const ScoreFailed& event);
  void on(const GroupCancelled& event);
  void on(const RoundOpened& event);
  void on(const DispatchTick& event);

  // Attempts.
  void report(DispatchAttempt& attempt, std::int64_t tokens);
  void retire(std::uint64_t number);
  void fold(DispatchSample& sample, std::uint64_t number);
  void settle(DispatchSample& sample);
  void stop(std::uint64_t number, StopCause cause);
  void make_ghost(std::uint64_t number, StopCause cause, WasteReason reason);
  void ghost_others(DispatchSample& sample, std::uint64_t kept);
  void interrupted(std::uint64_t number);
  void go_on_after(SampleId id, std::optional<StopCause> cause);
  void retry(SampleId id, CancelReason reason);

  // Groups: dispatch_groups.cpp.
  DispatchSample* find(SampleId id);
  std::int64_t find_saved(SampleId id) const;
  void seed(std::uint64_t number, DispatchGroup& group, const std::vector<SampleSeed>& seeds);
  void finish_sample(SampleId id);
  void ask_score(SampleId id);
  void scored(SampleId id, std::int64_t score);
  void conclude(std::uint64_t number);
  bool refused_for_variance(const DispatchGroup& group);
  void complete(std::uint64_t number);
  void drop(std::uint64_t number, CancelReason reason);
  void discard(DispatchSample& sample, WasteReason reason);
  void count_started(const DispatchSample& sample);

  // Rounds: dispatch_rounds.cpp.
  void end_round();
  void cut(std::uint64_t number);
  void park(SampleId id, DispatchSample& sample);
  void group_left(bool active, bool was_complete);

  // Queue: dispatch_queue.cpp.
  void enqueue(SampleId id);
  void unqueue(SampleId id, DispatchSample& sample);
  WaitKey key_of(SampleId id, const DispatchSample& sample, DispatchGroup& group) const;
  void rekey(std::uint64_t number);
  std::int64_t need_of(const DispatchGroup& group, const DispatchSample& sample) const;
  void fill();
  bool start_one();
  bool try_start(SampleId id);
  void start(SampleId id, RankId rank);
  void hedge();
  void repack();
  void announce_released();

  // Timers: dispatch_timers.cpp.
  void check_attempt(std::uint64_t number);
  void check_scores();
  void check_sample_deadline(std::uint64_t number);
  Duration ran(const DispatchAttempt& attempt) const;

  template <class Effect>
  void emit(Effect effect) {
    effects_.emplace_back(std::move(effect));
  }

  DispatchOptions options_;
  LengthEstimate estimate_;
  RankRouter router_;
  std::map<std::uint64_t, DispatchGroup> groups_;
  std::map<std::uint64_t, DispatchAttempt> attempts_;
  std::set<WaitKey> waiting_;
  std::set<SampleId> waiting_by_issue_;
  std::set<RankId> announced_;
  std::uint64_t next_attempt_ = 1;
  std::uint64_t next_group_ = 0;  ///< smallest number that was not issued yet
  std::int64_t starts_ = 0;
  bool round_open_ = false;
  bool round_tail_ = false;
  std::int64_t round_wanted_ = 0;
  std::int64_t round_complete_ = 0;
  std::int64_t surplus_ = 0;
  std::int64_t refills_ = 0;
  std::int64_t groups_wanted_ = 1;  ///< of the last round, for the default bound on refills
  bool starved_ = false;
  std::int64_t complete_ = 0;
  std::int64_t dropped_ = 0;
  TokenAccount account_;
  LengthBias bias_;
  TimePoint now_{};
  DispatchEffects effects_;
};

}  // namespace troupe::actors
