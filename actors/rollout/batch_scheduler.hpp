#pragma once

// Decides which tokens of which sequences run in the next step. Pure: no model, clock or thread.
//
// One step takes up to `step_tokens` tokens. Running sequences come first, each decode with one
// token; what is left goes to prefills in order of arrival, chunked. Then groups are admitted in
// order of arrival: a group's prompt is prefilled once (its trunk) and its members fork from it. A
// group that comes later with the same prompt takes its KV, but for the last token, from a sequence
// that still runs; only where the very same weights computed it, so that it changes no bit.
// When blocks run out, the youngest holder loses its blocks and waits to be recomputed.
// **Ownership:** borrows groups and the pool; the caller keeps a group alive until `take_retired`
// hands it back.
// **Threads:** one thread.
// **Invariants:** a step is empty only when nothing is queued or all that is queued is paused; in
// every step the oldest running sequence, or an older queued one, advances, and a queued group is
// never overtaken by one that has not begun: so none starves, given that each sequence fits the
// pool alone (the caller's check at submission).
// **Cost:** O(running + admitted) per step; abort O(1) plus its blocks.

#include "actors/rollout/block_pool.hpp"
#include "actors/rollout/sequence.hpp"

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace troupe::actors {

struct SchedulerLimits {
  std::int32_t running_sequences = 256;
  std::int32_t step_tokens = 2048;  ///< ≥ running_sequences
};

/// Run tokens [computed, computed + tokens) of a sequence.
struct ScheduledRun {
  Sequence* sequence = nullptr;
  std::int32_t tokens = 0;
  bool completes() const { return tokens == sequence->pending(); }
};

struct StepPlan {
  std::vector<BlockCopy> copies;  ///< in this order, before any run
  std::vector<ScheduledRun> runs;
  std::int32_t tokens = 0;
  void clear() {
    copies.clear();
    runs.clear();
    tokens = 0;
  }
};

struct SchedulerCounts {
  std::int64_t preemptions = 0;
  std::int64_t forks = 0;
  std::int64_t prefix_tokens_shared = 0;
};

class BatchScheduler {
 public:
  BatchScheduler(SchedulerLimits limits, BlockPool& pool) : limits_(limits), pool_(&pool) {}

  /// Queues a group whose members are all waiting or finished, at least one waiting.
  void submit(PromptGroup& group);

  /// Fills `plan` (cleared first). Its sequences stay valid until the next call.
  void next_step(StepPlan& plan);

  /// Adds the run's tokens to `computed`.
  void complete(const ScheduledRun& run);

  /// Ends a member: frees its blocks and, with the last one, its group.
  void finish(Sequence& sequence);

  /// Takes the blocks of a running sequence away; it will be recomputed.
  void preempt(Sequence& sequence);
  void preempt_all();

  /// Ends the use of all KV computed so far: sequences that hold some must have been preempted or
  /// have finished. Runs of a later step are CHECKed to be of the present era.
  void new_era() { ++era_; }
  /// Other weights from here on, whatever becomes of KV: prompts computed before are not shared
  /// with groups that start from now on.
  void new_weights() { ++weights_; }
  std::int64_t era() const { return era_; }

  /// While paused, groups that have not begun stay queued.
  void pause_new_groups(bool paused) { paused_ = paused; }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  /// Groups that have begun and are not finished exist.
  bool has_begun() const;
  /// Some sequence holds blocks.
  bool holds_kv() const;

  /// Groups whose members are all finished and to which no plan refers any more.
  std::vector<PromptGroup*> take_retired();

  const SchedulerCounts& counts() const { return counts_; }
  void reset_counts() { counts_ = {}; }
  std::int64_t running_members() const { return running_members_; }
  /// CHECKs states, counts and block tables against each other.
  void check_invariants() const;

 private:
  void drop_stopped();
  void schedule_running(StepPlan& plan);
  void admit(StepPlan& plan);
  bool start_trunk(PromptGroup& group, std::int64_t committed, StepPlan& plan);
  bool fork_member(PromptGroup& group, StepPlan& plan, bool take_trunk);
  void take_prompt(Sequence& trunk, StepPlan& plan);
  const Sequence* prompt_holder(const PromptGroup& group) const;
  void force_progress(StepPlan& plan);
  bool make_room(Sequence& sequence, std::int64_t tokens);
  Sequence* youngest_holder(const Sequence* except);
  void start_running(Sequence& sequence);
  void settle_waiting(PromptGroup& group);
  void add_run(Sequence& sequence, std::int32_t tokens, StepPlan& plan);
  std::int32_t room(const StepPlan& plan) const { return limits_.step_tokens - plan.tokens; }

  SchedulerLimits limits_;
  BlockPool* pool_;
  std::vector<Sequence*> running_;  // by priority; may hold stopped ones until drop_stopped
  std::map<std::int64_t, PromptGroup*> waiting_;  // by arrival: groups with waiting members
  std::unordered_multimap<std::uint64_t, PromptGroup*> by_prompt_;  // unfinished, with a key
  std::vector<PromptGroup*> retired_;
  std::int64_t running_members_ = 0;
  std::int64_t era_ = 0;
  std::int64_t weights_ = 0;
  bool paused_ = false;
  bool preempted_ = false;  // in the current step
  SchedulerCounts counts_;
};

}  // namespace troupe::actors
