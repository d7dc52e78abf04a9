#pragma once

// The inside of TrainEngine, shared by its sources. Not for users: it needs LibTorch's headers.
//
// **Threads:** as TrainEngine.

#include "actors/model/decoder.hpp"
#include "actors/train/micro_batch.hpp"
#include "actors/train/sharded_groups.hpp"
#include "actors/train/train_engine.hpp"
#include "actors/train/train_groups.hpp"

#include <functional>
#include <optional>

namespace troupe::actors {

/// One rank's share of a mini-batch, checked and cut.
struct Shard {
  std::vector<std::uint8_t> mask;  ///< response-packed, never empty-for-all-ones
  std::vector<MicroBatch> batches;
  std::vector<std::vector<std::uint8_t>> masks;  ///< of each micro-batch
  TokenCounts counts;

  TokenBatchView view(std::size_t batch, std::span<const std::int64_t> sequence_ids = {}) const {
    return {.offsets = batches[batch].response_offsets,
            .mask = masks[batch],
            .groups = {},
            .sequence_ids = sequence_ids};
  }
};

/// What the model says about the response tokens of a micro-batch.
struct ModelOutput {
  at::Tensor primary;  ///< [R] log-probs, or values of a critic
  at::Tensor entropy;  ///< [R]; undefined for a critic
};

/// d loss / d output of one micro-batch; an empty vector is zero.
struct OutputGradient {
  std::vector<float> primary;
  std::vector<float> entropy;
};

struct ModelValues {
  std::span<const float> primary;
  std::span<const float> entropy;
};
/// Loss of micro-batch number `batch`, whose outputs are `values`.
using BatchLoss = std::function<result<OutputGradient>(std::size_t batch, ModelValues values)>;

struct StepReport {
  double gradient_norm = 0;
  double lr = 0;
  bool skipped = false;
};

/// Response-packed outputs of a whole shard; `entropy` is empty for a critic.
struct ShardOutput {
  std::vector<float> primary;
  std::vector<float> entropy;
};

/// A step that is trained part by part (streamed_update.cpp).
struct StreamedStep {
  LossAggregation aggregation = LossAggregation::kTokenMean;
  double scale_factor = 0;
  std::int64_t epoch = 0;  ///< of the ranks' collective when the step was opened
  TokenCounts counts;      ///< of all ranks' parts so far
  WeightedSums sums;       ///< of this rank's parts so far
  std::int64_t parts = 0;
  std::optional<Error> failure;  ///< what left the gradients in an unknown state

  void take(const TokenCounts& part, const WeightedSums& of_part) {
    counts += part;
    sums.merge(of_part);
    ++parts;
  }
};

struct TrainEngine::Impl {
  TrainEngineOptions options;
  std::unique_ptr<TrainGroups> groups;
  std::unique_ptr<ShardGroups> shards;
  std::unique_ptr<Decoder> decoder;  // it, and its autograd nodes, point into both
  std::span<const float> weight_buffer;
  std::vector<float> first_moment;
  std::vector<float> second_moment;
  std::int64_t steps = 0;
  std::optional<StreamedStep> streamed;  // open while gradients of its parts are in the buffer
  std::int64_t metered_tokens = 0;       // largest micro-batch whose activations were measured
  std::int64_t activations_peak = 0;
  std::int64_t micro_batches_peak = 0;  // most (run, micro-batch) pairs held at once

  /// For the first line of each call: LibTorch's thread count belongs to the calling thread, and
  /// the groups to an epoch.
  result<void> begin();
  void use_threads() const;
  /// Checks and cuts; errors are the caller's input.
  result<Shard> make_shard(const PackedSequences& sequences, std::span<const std::uint8_t> mask,
                           std::int64_t tokens_max) const;
  std::int64_t forward_tokens_max() const {
    return options.forward_tokens_max > 0 ? options.forward_tokens_max
                                          : options.micro_batch_tokens_max;
  }

  /// Sums the counts of all dp coordinates, and learns whether any rank failed: then this rank's
  /// own error, or kAborted naming the first other one. One collective.
  result<TokenCounts> agree(const std::optional<Error>& mine, TokenCounts counts);
  /// Whether any rank with the same sequences failed; no collective unless the model is cut.
  result<void> agree_replica(const std::optional<Error>& mine);
  /// Hands on what a collective of a part of the world gave; every rank is told of a failure.
  template <class T>
  result<T> told(result<T> outcome) const {
    if (!outcome) groups->abort(outcome.error());
    return outcome;
  }
  /// Runs `work`, which may throw what a collective inside autograd reports; every rank is told.
  result<void> guarded(const std::function<result<void>()>& work);

