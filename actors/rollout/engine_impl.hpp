#pragma once

// Inside of the rollout engine: requests become groups of sequences, steps run them, finished
// sequences become results.
//
// **Ownership:** owns weights, cache, groups; the scheduler borrows the groups.
// **Threads:** one thread.
// **Invariants:** `by_id_` holds exactly the unfinished sequences.

#include "actors/rollout/batch_scheduler.hpp"
#include "actors/rollout/kv_cache.hpp"
#include "actors/rollout/model_runner.hpp"
#include "actors/rollout/packed_weights.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "actors/rollout/sampler.hpp"

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace troupe::actors {

/// Fills in what was left 0 and checks the rest against the model and this machine.
result<EngineOptions> resolve_options(const ModelConfig& config, EngineOptions options);

class RolloutEngine::Impl {
 public:
  /// `options` as resolved.
  Impl(const ModelConfig& config, EngineOptions options);

  result<void> load_weights(std::span<const NamedTensor> tensors, WeightVersion version,
                            WeightUpdate update);
  result<void> check(const GenerateRequest& request) const;
  /// Queues a request that passed `check`; only the bound of the queue can refuse it.
  result<std::vector<SequenceId>> submit(GenerateRequest request);
  result<EngineStep> step();
  result<std::vector<GeneratedSequence>> generate(std::vector<GenerateRequest> requests,
                                                  Deadline deadline);
  bool abort(SequenceId id);
  void abort_all();
  bool preempt(SequenceId id);
  void release_kv();
  result<void> acquire_kv();
  void release_weights();
  void reset_stats();

  std::vector<GeneratedSequence> take_finished() { return std::exchange(finished_, {}); }
  std::int64_t unfinished() const { return static_cast<std::int64_t>(by_id_.size()); }
  bool has_weights() const { return weights_.has_value(); }
  WeightVersion version() const { return version_; }
  bool kv_resident() const { return cache_.resident(); }
  Bytes kv_bytes() const { return cache_.bytes(); }
  Bytes weight_bytes() const { return weights_ ? weights_->bytes() : Bytes{}; }
  const RolloutStats& stats() const;
  const ModelConfig& config() const { return config_; }
  const EngineOptions& options() const { return options_; }

 private:
  result<void> drain();
  void queue_group(const GenerateRequest& request, std::span<const std::size_t> samples,
                   std::vector<SequenceId>& ids);
  std::unique_ptr<Sequence> make_member(PromptGroup& group, const GenerateRequest& request,
                                        std::size_t sample);
  void flatten();
  void count_rows();
  void sample_all(EngineStep& report);
  void sample_run(Sequence& sequence, std::span<const float> logits, EngineStep& report);
  void sample_token(Sequence& sequence, std::span<const float> logits, EngineStep& report);
  void finish(Sequence& sequence, StopReason reason, std::optional<Error> error);
  void retire_groups();

  ModelConfig config_;
  EngineOptions options_;
  const KernelTable* kernels_;
  BlockPool pool_;
  KvCache cache_;
  BatchScheduler scheduler_;
  ModelRunner runner_;
  Sampler sampler_;
  std::optional<PackedWeights> weights_;
  WeightVersion version_;

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
