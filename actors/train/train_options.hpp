#pragma once

// What a train engine is told at creation, and what it reports about its memory.
//
// **Threads:** plain values. **Ownership:** none.

#include "actors/model/model_config.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

namespace troupe::actors {

enum class LrSchedule { kConstant, kLinear, kCosine };

/// `constant`, `linear`, `cosine`; kConfig for another name.
result<LrSchedule> lr_schedule_from_name(std::string_view name);

/// AdamW as Loshchilov & Hutter, "Decoupled weight decay regularization" (ICLR'19), algorithm 2
/// with torch.optim.AdamW's order: p ← p·(1 − lr·wd); then p ← p − lr/(1−β1^t)·m / (√v/√(1−β2^t)
/// + eps). One-dimensional tensors (norms, biases) are not decayed.
struct OptimizerOptions {
  double lr = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double grad_norm_max = 1.0;  ///< clip to this global L2 norm; ≤ 0 does not clip
  LrSchedule schedule = LrSchedule::kConstant;
  std::int64_t warmup_steps = 0;  ///< lr rises linearly: step t < warmup uses lr·(t+1)/warmup
  std::int64_t total_steps = 0;   ///< length of linear and cosine decay; must exceed warmup then
  double lr_min_ratio = 0.0;      ///< decay ends at lr·lr_min_ratio and stays there

  bool operator==(const OptimizerOptions&) const = default;
};

/// Learning rate of 0-based optimizer step `step`.
double learning_rate(const OptimizerOptions& options, std::int64_t step);

enum class ModelHead {
  kLanguage,  ///< logits over the vocabulary: policy, reference
  kValue,     ///< one number per token: critic; weight `value_head.weight` [1, H], no bias
};

/// What of the data-parallel copies is cut: nothing, the optimizer's moments (ZeRO-1), or weights,
/// gradients and moments (fully sharded, ZeRO-3).
enum class Sharding { kNone, kZero1, kFsdp };

/// How one model is cut over the ranks of a group. Ranks are numbered (pp·D + dp)·tp + tp rank with
/// D = ranks / (tp·pp): mesh {pp, dp, tp}. All ranks of one dp coordinate get the same sequences.
struct ParallelOptions {
  int tp = 1;              ///< ranks that share every matrix
  int pp = 1;              ///< pipeline stages
  int virtual_stages = 1;  ///< runs of layers per pipeline stage (interleaved 1F1B)
  Sharding sharding = Sharding::kNone;
  int shard_ranks = 0;  ///< 0: all of dp; else contiguous groups of so many inside dp (HSDP)
  /// Layers of each run in execution order, pp·virtual_stages numbers that sum to all layers; run
  /// r lies on stage r mod pp. Empty: as even as possible, the first runs take the rest.
  std::vector<std::int64_t> stage_layers = {};

  bool operator==(const ParallelOptions&) const = default;
};

struct TrainEngineOptions {
  ModelHead head = ModelHead::kLanguage;
  bool trainable = true;  ///< false: no gradient and no optimizer memory (reference policy)
  OptimizerOptions optimizer;
  bool recompute = false;  ///< keep only each layer's input; run the layer again in backward
  /// Hard cap of one micro-batch; a longer sequence is refused, never truncated or let through.
  std::int64_t micro_batch_tokens_max = 8192;
  /// The same for passes without gradients (`log_probs`, `values`); 0: micro_batch_tokens_max.
  std::int64_t forward_tokens_max = 0;
  /// Sequences of equal prompts hold them once (micro_batch.hpp). The same up to rounding.
  bool share_prompts = true;
  std::int64_t logit_chunk_tokens = 1024;  ///< logits held at a time: this × vocabulary floats
  std::uint64_t seed = 0;
  int threads = 1;  ///< intra-op threads of the thread that runs the engine
  Duration collective_timeout = std::chrono::minutes(10);
  ParallelOptions parallel = {};
};

/// kConfig naming the option and its value when one is out of range.
result<void> check_options(const TrainEngineOptions& options);

/// kConfig naming both numbers when `model` cannot be cut so over `ranks` ranks: heads and mlp
/// width must divide by tp; kv heads must too, or tp by them (then each is held tp / kv heads
/// times); a run needs a layer. The vocabulary may be uneven.
result<void> check_parallel(const ModelConfig& model, const ParallelOptions& parallel, int ranks);

/// Layers [begin, end) of each run (see ParallelOptions::stage_layers), pp·virtual_stages of them.
struct LayerRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const LayerRun&) const = default;
};
std::vector<LayerRun> layer_runs(const ModelConfig& model, const ParallelOptions& parallel);

/// Bytes that this rank holds now, for the memory ledger. Counted from the buffers themselves.
struct TrainMemory {
  Bytes weights;           ///< fp32; they are the optimizer's masters too, there is no second copy
  Bytes gradients;         ///< fp32; 0 after `offload` until the next update
  Bytes optimizer;         ///< two fp32 moments; 0 when not trainable
  Bytes activations_peak;  ///< most bytes saved for backward by one micro-batch so far; with
                           ///< pipeline stages, by all that were in flight at once
  /// Most micro-batches that were in flight at once so far, counted once per run of layers.
  std::int64_t micro_batches_peak = 0;
  Bytes gathered;       ///< of units gathered from other ranks, with fully sharded weights
  Bytes gathered_peak;  ///< the most of that so far
  Bytes total() const { return weights + gradients + optimizer + activations_peak + gathered; }
};

}  // namespace troupe::actors
