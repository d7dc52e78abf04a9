#pragma once

// One rollout engine in the simulator: continuous batching over a paged KV pool, one event per
// change of membership.
//
// Waiting sequences are admitted in order while slots and KV blocks last; samples of a group that
// runs on the same engine share the prompt's blocks and its prefill. Prefill of what is admitted
// runs by itself before decode goes on, and gives no token. Between two changes (a finish, an
// admission, a preemption, new weights) every step makes every running sequence longer by a token,
// so the time of k steps is a closed form and one event stands for all of them. When blocks run out
// the youngest sequence is put back and recomputed later, as engines do.
// **Ownership:** borrows the cost model and the listener.
// **Threads:** one.
// **Invariants:** with `skip = false` each step is an event of its own and all times are the same
// to 1e-9 relative (tests/sim/rollout); blocks in use never exceed the pool; tokens generated are
// the lengths that were asked for.
// **Cost:** O(running) per change of membership.

#include "sim/cost/decode_cost.hpp"
#include "sim/engine/simulation.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace troupe::sim {

struct ReplicaOptions {
  std::int64_t sequences_max = 256;
  std::int64_t kv_tokens = 0;  ///< of the pool, in blocks of 16; 0: what the cost model says
  double watermark = 0.01;     ///< of the pool that admission leaves free
  bool share_prompt = true;    ///< one prefill per group
  bool skip = true;            ///< false: one event per step, for tests
  double slowness = 1;         ///< times as long as the cost model says that everything takes
};

/// A sample to generate; its length is known to the simulator only.
struct SimSequence {
  std::uint64_t id = 0;
  std::uint64_t group = 0;
  std::int64_t prompt = 0;     ///< tokens
  std::int64_t length = 0;     ///< tokens to generate in all, ≥ 1
  std::int64_t generated = 0;  ///< of them already there; their KV is computed again
};

struct ReplicaStatistics {
  std::int64_t steps = 0;              ///< of decode
  std::int64_t tokens = 0;             ///< generated
  std::int64_t prefill_tokens = 0;     ///< computed, recomputed ones too
  std::int64_t recomputed_tokens = 0;  ///< of those: that had been in a cache before
  std::int64_t preemptions = 0;
  std::int64_t finished = 0;
  double busy_s = 0;
  double running_s = 0;   ///< Σ running sequences × time
  double kv_token_s = 0;  ///< Σ tokens in the pool × time
  std::int64_t kv_tokens_peak = 0;
};

class Replica;
class ReplicaListener {
 public:
  virtual ~ReplicaListener() = default;
  virtual void on_finished(Replica& replica, const SimSequence& sequence) = 0;
};

class Replica : public Process {
 public:
  /// kResourceExhausted when the model does not fit, or kInvalidArgument for wrong options.
  static result<std::unique_ptr<Replica>> create(const DecodeCost& cost, ReplicaOptions options,
                                                 ReplicaListener& listener);

  /// kResourceExhausted for a sequence that can never fit; CHECKs length ≥ 1 and generated <
  /// length.
  result<void> submit(Simulation& simulation, const SimSequence& sequence);
  /// Stops a sequence; it is returned with what it has by now. Nothing when it is not here.
  std::optional<SimSequence> stop(Simulation& simulation, std::uint64_t id);
  /// Stops everything, as a weight update that recomputes does before it submits it again.
  std::vector<SimSequence> stop_all(Simulation& simulation);
  /// Nothing runs from the end of the present step until `resume`; KV stays.
  void pause(Simulation& simulation);
  void resume(Simulation& simulation);
  /// Counts the steps that have ended by now, which otherwise happens at the next event. What is
  /// planned stays planned.
  void settle(Simulation& simulation);
  /// Calls `visit(sequence)` for each one that is here, as of the last event or `settle`.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Running& one : running_) visit(one.sequence);
    for (const SimSequence& one : waiting_) visit(one);
  }

  void on_event(Simulation& simulation, const Event& event) override;
  std::string_view name_of(std::uint32_t) const override { return "replica"; }

  bool paused() const { return paused_; }
  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  std::int64_t pool_tokens() const { return pool_blocks_ * kKvBlockTokens; }
  /// KV in use, in whole blocks.
  std::int64_t used_tokens() const { return used_after(0) * kKvBlockTokens; }
  /// KV that is free after what waits has been admitted; at least 0.
  std::int64_t free_tokens() const;
  /// Up to the last event.
  const ReplicaStatistics& statistics() const { return statistics_; }

 private:
  struct Running {
    SimSequence sequence;
    std::int64_t own_tokens = 0;  ///< of KV that it does not share
  };
  /// Steps in a row with the same members. Step i ends at start + steps_s(sequences, cached, i).
  struct Stretch {
    TimePoint start{};
    std::int64_t sequences = 0;
    std::int64_t cached = 0;
    std::int64_t steps = 0;  ///< planned; 0: idle
    std::int64_t done = 0;
    double elapsed_s = 0;  ///< of the steps done, summed one by one; without skipping only
  };

  Replica(const DecodeCost& cost, const ReplicaOptions& options, ReplicaListener& listener,
          std::int64_t pool_blocks)
      : cost_(cost), options_(options), listener_(listener), pool_blocks_(pool_blocks) {}
  static std::int64_t blocks(std::int64_t tokens) {
    return (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
  }
  std::int64_t used_after(std::int64_t steps) const;
  std::int64_t steps_in_pool(std::int64_t most) const;
  TimePoint end_of_step(std::int64_t step) const;
  std::int64_t steps_ended(TimePoint now) const;
  void account(TimePoint now);
  void advance_by(std::int64_t steps);
  void cut(Simulation& simulation);
  void schedule(Simulation& simulation);
  void finish_done();
  double admit();
  bool admissible(const SimSequence& sequence) const;
  void leave(const Running& gone);
  void preempt();
  void plan(Simulation& simulation);

  const DecodeCost& cost_;
  const ReplicaOptions options_;
  ReplicaListener& listener_;
  const std::int64_t pool_blocks_;
  std::deque<SimSequence> waiting_;
  std::vector<Running> running_;  ///< in order of admission
  struct Shared {
    std::int64_t members = 0;
    std::int64_t blocks = 0;
  };
  std::map<std::uint64_t, Shared> groups_;  ///< prompts that running samples share
  std::int64_t shared_blocks_ = 0;
  std::int64_t cached_tokens_ = 0;  ///< attended to, over all running sequences
  bool paused_ = false;
  bool in_event_ = false;
  EventId next_{};
  Stretch stretch_;
  TimePoint accounted_to_{};
  ReplicaStatistics statistics_;
};

}  // namespace troupe::sim
