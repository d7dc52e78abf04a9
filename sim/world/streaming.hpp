#pragma once

// Rollout engines that are advanced slice by slice, as actors/loops/streaming.hpp asks for, on
// virtual time.
//
// Between two slices no time passes, so an engine runs as if it were never stopped. A slice ends
// when a sample does, 20 ms after something happened elsewhere that may bring work (weights landed,
// an environment answered, another replica died), and else after `pacing.slice_max_s`. An engine
// that waits for weights keeps its samples; they go on when the weights have landed. Replicas die
// by draws, and come back with the publication behind their restart.
// **Ownership:** owns the engines; borrows the simulation and the job's world data.
// **Threads:** one.
// **Invariants:** satisfies `actors::StreamingRole`; the tokens of an attempt's pieces add up to
// what its engine generated, each under the version that the engine served then.

#include "actors/loops/streaming.hpp"
#include "sim/rollout/replica.hpp"
#include "sim/world/phase_log.hpp"
#include "sim/world/run_trace.hpp"
#include "sim/world/sample_plan.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace troupe::sim {

/// Of one engine: some are slow.
ReplicaOptions engine_options(const SimJob& job, int replica);

/// What all replicas share.
struct StreamShared {
  Simulation& simulation;
  const SimJob& job;
  const SamplePlan& plan;
  PhaseLog& phases;
  RunTrace& trace;
  double flops = 0;                ///< of samples that ended, each once
  std::optional<Error> failure{};  ///< a sample that no engine can hold
  std::function<void()> nudge{};   ///< something happened that may bring others work
};

class StreamReplica : public Process, private ReplicaListener {
 public:
  static result<std::unique_ptr<StreamReplica>> create(StreamShared& shared, const DecodeCost& cost,
                                                       int index);

  runtime::task<actors::AdvanceReply> advance(actors::AdvanceRequest request);
  runtime::task<void> revive();
  actors::ReplicaInfo info() const;
  bool alive() const { return alive_; }
  const ReplicaStatistics& statistics() const { return engine_->statistics(); }

  /// Weights are on their way: nothing runs until `land`.
  void pause();
  void land(WeightVersion version);
  /// The slice under way ends.
  void end_slice();
  /// What it did up to now goes into the log.
  void flush_phase();

  void on_event(Simulation& simulation, const Event& event) override;
  std::string_view name_of(std::uint32_t kind) const override {
    return kind == kSliceEnd ? "slice ends" : "replica dies";
  }

 private:
  enum Kind : std::uint32_t { kSliceEnd, kDeath };
  struct Chunk {
    std::int32_t tokens = 0;
    WeightVersion version{};
  };
  struct Attempt {
    std::uint64_t group = 0;
    std::uint64_t prompt_id = 0;
    std::uint32_t sample = 0;
    std::int64_t prompt = 0;  ///< real tokens
    std::int64_t had = 0;     ///< real tokens that it came with
    std::int64_t closed = 0;  ///< real tokens in chunks, those included
    std::int64_t told = 0;    ///< chunks of the trajectory that the service knows
    std::int64_t chunks_left = 0;
    bool last_turn = true;
    std::vector<Chunk> chunks{};  ///< not told yet
    TimePoint begin{};
    std::optional<WeightVersion> oldest{};
    WeightVersion newest{};
  };

  StreamReplica(StreamShared& shared, int index) : shared_(shared), index_(index) {}
  void on_finished(Replica& replica, const SimSequence& sequence) override;
  void require_life(std::uint64_t life) const;
  void draw_death();
  void die();
  void start(actors::SampleStart& one, std::vector<actors::SampleNews>& news);
  void stop(std::uint64_t attempt, std::vector<actors::SampleNews>& news);
  void close(Attempt& attempt, std::int64_t generated, bool all, bool last);
  actors::SampleNews news_of(std::uint64_t number, Attempt& attempt) const;
  void end_attempt(std::uint64_t number, Attempt& attempt, std::int64_t generated,
                   std::string_view outcome);
  void collect(std::vector<actors::SampleNews>& news);
  TimePoint now() const { return shared_.simulation.now(); }
  std::int64_t slots() const { return shared_.job.rollout.engine.sequences_max; }

  StreamShared& shared_;
  const int index_;
  std::unique_ptr<Replica> engine_;
  bool alive_ = true;
  bool revived_ = false;  ///< waits for weights
  std::uint64_t life_ = 0;
  WeightVersion version_{0};
  std::map<std::uint64_t, Attempt> attempts_;
  std::vector<SimSequence> finished_;
  std::optional<runtime::completer<int>> slice_;
  EventId slice_end_{};
  EventId death_{};
  std::int64_t steps_told_ = 0;           ///< of the engine when all attempts were last looked at
  std::optional<TimePoint> phase_since_;  ///< busy, or dead
  TimePoint failed_since_{};
};

class SimStreaming : private Process {
 public:
  static result<std::unique_ptr<SimStreaming>> create(Simulation& simulation, const SimJob& job,
                                                      const SamplePlan& plan,
                                                      const DecodeCost& cost, PhaseLog& phases,
                                                      RunTrace& trace);

  std::vector<actors::ReplicaInfo> replicas();
  runtime::task<actors::AdvanceReply> advance(RankId replica, actors::AdvanceRequest request);
  runtime::task<void> revive(RankId replica);

  void pause();
  void land(WeightVersion version);
  void flush_phases();
  /// Slices under way end soon: engines look for new work.
  void nudge();
  std::vector<ReplicaStatistics> statistics() const;
  /// FLOPs of samples that ended, each counted once.
  double flops() const { return shared_.flops; }
  /// Why the run cannot be, where that came out on the way.
  const std::optional<Error>& failure() const { return shared_.failure; }

 private:
  SimStreaming(Simulation& simulation, const SimJob& job, const SamplePlan& plan, PhaseLog& phases,
               RunTrace& trace)
      : shared_{simulation, job, plan, phases, trace, 0, {}, [this] { nudge(); }} {}
  void on_event(Simulation& simulation, const Event& event) override;
  std::string_view name_of(std::uint32_t) const override { return "engines look for work"; }

  StreamShared shared_;
  std::vector<std::unique_ptr<StreamReplica>> replicas_;
  EventId nudge_{};
};

}  // namespace troupe::sim
