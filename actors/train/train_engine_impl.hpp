#pragma once

// The inside of TrainEngine, shared by its sources. Not for users: it needs LibTorch's headers.
//
// **Threads:** as TrainEngine.

#include "actors/model/decoder.hpp"
#include "actors/train/micro_batch.hpp"
#include "actors/train/train_engine.hpp"

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

struct TrainEngine::Impl {
  TrainEngineOptions options;
  runtime::Collective* collective = nullptr;
  std::unique_ptr<Decoder> decoder;
  std::vector<float> first_moment;
  std::vector<float> second_moment;
  std::int64_t steps = 0;
  std::int64_t metered_tokens = 0;  // largest micro-batch whose activations were measured
  std::int64_t activations_peak = 0;

  /// Checks and cuts; errors are the caller's input.
  result<Shard> make_shard(const PackedSequences& sequences, std::span<const std::uint8_t> mask,
                           std::int64_t tokens_max) const;
  std::int64_t forward_tokens_max() const {
    return options.forward_tokens_max > 0 ? options.forward_tokens_max
                                          : options.micro_batch_tokens_max;
  }
  ModelOutput forward(const MicroBatch& batch, double temperature);
  /// Sums the counts of all ranks, and learns whether any rank failed: then this rank's own error,
  /// or kAborted naming the first other one. One collective.
  result<TokenCounts> agree(const std::optional<Error>& mine, TokenCounts counts);
  /// Forward, loss and backward over all micro-batches; gradients add up. No collective.
  result<void> accumulate(const Shard& shard, double temperature, const BatchLoss& loss);
  /// accumulate, then the sum over ranks, clip and AdamW. Two collectives.
  result<StepReport> optimize(const Shard& shard, double temperature, TokenCounts global,
                              const BatchLoss& loss);
  StepReport apply_gradients(bool nothing_to_learn);
  Deadline deadline() const { return Deadline::in(options.collective_timeout); }
  bool critic() const { return options.head == ModelHead::kValue; }
  /// For the first line of each call: LibTorch's thread count belongs to the calling thread.
  void use_threads() const;
};

/// kInvalidArgument unless `values` is response-packed for `tokens` (or empty, when `optional`).
result<void> check_size(std::span<const float> values, std::int64_t tokens, std::string_view name,
                        bool optional = false);

/// Adds (sum, weight) pairs as weighted means.
void add_metrics(const WeightedSums& sums, runtime::Metrics& metrics);
void add_step_metrics(const StepReport& report, std::string_view prefix, runtime::Metrics& metrics);

}  // namespace troupe::actors
