#pragma once

// What a train engine is told at creation, and what it reports about its memory.
//
// **Threads:** plain values. **Ownership:** none.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <chrono>
#include <cstdint>
#include <string_view>

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

struct TrainEngineOptions {
  ModelHead head = ModelHead::kLanguage;
  bool trainable = true;  ///< false: no gradient and no optimizer memory (reference policy)
  OptimizerOptions optimizer;
  bool recompute = false;  ///< keep only each layer's input; run the layer again in backward
  /// Hard cap of one micro-batch; a longer sequence is refused, never truncated or let through.
  std::int64_t micro_batch_tokens_max = 8192;
  /// The same for passes without gradients (`log_probs`, `values`); 0: micro_batch_tokens_max.
  std::int64_t forward_tokens_max = 0;
  std::int64_t logit_chunk_tokens = 1024;  ///< logits held at a time: this × vocabulary floats
  std::uint64_t seed = 0;
  int threads = 1;  ///< intra-op threads of the thread that runs the engine
  Duration collective_timeout = std::chrono::minutes(10);
};

/// kConfig naming the option and its value when one is out of range.
result<void> check_options(const TrainEngineOptions& options);

/// Bytes that this rank holds now, for the memory ledger. Counted from the buffers themselves.
struct TrainMemory {
  Bytes weights;           ///< fp32; they are the optimizer's masters too, there is no second copy
  Bytes gradients;         ///< fp32; 0 after `offload` until the next update
  Bytes optimizer;         ///< two fp32 moments; 0 when not trainable
  Bytes activations_peak;  ///< most bytes saved for backward by one micro-batch so far
  Bytes total() const { return weights + gradients + optimizer + activations_peak; }
};

}  // namespace troupe::actors
