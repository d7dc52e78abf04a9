#pragma once

// Trains one decoder on packed sequences over the ranks of a `Collective`: data-parallel, and cut
// by tensors, pipeline stages and shards as `ParallelOptions` say (docs/training_parallel.md).
//
// Every rank holds f32 weights, all or its part of them (they are the optimizer's masters: no
// second copy), and works on the sequences of its dp coordinate; gradients are summed over ranks in
// rank order and every loss is divided by the true global token or sequence counts, so results do
// not depend on the mesh, the micro-batching or the order of packing beyond float rounding (tested
// at 1e-5 relative). All ranks of one dp coordinate must be given the same sequences and return the
// same results. LibTorch stays behind the pimpl.
//
// **Ownership:** owns weights, gradients and moments; borrows the `Collective`, which must outlive
// it. Spans returned by `weights()` and `state()` point into the engine.
// **Threads:** one thread at a time; it sets LibTorch's intra-op threads of the calling thread.
// **Collectives:** every rank must make the same calls in the same order, also with zero
// sequences. On whole engines updates make a fixed number of collectives whatever a rank's share
// is, `log_probs` and `values` none; on cut ones all calls but the getters are collective. A rank
// that rejects its input tells its peers: they return kAborted. What fails inside a part of the
// mesh ends the collective for all, until `rebuild`; the next call then cuts the parts anew.
// **Invariants:** deterministic: same inputs, ranks and budget give the same bits; state(), then
// load_state() in a fresh engine, continues with the same bits.
// **Cost:** bench/train prints tokens/s.

#include "actors/algorithm/objective.hpp"
#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/processed_distribution.hpp"
#include "actors/algorithm/value_loss.hpp"
#include "actors/model/hf_folder.hpp"
#include "actors/model/model_config.hpp"
#include "actors/train/packed_sequences.hpp"
#include "actors/train/sharded_state.hpp"
#include "actors/train/train_options.hpp"
#include "reshard/layout.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/comm/collective.hpp"
#include "runtime/observe/metrics.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::actors {

/// Response-packed results of a forward pass; `entropy` is empty unless asked for.
struct TokenLogProbs {
  std::vector<float> log_probs;  ///< natural log, of the distribution that was asked for
  std::vector<float> entropy;    ///< nats, of softmax(logits / temperature), never cut
};

/// Everything `update_policy` needs besides the sequences; spans are response-packed [tokens of
/// this rank's share] unless said. The loss is `policy_objective`: policy loss − c_H · entropy +
/// c_KL · KL(π ‖ π_ref), each aggregated over the mini-batch of all ranks.
struct PolicyUpdate {
  std::span<const float> old_log_probs = {};  ///< of the proximal policy
  std::span<const float> advantages = {};
  std::span<const std::uint8_t> mask = {};          ///< 1 = trained on; empty = all ones
  std::span<const float> reference_log_probs = {};  ///< empty = no KL; required when c_KL ≠ 0
  std::span<const float> rollout_weights = {};  ///< importance weights (constants); empty = ones
  /// Of the policy that sampled; required by losses that read it and by `reports_ratios`.
  std::span<const float> rollout_log_probs = {};
  std::span<const float> proximal_alphas = {};  ///< of proximal.hpp; empty = no interpolation
  std::span<const std::int64_t> sequence_ids =
      {};  ///< [S], for losses that select tokens; else empty
  float temperature = 1.0F;
  /// How sampling cut the distribution that all log-probs above are of; its temperature is unread.
  SamplingTransform cut = {};
  PolicyLoss loss = {};  ///< from a PolicyLossRegistry; the same on all ranks, as all numbers below
  PolicyObjectiveOptions objective = {};
  double loss_scale_factor = 0;  ///< of LossAggregation::kSeqMeanTokenSumNorm
  /// Metrics rollout_corr/… of the current policy against rollout_log_probs (add_ratio_metrics).
  bool reports_ratios = false;

  SamplingTransform transform() const {
    SamplingTransform whole = cut;
    whole.temperature = static_cast<double>(temperature);
    return whole;
  }
};

