#pragma once

// Runs the tokens of one step through the decoder: embedding, layers over the paged KV cache, final
// norm and head. Rows are tokens; each row's result depends on its sequence alone.
//
// Formulas: the decoder block of Llama, Qwen2 and Qwen3 in Hugging Face transformers. With ranks,
// each computes its heads and mlp columns; what enters the residual stream is summed over ranks in
// rank order, then gets its bias once. The stream, and so every logit, has the same bits on all
// ranks.
// **Ownership:** owns activations; borrows weights and cache for a call, the collective for life.
// **Threads:** one thread.
// **Cost:** rows pass each layer in chunks whose activations stay in the second-level cache; no
// allocation after construction.

#include "actors/kernel/aligned_buffer.hpp"
#include "actors/kernel/kernel_table.hpp"
#include "actors/model/model_config.hpp"
#include "actors/rollout/kv_cache.hpp"
#include "actors/rollout/model_share.hpp"
#include "actors/rollout/packed_weights.hpp"
#include "actors/rollout/rank_agreement.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

/// Consecutive tokens of one sequence within a step.
struct RowRun {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t first_position = 0;
  const std::int32_t* blocks = nullptr;  ///< table that covers first_position + rows tokens
};

struct RunnerLimits {
  std::int64_t rows = 2048;       ///< T of one step
  std::int64_t positions = 2048;  ///< longest sequence
  std::int64_t logit_rows = 256;  ///< rows per call of `logits`
};

struct RunnerTimes {
  double gemm_s = 0;
  double attention_s = 0;
  double collective_s = 0;  ///< waiting for and moving data of other ranks
};

class ModelRunner {
 public:
  /// `ranks` is null for a share that is the whole model.
  ModelRunner(const ModelShare& share, RunnerLimits limits, const KernelTable& kernels,
              RankAgreement* ranks = nullptr);

  /// tokens [T], one entry per row of `runs`; afterwards row i of the selection is
  /// `selected_rows[i]`, normalised and ready for the head. Writes the tokens' keys and values.
  /// Fails only when a collective does; the same call may then be made again.
  result<void> forward(const PackedWeights& weights, KvCache& cache,
                       std::span<const std::int32_t> tokens, std::span<const RowRun> runs,
                       std::span<const std::int32_t> selected_rows);

  /// Logits [count, V] of selected rows [first, first + count), count ≤ limits.logit_rows; row i
  /// of the answer starts at i · logit_stride(). Valid until the next call.
  result<const float*> logits(const PackedWeights& weights, std::int64_t first, std::int64_t count);
  std::int64_t logit_stride() const { return padded(share_.vocab_size); }
  std::int64_t logit_rows() const { return limits_.logit_rows; }

  const RunnerTimes& times() const { return times_; }
  void set_times(const RunnerTimes& times) { times_ = times; }

 private:
  struct Chunk;
  void embed(const PackedWeights& weights, std::span<const std::int32_t> tokens);
  template <class Visit>
  void for_each_chunk(std::int64_t rows, std::span<const RowRun> runs, Visit visit);
  void run_layer(const PackedLayer& layer, std::int64_t index, KvCache& cache, const Chunk& chunk);
  result<void> run_shared_layer(const PackedLayer& layer, std::int64_t index, KvCache& cache,
                                std::int64_t rows, std::span<const RowRun> runs);
  result<void> sum_over_ranks(AlignedBuffer& rows_of_hidden, std::int64_t rows);
  void add_partial(const AlignedBuffer& bias, std::int64_t rows);
  result<void> gather_logits(const PackedWeights& weights, std::int64_t first, std::int64_t count);
  void project_qkv(const PackedLayer& layer, const Chunk& chunk);
  void rotate_and_store(const PackedLayer& layer, std::int64_t index, KvCache& cache,
                        const Chunk& chunk);
  void attend(std::int64_t index, const KvCache& cache, const Chunk& chunk);
  void mlp_up(const PackedLayer& layer, const Chunk& chunk);
  void multiply(const float* input, std::int64_t input_stride, std::int64_t rows,
                const PackedMatrix& weight, const AlignedBuffer& bias, float* output,
                std::int64_t output_stride, bool accumulate);

  ModelShare share_;
  ModelConfig config_;  // of this rank
  RunnerLimits limits_;
  const KernelTable* kernels_;
  RankAgreement* ranks_;
  std::int64_t hidden_stride_;
  std::int64_t qkv_stride_;
  std::int64_t attended_stride_;
  std::int64_t up_offset_;
  std::int64_t chunk_rows_;
  float query_scale_;

  AlignedBuffer hidden_;    // [T, H] residual stream
  AlignedBuffer normed_;    // [chunk, H]
  AlignedBuffer qkv_;       // [chunk, (N + 2K)·D]
  AlignedBuffer attended_;  // [chunk, N·D]
  AlignedBuffer gate_up_;   // [chunk, 2·padded(F)]
  AlignedBuffer selected_;  // [T, H]
  AlignedBuffer logits_;    // [logit_rows, V]
  AlignedBuffer partial_;   // [T, H] this rank's part of what enters the stream; only with ranks
  AlignedBuffer gathered_;  // [tp, logit_rows, padded(V/tp)]; only with ranks
  AlignedBuffer cosines_;   // [positions, D/2]
  AlignedBuffer sines_;
  AlignedBuffer scratch_;  // attention
  std::vector<RowRun> pieces_;
  RunnerTimes times_;
};

}  // namespace troupe::actors
