#pragma once

// The rollout engine: generates samples from a decoder with paged KV cache, continuous batching,
// chunked prefill and one prefill per group of samples.
//
// Tokens and log-probs of a sample are a pure function of (weights, prompt, sampling options,
// prompt id, sample index): bit for bit the same whatever else is in the batch, however many
// engines share the work, and whether the sample was chunked, preempted, forked or resumed. Every
// kernel computes a row in one fixed order (actors/kernel), and every draw is keyed
// (runtime/base/rng.hpp).
//
// **Ownership:** the engine copies (packs) the weights it is given and owns its KV cache.
// **Threads:** an engine belongs to one thread; several engines may run side by side.
// **Invariants:** memory is bounded by `EngineOptions`; a request that could never finish is
// refused at `submit`; a sequence with NaN or infinite logits fails alone.
// **Cost:** `step` does not allocate but for growing outputs; f32 throughout.

#include "actors/kernel/kernel_path.hpp"
#include "actors/model/model_config.hpp"
#include "actors/model/weight_set.hpp"
#include "actors/rollout/generate_request.hpp"
#include "actors/rollout/rollout_stats.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::actors {

struct EngineOptions {
  std::int32_t max_model_tokens = 0;  ///< prompt + output bound; 0 = max_position_embeddings
  std::int32_t max_num_seqs = 256;    ///< sequences that hold KV and run in one step
  std::int32_t max_num_batched_tokens = 2048;   ///< rows of one step; ≥ max_num_seqs
  std::int32_t max_queued_sequences = 1 << 20;  ///< bound on unfinished sequences
  std::int32_t kv_blocks = 0;         ///< blocks of 16 tokens; 0 = as many as can be in use
  Bytes kv_bytes_max = gibibytes(1);  ///< bound on the KV cache when `kv_blocks` is 0
  bool share_prompt = true;           ///< one prefill per request; false prefills every sample
  /// Bytes of one token id, for stop strings; ids without text give "". Empty: none allowed.
  std::function<std::string(std::int32_t)> token_bytes = {};
  KernelPath kernel = KernelPath::kAuto;
};

/// What happens to sequences that are under way when the weights change.
enum class WeightUpdate {
  kDrain,      ///< those that have begun finish under the old weights first
  kKeepKv,     ///< they go on with the KV of the old weights (bounded staleness; see `versions`)
  kRecompute,  ///< their KV is recomputed under the new weights
};

/// What one step did.
struct EngineStep {
  std::int32_t rows = 0;  ///< tokens run through the model
  std::int32_t tokens_generated = 0;
  std::int32_t finished = 0;  ///< sequences that ended in this step
};

class RolloutEngine {
 public:
  /// Allocates the KV cache and step buffers. kInvalidArgument for contradictory options,
  /// kUnsupported for a model or kernel path this build or machine cannot run.
  static result<std::unique_ptr<RolloutEngine>> create(const ModelConfig& config,
                                                       EngineOptions options);
  ~RolloutEngine();
  RolloutEngine(const RolloutEngine&) = delete;
  RolloutEngine& operator=(const RolloutEngine&) = delete;

  /// Checks every name and shape against `expected_tensors(config)`, then packs the weights; on
  /// an error the old weights stay. Tokens generated from here on carry `version`. The tensors
  /// are not referenced after the call. May be called between steps.
  result<void> load_weights(std::span<const NamedTensor> tensors, WeightVersion version,
                            WeightUpdate update = WeightUpdate::kDrain);
  bool has_weights() const;
  WeightVersion version() const;

  /// Queues a request; ids are in the order of its samples. kInvalidArgument for a wrong request
  /// (naming field and value), kResourceExhausted for one that can never fit or a full queue.
  result<std::vector<SequenceId>> submit(GenerateRequest request);

  /// Schedules and runs one batch. Nothing queued: returns at once with zero rows.
  /// kConflict without weights or while the KV cache is released.
  result<EngineStep> step();

  /// Sequences that ended since the last call, in the order in which they ended.
  std::vector<GeneratedSequence> take_finished();

  /// Unfinished sequences.
  std::int64_t unfinished() const;

  /// Runs the requests to their end: results in request order, samples in `sample_indices` order.
  /// Refuses all when one is wrong (naming its place). On `deadline` aborts them: kDeadline.
  /// Other sequences under way advance too; their results wait for `take_finished`.
  result<std::vector<GeneratedSequence>> generate(std::vector<GenerateRequest> requests,
                                                  Deadline deadline = Deadline::by_default());

  /// Ends a sequence at once with `kAborted` and its tokens so far; false when it is not under
  /// way. O(1) plus freeing its blocks.
  bool abort(SequenceId id);
  void abort_all();

  /// Takes the KV blocks of a running sequence away and requeues it for recompute, as the
  /// scheduler does when blocks run out; false when it holds none.
  bool preempt(SequenceId id);

  /// Frees the KV cache memory (sequences under way will be recomputed), and allocates it again.
  void release_kv();
  result<void> acquire_kv();
  bool kv_resident() const;
  /// Frees the packed weights too; `load_weights` brings them back.
  void release_weights();

  Bytes kv_bytes() const;      ///< of the KV cache when resident
  Bytes weight_bytes() const;  ///< of the packed weights when resident

  const RolloutStats& stats() const;
  void reset_stats();
  const ModelConfig& config() const;
  const EngineOptions& options() const;

 private:
  class Impl;
  explicit RolloutEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::actors
