#pragma once

// Inside of the rollout engine: requests become groups of sequences, steps run them, finished
// sequences become results.
//
// **Ownership:** owns weights, cache, groups; the scheduler borrows the groups.
// **Threads:** one thread.
// **Invariants:** `by_id_` holds exactly the unfinished sequences; with ranks, whatever changes
// what later steps do is added to `history_`, which all ranks compare before each step.

#include "actors/rollout/batch_scheduler.hpp"
#include "actors/rollout/digest.hpp"
#include "actors/rollout/kv_cache.hpp"
#include "actors/rollout/model_runner.hpp"
#include "actors/rollout/model_share.hpp"
#include "actors/rollout/rank_agreement.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "actors/rollout/sampler.hpp"
#include "actors/rollout/weight_store.hpp"

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace troupe::actors {

/// Fills in what was left 0 and checks the rest against this rank's share and this machine.
result<EngineOptions> resolve_options(const ModelConfig& config, const ModelShare& share,
                                      EngineOptions options);

/// What one rank works with.
struct EnginePlace {
  ModelShare share;
  EngineOptions options;                 ///< resolved, the same on all ranks
  std::unique_ptr<RankAgreement> ranks;  ///< null for an engine of one rank
};

/// Cuts the model, resolves the options and, with ranks, agrees on them.
result<EnginePlace> find_place(const ModelConfig& config, EngineOptions options,
                               runtime::Collective* tp);

/// Of everything that decides what a request generates.
Digest digest_of(const GenerateRequest& request);

class RolloutEngine::Impl {
 public:
  Impl(const ModelConfig& config, EnginePlace place);

  result<void> load_weights(std::span<const NamedTensor> tensors, WeightVersion version,
                            WeightUpdate update);
  result<void> begin_update(WeightVersion version) { return store_.begin(version); }
  result<void> write(std::string_view tensor, const reshard::Box& box, const float* data,
                     std::int64_t row_stride) {
    return store_.write(tensor, box, data, row_stride);
  }
  result<void> commit_update(WeightUpdate update);
  void abort_update() { store_.abort(); }
  result<void> drain();
  result<CanaryAnswer> canary(std::span<const std::int32_t> prompt, std::int32_t new_tokens);
  result<void> check(const GenerateRequest& request) const;
  /// Queues a request that passed `check`; only the bound of the queue can refuse it.
  result<std::vector<SequenceId>> submit(GenerateRequest request);
  result<EngineStep> step();
  /// One step; empty when the deadline of this or another rank has passed.
  result<std::optional<EngineStep>> advance(bool expired);
  std::optional<OutputView> output(SequenceId id, std::int64_t from) const;
  result<std::int64_t> smallest(std::int64_t value) {
    return ranks_ ? ranks_->minimum(value) : value;
  }
  std::int64_t kv_tokens_free() const;
  result<std::vector<GeneratedSequence>> generate(std::vector<GenerateRequest> requests,
                                                  Deadline deadline);
  bool abort(SequenceId id);
  void abort_all();
  bool preempt(SequenceId id);
  result<void> sleep(SleepLevel level);
  result<void> wake(MemoryTag tag);
  void release_kv();
  result<void> acquire_kv();
  void release_weights();
  void reset_stats();

  std::vector<GeneratedSequence> take_finished() { return std::exchange(finished_, {}); }
  std::int64_t unfinished() const { return static_cast<std::int64_t>(by_id_.size()); }
  bool has_weights() const { return store_.active() != nullptr; }
  WeightVersion version() const { return store_.version(); }
  reshard::RankLayout layout() const { return layout_of(store_.slots(), share_); }
  bool kv_resident() const { return cache_.resident(); }
  Bytes kv_bytes() const { return cache_.bytes(); }
  Bytes weight_bytes() const { return store_.bytes(); }
  const RolloutStats& stats() const;
  const ModelConfig& config() const { return config_; }
  const EngineOptions& options() const { return options_; }

 private:
  void drop_kv();
  result<void> check_drainable(WeightUpdate update) const;
  result<void> vote(std::string_view what, const result<void>& local, const Digest& subject);
  result<void> check_canary(std::span<const std::int32_t> prompt, std::int32_t new_tokens) const;
  result<CanaryAnswer> run_canary(std::span<const std::int32_t> prompt, std::int32_t new_tokens);

  result<void> run_plan(EngineStep& report);
  result<Verdict> agree(RankClaim claim, const result<void>& ready);
  Digest digest_of_plan() const;
  /// Into the history that ranks compare.
  template <class... Values>
  void note(Values... values) {
    if (ranks_) (history_.add(values), ...);
  }

  void queue_group(const GenerateRequest& request, std::span<const std::size_t> samples,
                   std::vector<SequenceId>& ids);
  std::unique_ptr<Sequence> make_member(PromptGroup& group, const GenerateRequest& request,
                                        std::size_t sample);
  void flatten();
  void count_rows();
  result<void> sample_all(EngineStep& report);
  void sample_run(Sequence& sequence, std::span<const float> logits, EngineStep& report);
  void sample_token(Sequence& sequence, std::span<const float> logits, EngineStep& report);
  void finish(Sequence& sequence, StopReason reason, std::optional<Error> error);
  void retire_groups();

  ModelConfig config_;  // of the whole model
  ModelShare share_;
  EngineOptions options_;
  std::unique_ptr<RankAgreement> ranks_;
  const KernelTable* kernels_;
  BlockPool pool_;
  KvCache cache_;
  BatchScheduler scheduler_;
  ModelRunner runner_;
  Sampler sampler_;
  WeightStore store_;
  Digest history_;

  std::unordered_map<PromptGroup*, std::unique_ptr<PromptGroup>> groups_;
  std::unordered_map<SequenceId, Sequence*> by_id_;
  std::vector<GeneratedSequence> finished_;
  std::int64_t next_id_ = 1;
  std::int64_t next_arrival_ = 0;

  // The step under way.
  StepPlan plan_;
  std::vector<std::int32_t> row_tokens_;
  std::vector<RowRun> row_runs_;
  std::vector<std::int32_t> selected_rows_;
  std::vector<Sequence*> selected_;  // whose next token each selected row gives
  mutable RolloutStats stats_;
};

}  // namespace troupe::actors