struct ValueUpdate {
  std::span<const float> returns = {};
  std::span<const float> old_values = {};   ///< may be empty when options.clip is 0
  std::span<const std::uint8_t> mask = {};  ///< empty = all ones
  ValueLossOptions options = {};
  double loss_scale_factor = 0;
};

/// Borrowed view of everything that makes training continue: counters as JSON text, and f32
/// tensors named `weights/…`, `adam_m/…`, `adam_v/…` in canonical order.
struct TrainState {
  std::string json;
  std::vector<NamedTensor> tensors;
};

class TrainEngine {
 public:
  struct Impl;  ///< of train_engine_impl.hpp

  /// Copies its part of `weights`, which are whole (canonical names; a critic may lack
  /// `value_head.weight`, which then starts at zero, and need not have `lm_head.weight`).
  /// `collective` = nullptr is a single rank. Collective when the mesh cuts the model.
  /// Errors: kConfig (options), kNotFound / kInvalidArgument naming the tensor.
  static result<std::unique_ptr<TrainEngine>> create(const ModelConfig& config,
                                                     std::span<const NamedTensor> weights,
                                                     TrainEngineOptions options,
                                                     runtime::Collective* collective = nullptr);
  ~TrainEngine();
  TrainEngine(const TrainEngine&) = delete;
  TrainEngine& operator=(const TrainEngine&) = delete;

  /// Per response token, no gradient, no collective. Same numbers as inside `update_policy`
  /// up to float rounding; other micro-batching changes them by rounding of the GEMM only.
  result<TokenLogProbs> log_probs(const PackedSequences& sequences, float temperature,
                                  bool want_entropy = false) {
    return log_probs(sequences, {.temperature = static_cast<double>(temperature)}, want_entropy);
  }
  /// The same of the distribution that `transform` makes: processed_distribution.hpp.
  result<TokenLogProbs> log_probs(const PackedSequences& sequences,
                                  const SamplingTransform& transform, bool want_entropy = false);

  /// One optimizer step on one mini-batch (this rank's share of it). Skips the step on every rank
  /// when the global gradient is not finite (`actor/step_skipped` = 1). Metrics are this rank's,
  /// with weights, so that merging those of all ranks (and mini-batches) gives the global means:
  /// actor/loss, actor/pg_loss, actor/entropy, actor/kl_loss (with a reference), actor/ppo_kl,
  /// actor/pg_clipfrac, … of the objective; actor/grad_norm, actor/lr, actor/step_skipped (equal on
  /// all ranks); actor/tokens, actor/micro_batches (sums).
  /// Losses that select tokens cost one more forward pass and one more collective.
  result<runtime::Metrics> update_policy(const PackedSequences& sequences,
                                         const PolicyUpdate& update);

  /// Critic: value of the state before each response token, response-packed; no collective.
  result<std::vector<float>> values(const PackedSequences& sequences);

  /// Critic: one optimizer step. Metrics critic/vf_loss, critic/vf_clipfrac, critic/vpred_mean,
  /// critic/grad_norm, critic/lr, critic/step_skipped.
  result<runtime::Metrics> update_value(const PackedSequences& sequences,
                                        const ValueUpdate& update);

  /// A streamed step: adds the gradients of a part of the step, with denominators that
  /// `finish_step` knows; weights stay as they are. The first part opens the step; every part must
  /// have the same head, aggregation and scale factor. Parts in the same order give the same bits;
  /// cut or ordered otherwise, and against one `update_policy`, results differ by f32 rounding of
  /// the sum. `old_log_probs` may be empty: then the proximal policy is the one being trained, as
  /// its own forward pass sees it (ratio 1). Metrics actor/tokens, actor/micro_batches (sums).
  /// Errors before anything was added (inputs, on any rank: kAborted on the others) leave the step
  /// as it was; later ones break it, and only `abandon_step` is accepted then. kUnsupported for
  /// losses that select tokens. Two collectives, and those of a cut model.
  result<runtime::Metrics> accumulate_policy(const PackedSequences& sequences,
                                             const PolicyUpdate& update);
  /// Critic: the same; no metrics.
  result<runtime::Metrics> accumulate_value(const PackedSequences& sequences,
                                            const ValueUpdate& update);
  /// Divides by the counts of all parts of all ranks, sums over ranks, clips and steps, as one
  /// update does; closes the step. Metrics: the rest of what `update_policy` or `update_value`
  /// reports. kInvalidArgument when no step is open; a failure breaks the step.
  result<runtime::Metrics> finish_step();
  /// Forgets the open step, if any: weights, moments and counters are those before it. Local.
  void abandon_step();
  /// While a step is open, updates and `set_weights` are refused (kConflict), `load_state` and
  /// `load_pieces` abandon it, and `offload` keeps the gradients.
  bool step_is_open() const;

