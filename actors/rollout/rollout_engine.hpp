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
// With tensor parallelism each rank holds a share of heads, mlp columns and vocabulary
// (model_share.hpp) and every rank makes the same calls in the same order: it schedules the same
// batches and draws the same tokens. Before each step the ranks compare what they are about to do;
// a difference is an error on all of them. With t ranks the bits depend on t by rounding only.
//
// **Ownership:** the engine copies (packs) the weights it is given and owns its KV cache; the
// collective is borrowed and must outlive the engine.
// **Threads:** an engine belongs to one thread; several engines may run side by side. While it
// steps, one other thread may call `write` of an update that is not in place.
// **Invariants:** memory is bounded by `EngineOptions`; a request that could never finish is
// refused at `submit`; a sequence with NaN or infinite logits fails alone; KV computed under one
// version is never read under another but with `WeightUpdate::kKeepKv`.
// **Cost:** `step` does not allocate but for growing outputs; f32 throughout. With ranks: two
// all-reduces per layer, one for the embedding, one gather of logits, one of six numbers.

#include "actors/kernel/kernel_path.hpp"
#include "actors/model/model_config.hpp"
#include "actors/model/weight_set.hpp"
#include "actors/rollout/generate_request.hpp"
#include "actors/rollout/rollout_stats.hpp"
#include "reshard/layout.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"
#include "runtime/fwd.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// Where an update is written.
enum class WeightMemory {
  kDoubleBuffered,  ///< beside the weights that serve: twice the memory from the second update on
  kInPlace,         ///< over them: nothing serves from the first write to the commit
};

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
  WeightMemory weight_memory = WeightMemory::kDoubleBuffered;
  /// Bound on each wait for the other ranks of a tensor-parallel engine.
  Duration tp_timeout = std::chrono::seconds(60);
};

/// What happens to sequences that are under way when the weights change.
enum class WeightUpdate {
  kDrain,      ///< those that have begun finish under the old weights first
  kKeepKv,     ///< they go on with the KV of the old weights (bounded staleness; see `versions`)
  kRecompute,  ///< their KV is recomputed under the new weights
};

/// How much memory `sleep` frees.
enum class SleepLevel {
  kKv = 1,           ///< the KV cache; weights stay
  kWeightsAndKv = 2  ///< both
};

/// What `wake` brings back.
enum class MemoryTag { kWeights, kKv };

/// Greedy tokens of one prompt, to compare engines that should hold the same weights.
struct CanaryAnswer {
  std::vector<std::int32_t> tokens;
  std::vector<float> log_probs;  ///< natural logs at temperature 1
  WeightVersion version;
  bool operator==(const CanaryAnswer&) const = default;
};

/// What an unfinished sequence has generated, from some token on. Views into the engine: they end
/// with the next call that changes it.
struct OutputView {
  std::span<const std::int32_t> tokens;
  std::span<const float> log_probs;
  std::span<const float> full_log_probs;
  std::span<const WeightVersion> versions;
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
  /// kUnsupported for a model or kernel path this build or machine cannot run. With `tp` a
  /// collective call: kInvalidArgument for a model that its size does not divide, kConflict naming
  /// a rank whose model or options differ; the smallest KV cache of all ranks is everybody's.
  static result<std::unique_ptr<RolloutEngine>> create(const ModelConfig& config,
                                                       EngineOptions options,
                                                       runtime::Collective* tp = nullptr);
  ~RolloutEngine();
  RolloutEngine(const RolloutEngine&) = delete;
  RolloutEngine& operator=(const RolloutEngine&) = delete;

  /// Checks every name and shape against `expected_tensors(config)`, then writes the weights as
  /// one update (each rank takes its share of the whole tensors); on an error the old weights
  /// stay. Tokens generated from here on carry `version`. The tensors are not referenced after the
  /// call. May be called between steps. Collective with ranks.
  result<void> load_weights(std::span<const NamedTensor> tensors, WeightVersion version,
                            WeightUpdate update = WeightUpdate::kDrain);
  /// Weights are there and whole.
  bool has_weights() const;
  WeightVersion version() const;

