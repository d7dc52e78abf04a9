#pragma once

// Samples that come and go while an engine runs: the rank's side of `advance`
// (actors/loops/streaming.hpp), and of in-flight weight updates.
//
// An attempt is one sequence of the engine. What it got is told from views of the engine's output,
// each token once; when it is stopped or ends it leaves, with all that was not told yet. Samples of
// one group that start together share the prefill of what they have in common.
//
// With a simulated delay an attempt also takes its share of the sample's declared time: of n tokens
// in the end, those that the trajectory did not come with. The engine runs ahead; tokens are told
// at the declared pace, so an attempt that is stopped, or that meets new weights on its way, gives
// up what it should not have had yet, and goes on from there.
// **Ownership:** borrows engine and clock, which outlive it.
// **Threads:** the engine's.
// **Invariants:** a wrong request changes nothing; at most `max_num_seqs` attempts; each ends in
// exactly one piece of news; ranks of one engine that get the same requests answer the same, for
// every decision by time is made by all of them together.
// **Cost:** O(attempts) a slice, O(new tokens) copied; no attempt is looked at in a step in which
// nothing ended.

#include "actors/loops/streaming.hpp"
#include "actors/roles/simulated_delay.hpp"
#include "actors/rollout/rollout_engine.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace troupe::actors {

class RolloutStream {
 public:
  RolloutStream(RolloutEngine& engine, const SimulatedDelay& delay, WaitingClock& clock)
      : engine_(engine), delay_(delay), clock_(clock), version_(engine.version()) {}
  RolloutStream(const RolloutStream&) = delete;
  RolloutStream& operator=(const RolloutStream&) = delete;

  /// One slice, which also ends at `deadline`. Refusals name attempt and values: kInvalidArgument
  /// for a request that makes no sense, kConflict for an attempt that is here already, a trajectory
  /// that cannot go on, or an engine that cannot run, kResourceExhausted beyond `max_num_seqs`.
  /// Other errors are the engine's: attempts stay, and what they got is told the next time.
  /// Collective with ranks.
  result<AdvanceReply> advance(const AdvanceRequest& request, Deadline deadline);

  /// Lets all that has begun come to its end, its declared time included; it is told by the next
  /// `advance`. kDeadline when that takes too long. Collective with ranks.
  result<void> settle(Deadline deadline);

  std::int64_t running() const { return static_cast<std::int64_t>(attempts_.size()); }

 private:
  struct Attempt {
    SequenceId sequence;
    std::int64_t turn_begin = 0;  ///< tokens of the trajectory before the engine's output
    std::int64_t told = 0;        ///< output tokens that the other side has
    bool stopped = false;
    std::optional<GeneratedSequence> whole{};  ///< once the engine is through with it
    // Only with a delay.
    GenerateRequest again{};   ///< to go on elsewhere in the engine, without prefix
    std::int64_t brought = 0;  ///< output tokens that it had when it began
    TimePoint began{};
    Duration lasts{0};  ///< of the whole sample
  };
  using Attempts = std::map<std::uint64_t, Attempt>;
  /// Starts that share a prefill.
  struct Planned {
    std::vector<std::uint64_t> attempts;
    std::vector<Trajectory> trajectories;
    GenerateRequest request;
  };

  result<std::vector<Planned>> plan(const AdvanceRequest& request) const;
  result<void> check_room(const AdvanceRequest& request) const;
  result<void> start(std::vector<Planned> planned);
  void stop(const std::vector<std::uint64_t>& stops);
  void collect();
  result<std::int64_t> run(const AdvanceRequest& request, Deadline deadline);
  result<bool> wait(TimePoint end, Deadline deadline);
  result<void> look_at_clock();
  result<void> meet_new_weights();
  void tell(AdvanceReply& reply);
  SampleNews news_of(std::uint64_t number, Attempt& attempt) const;

  OutputView output(const Attempt& attempt, std::int64_t from) const;
  std::int64_t generated(const Attempt& attempt) const;
  TimePoint over_at(const Attempt& attempt) const;
  bool ended(const Attempt& attempt) const;
  bool any_ended() const;
  std::int64_t due(const Attempt& attempt) const;

  RolloutEngine& engine_;
  const SimulatedDelay delay_;
  WaitingClock& clock_;
  Attempts attempts_;
  std::unordered_map<SequenceId, std::uint64_t> by_sequence_;
  WeightVersion version_;  ///< under which the attempts went on last
  TimePoint now_{};        ///< of all ranks; looked at only with a delay
  Duration waited_{0};     ///< of this slice, for declared time
};

/// Counters of one phase as metrics `rollout/*`, all of them sums.
void add_rollout_stats(const RolloutStats& stats, runtime::Metrics& metrics);

}  // namespace troupe::actors