  /// Token-mean cross-entropy of response tokens with mask 1 (empty = all); one optimizer step.
  /// Metrics train/loss, train/grad_norm, train/lr, train/step_skipped, train/tokens.
  result<runtime::Metrics> update_sft(const PackedSequences& sequences,
                                      std::span<const std::uint8_t> mask = {});

  /// Mean cross-entropy over the masked response tokens of ALL ranks, without an update; two
  /// collectives. 0 when there is no token.
  result<double> sft_loss(const PackedSequences& sequences,
                          std::span<const std::uint8_t> mask = {});

  /// Views in canonical order (`expected_tensors`, plus `value_head.weight` for a critic, minus
  /// its `lm_head.weight`). They follow later updates; copy to keep a version. CHECKs that this
  /// rank holds them all.
  std::span<const NamedTensor> weights() const;
  /// Copies what this rank holds from `source`, which has whole tensors; extra names are ignored.
  /// All or nothing.
  result<void> set_weights(std::span<const NamedTensor> source);

  std::int64_t optimizer_steps() const;  ///< updates done, skipped ones not counted
  std::int64_t parameter_count() const;
  const ModelConfig& config() const;
  const TrainEngineOptions& options() const;

  /// Does every rank hold all weights and moments (no tensor or pipeline cut, no sharding).
  bool is_whole() const;
  /// Of a whole engine (CHECKed); sharded ones give pieces.
  TrainState state() const;
  /// Restores counters, weights and moments exactly. All or nothing; errors name the tensor. Takes
  /// whole tensors on any mesh.
  result<void> load_state(const std::string& json, std::span<const NamedTensor> tensors);

  /// Counters as JSON text; of a sharded engine also the mesh that it runs on.
  std::string state_json() const;
  /// What this rank gives to a checkpoint: those of all ranks cover every tensor of `state()`
  /// exactly once. None on ranks that hold a further copy. They view the buffers.
  std::vector<StatePiece> state_pieces() const;
  /// The same of the weights alone.
  std::vector<StatePiece> weight_pieces() const;
  /// All that this rank holds, and thus needs when it loads.
  std::vector<StatePiece> held_pieces() const;
  /// As load_state, from pieces cut for any mesh; they must cover what this rank holds once, and
  /// others are ignored.
  result<void> load_pieces(const std::string& json, std::span<const StatePiece> pieces);

  /// The canonical tensors that `layout()` points into, in the order of `expected_tensors`.
  std::vector<reshard::TensorInfo> tensors() const;
  /// Where the weights lie in `buffers()`; rank is that of the collective, node 0. Fixed for life.
  reshard::RankLayout layout() const;
  /// The f32 weights of this rank; addresses are stable for life.
  std::span<const std::span<const float>> buffers() const;

  TrainMemory memory() const;
  /// Gives back what is not needed between updates (the gradient buffer). On CPU, device memory
  /// is host memory, so weights and moments stay. Returns the bytes freed; the next update takes
  /// them again.
  Bytes offload();
  void onload();

 private:
  explicit TrainEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// GFLOP/s of one 256×256×256 f32 matrix product on one thread, best of a few (~20 ms in all).
double gemm_gigaflops();

/// Warns in the log, naming the package to install, when gemm_gigaflops() is below
/// `kSlowGemmGigaflops`; returns the rate. Call once at start-up.
double gemm_self_test();

/// The reference BLAS reaches 2–3 GFLOP/s on one core, OpenBLAS 40–90 (engines.md §8).
inline constexpr double kSlowGemmGigaflops = 10.0;

}  // namespace troupe::actors