  /// The boxes of canonical tensors (`reshard::canonical_tensors`) that this rank holds, for
  /// planning; `rank` is the tp rank, `node` 0: callers renumber. Its one buffer is a fiction: a
  /// box after the other. Numbers go in through `write`.
  reshard::RankLayout layout() const;
  /// Opens an update to `version`. kConflict while one is open or the weights are asleep.
  result<void> begin_update(WeightVersion version);
  /// Writes box `box` of `tensor`: number (r, c) of the tensor is
  /// data[(r − box.row_begin)·row_stride + c − box.col_begin]. Boxes may come in any order and cut;
  /// each number of `layout()` exactly once. Errors name tensor and box and write nothing:
  /// kNotFound for a name, kInvalidArgument for a box outside of `layout()`, kConflict for numbers
  /// that were written before or no open update.
  result<void> write(std::string_view tensor, const reshard::Box& box, const float* data,
                     std::int64_t row_stride);
  /// Makes the update active on all ranks or on none. kConflict naming tensor and box when a
  /// number is missing (the update stays open). In place, kDrain needs `drain` before the first
  /// write. Collective with ranks.
  result<void> commit_update(WeightUpdate update = WeightUpdate::kDrain);
  /// Forgets the open update, if any. In place, once a number was written, nothing serves until a
  /// whole update is committed.
  void abort_update();
  /// Runs the sequences that have begun to their end; new ones stay queued.
  result<void> drain();

  /// Generates `new_tokens` greedily, apart from all queued sequences: in a KV cache of its own
  /// (freed again), with no trace in results, counters or the scheduler. Runs also while the KV
  /// cache sleeps. Does not stop at stop ids. Collective with ranks.
  result<CanaryAnswer> canary(std::span<const std::int32_t> prompt, std::int32_t new_tokens);

  /// What `submit` would say to it, but for the bound of the queue.
  result<void> check(const GenerateRequest& request) const;
  /// Queues a request; ids are in the order of its samples. kInvalidArgument for a wrong request
  /// (naming field and value), kResourceExhausted for one that can never fit or a full queue.
  result<std::vector<SequenceId>> submit(GenerateRequest request);

  /// Schedules and runs one batch. Nothing queued: returns at once with zero rows.
  /// kConflict without weights or while the KV cache is released.
  result<EngineStep> step();

  /// As `step`, but nothing happens, and the answer is empty, when `expired` is true on some rank:
  /// so that all ranks stop after the same step, whatever their clocks say.
  result<std::optional<EngineStep>> step_unless(bool expired);

  /// Output tokens from `from` on (a resumed prefix counts) of an unfinished sequence; empty when
  /// it is not under way. CHECKs that there are so many.
  std::optional<OutputView> output(SequenceId id, std::int64_t from) const;

  /// The smallest `value` of all ranks. Collective with ranks.
  result<std::int64_t> smallest(std::int64_t value);

  /// Tokens that the KV cache can still take, those of unfinished sequences that wait for their
  /// blocks taken off; at least 0.
  std::int64_t kv_tokens_free() const;

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

  /// Frees memory until `wake`; sequences under way will be recomputed. kConflict when it would
  /// free the weights of an open update.
  result<void> sleep(SleepLevel level);
  /// Order after kWeightsAndKv: weights, an update, KV cache; kConflict says which is missing.
  result<void> wake(MemoryTag tag);

  /// Frees the KV cache memory (sequences under way will be recomputed), and allocates it again
  /// (kConflict while weights sleep or wait for their update).
  void release_kv();
  result<void> acquire_kv();
  bool kv_resident() const;
  /// Frees the packed weights and an open update; `load_weights` brings them back.
  void release_weights();

  Bytes kv_bytes() const;      ///< of the KV cache when resident
  Bytes weight_bytes() const;  ///< of all packed weights that are resident, an update's too

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