  /// Outputs of a shard without gradients, the same on all ranks with the same sequences. No
  /// collective unless the model is cut.
  result<ShardOutput> forward_all(Shard& shard, const SamplingTransform& transform);
  /// Forward, loss and backward over all micro-batches; gradients are added to what the buffer has.
  /// No collective unless the model is cut. `loss` is called on the ranks that have the head; an
  /// error of it comes back at the end, so that peers are not left alone in the middle.
  result<void> add_gradients(Shard& shard, const SamplingTransform& transform,
                             const BatchLoss& loss);
  /// The same from gradients of 0.
  result<void> accumulate(Shard& shard, const SamplingTransform& transform, const BatchLoss& loss);
  /// accumulate, then the sum over ranks, clip and AdamW. Two collectives, if the model is whole.
  /// `sums`, filled by `loss`, are then the same on all ranks with the same sequences.
  result<StepReport> optimize(Shard& shard, const SamplingTransform& transform, TokenCounts global,
                              const BatchLoss& loss, WeightedSums& sums);

  // What depends on how buffers are cut over ranks (sharded_step.cpp).
  bool is_whole() const {
    return !groups->place().cut() && !decoder->parameters().updates_are_cut();
  }
  /// Gathering a unit is collective, so ranks that share weights walk equally many micro-batches:
  /// drops those that predict nothing and adds idle ones. No collective unless weights are cut.
  result<void> level(Shard& shard);
  /// Sums gradients over data-parallel ranks and the ends of a pipeline, in rank order.
  result<void> sum_gradients();
  /// √Σ g² over everything that the ranks own, each number once; the same on all ranks.
  result<double> global_gradient_norm();
  /// Clip and AdamW on what this rank updates, with gradients `scale` times the buffer's; then all
  /// have the weights that they hold.
  result<StepReport> apply_gradients(bool nothing_to_learn, double scale = 1);
  /// Every number that this rank holds (train_state.cpp).
  std::vector<StateTarget> state_targets();

  /// kInvalidArgument unless the engine is trainable and has this head; `call` is who asks.
  result<void> check_trainable(ModelHead head, std::string_view call) const;
  /// The same for a call that changes the weights at once: kConflict while a streamed step is open.
  result<void> check_update(ModelHead head, std::string_view call) const;
  result<void> check_not_streaming(std::string_view call) const;

  // The streamed step (streamed_update.cpp).
  std::int64_t world_epoch() const;
  /// Is a step open, and can it go on.
  result<void> check_streamed() const;
  /// Adds a part's gradients to the open step, or opens it as `fresh`. Every rank is told of a
  /// failure, which breaks the step. One collective, if the model is whole.
  result<void> add_part(Shard& shard, const SamplingTransform& transform, const BatchLoss& loss,
                        const StreamedStep& fresh);

  ModelOutput head(const MicroBatch& batch, const at::Tensor& hidden,
                   const SamplingTransform& transform);
  void forward_whole(const Shard& shard, const SamplingTransform& transform, ShardOutput& out);
  result<void> accumulate_whole(const Shard& shard, const SamplingTransform& transform,
                                const BatchLoss& loss);
  /// The same through the stages of a pipeline (pipeline.cpp).
  void forward_pipeline(const Shard& shard, const SamplingTransform& transform, ShardOutput& out);
  result<void> accumulate_pipeline(const Shard& shard, const SamplingTransform& transform,
                                   const BatchLoss& loss);
  /// The last stage's sums on every stage.
  result<void> share_sums(WeightedSums& sums);
  /// Adds up what first and last stage learnt about a tied embedding (sharded_step.cpp).
  result<void> sum_tied_embedding();

  Deadline deadline() const { return groups->deadline(); }
  bool critic() const { return options.head == ModelHead::kValue; }
};

/// The micro-batch as the decoder takes it.
inline DecoderInput input_of(const MicroBatch& batch) {
  return {.tokens = batch.tokens,
          .offsets = batch.offsets,
          .rows = batch.rows,
          .prefixes = batch.prefixes};
}
/// One step of the loss of a micro-batch with outputs `out`: what flows back into it. After an
/// error, which stays in `error`, zero.
OutputGradient loss_gradient(const BatchLoss& loss, std::size_t batch, const ModelOutput& out,
                             std::optional<Error>& error);
/// Backward from the model's outputs; gradients that are all zero stop nothing.
void backward(const ModelOutput& out, OutputGradient& gradient);
/// Writes the outputs of a micro-batch to their places.
void put_output(const MicroBatch& batch, const ModelOutput& model, ShardOutput& out);

/// kInvalidArgument unless `values` is response-packed for `tokens` (or empty, when `optional`).
result<void> check_size(std::span<const float> values, std::int64_t tokens, std::string_view name,
                        bool optional = false);

/// Error of a result, for `agree`.
template <class T>
std::optional<Error> error_of(const result<T>& value) {
  if (value) return std::nullopt;
  return value.error();
}

/// Adds (sum, weight) pairs as weighted means.
void add_metrics(const WeightedSums& sums, runtime::Metrics& metrics);
void add_step_metrics(const StepReport& report, std::string_view prefix, runtime::Metrics& metrics);

}  // namespace troupe::actors
