#include "actors/rollout/model_runner.hpp"

#include "actors/model/rope.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

/// Adds the time of its life to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), begin_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { total_ += seconds(std::chrono::steady_clock::now() - begin_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  std::chrono::steady_clock::time_point begin_;
};

/// Rows whose activations fill half of a 1 MiB second-level cache; a multiple of every row tile.
std::int64_t rows_per_chunk(std::int64_t floats_per_row, std::int64_t rows_max) {
  constexpr std::int64_t kTileMultiple = 24;
  const std::int64_t fit = (std::int64_t{1} << 17) / floats_per_row;
  const std::int64_t rows = std::clamp<std::int64_t>(fit, 48, 240) / kTileMultiple * kTileMultiple;
  return std::min(rows, rows_max);
}

}  // namespace

/// Rows [first, first + rows) of the step, and the runs cut to them.
struct ModelRunner::Chunk {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::span<const RowRun> runs;
};

ModelRunner::ModelRunner(const ModelShare& share, RunnerLimits limits, const KernelTable& kernels,
                         RankAgreement* ranks)
    : share_(share),
      config_(share.local),
      limits_(limits),
      kernels_(&kernels),
      ranks_(ranks),
      hidden_stride_(padded(config_.hidden_size)),
      qkv_stride_(padded(config_.q_size() + 2 * config_.kv_size())),
      attended_stride_(padded(config_.q_size())),
      up_offset_(padded(config_.intermediate_size)),
      chunk_rows_(rows_per_chunk(
          2 * hidden_stride_ + qkv_stride_ + attended_stride_ + 2 * up_offset_, limits.rows)),
      query_scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)))),
      hidden_(limits.rows * hidden_stride_),
      normed_(chunk_rows_ * hidden_stride_),
      qkv_(chunk_rows_ * qkv_stride_),
      attended_(chunk_rows_ * attended_stride_),
      gate_up_(chunk_rows_ * 2 * up_offset_),
      selected_(limits.rows * hidden_stride_),
      logits_(limits.logit_rows * padded(share.vocab_size)),
      partial_(ranks == nullptr ? 0 : limits.rows * hidden_stride_),
      gathered_(ranks == nullptr ? 0 : share.size * limits.logit_rows * padded(config_.vocab_size)),
      cosines_(limits.positions * config_.head_dim / 2),
      sines_(limits.positions * config_.head_dim / 2),
      scratch_(attention_scratch_floats(config_.head_count / config_.kv_head_count,
                                        config_.head_dim, limits.positions)) {
  TROUPE_CHECK((ranks == nullptr) == (share.size == 1), "model runner: share of {} ranks",
               share.size);
  const std::vector<double> frequencies = rope_inverse_frequencies(config_);
  const auto half = static_cast<std::int64_t>(frequencies.size());
  for (std::int64_t position = 0; position < limits.positions; ++position)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<std::size_t>(i)];
      cosines_[position * half + i] = static_cast<float>(std::cos(angle));
      sines_[position * half + i] = static_cast<float>(std::sin(angle));
    }
}

void ModelRunner::multiply(const float* input, std::int64_t input_stride, std::int64_t rows,
                           const PackedMatrix& weight, const AlignedBuffer& bias, float* output,
                           std::int64_t output_stride, bool accumulate) {
  const Stopwatch watch(times_.gemm_s);
  packed_gemm(
      *kernels_, input, input_stride, rows, weight, output, output_stride,
      GemmOptions{.bias = bias.size() > 0 ? bias.data() : nullptr, .accumulate = accumulate});
}

void ModelRunner::embed(const PackedWeights& weights, std::span<const std::int32_t> tokens) {
  float* row = hidden_.data();
  const std::int64_t begin = share_.vocab_begin(share_.rank);
  const std::int64_t end = share_.vocab_end(share_.rank);
  for (const std::int32_t token : tokens) {
    const std::span<float> target(row, static_cast<std::size_t>(config_.hidden_size));
    if (token >= begin && token < end)
      weights.copy_embedding(token - begin, target);
    else
      std::ranges::fill(target, 0.0f);  // another rank has it
    // A failed sequence may have left NaN in the padding, which the norms read.
    std::fill(row + config_.hidden_size, row + hidden_stride_, 0.0f);
    row += hidden_stride_;
  }
}

void ModelRunner::project_qkv(const PackedLayer& layer, const Chunk& chunk) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  for (std::int64_t row = 0; row < chunk.rows; ++row)
    kernels_->rms_norm(hidden_.data() + (chunk.first + row) * hidden_stride_,
                       layer.input_norm.data(), config_.hidden_size, eps,
                       normed_.data() + row * hidden_stride_);
  multiply(normed_.data(), hidden_stride_, chunk.rows, layer.qkv, layer.qkv_bias, qkv_.data(),
           qkv_stride_, false);
}

void ModelRunner::rotate_and_store(const PackedLayer& layer, std::int64_t index, KvCache& cache,
                                   const Chunk& chunk) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const std::int64_t dim = config_.head_dim;
  for (const RowRun& run : chunk.runs) {
    for (std::int64_t i = 0; i < run.rows; ++i) {
      const std::int64_t position = run.first_position + i;
      const float* cosine = cosines_.data() + position * dim / 2;
      const float* sine = sines_.data() + position * dim / 2;
      float* query = qkv_.data() + (run.first_row + i - chunk.first) * qkv_stride_;
      for (std::int64_t head = 0; head < config_.head_count; ++head) {
        if (config_.qk_norm) kernels_->head_norm(query + head * dim, layer.q_norm.data(), dim, eps);
        kernels_->rope(query + head * dim, cosine, sine, dim / 2, query_scale_);
      }
      float* key = query + config_.q_size();
      const float* value = key + config_.kv_size();
      for (std::int64_t head = 0; head < config_.kv_head_count; ++head) {
        if (config_.qk_norm) kernels_->head_norm(key + head * dim, layer.k_norm.data(), dim, eps);
        kernels_->rope(key + head * dim, cosine, sine, dim / 2, 1.0f);
        cache.store(index, head, run.blocks[position / kBlockTokens], position % kBlockTokens,
                    key + head * dim, value + head * dim);
      }
    }
  }
}

void ModelRunner::attend(std::int64_t index, const KvCache& cache, const Chunk& chunk) {
  const Stopwatch watch(times_.attention_s);
  const std::int64_t dim = config_.head_dim;
  const std::int64_t heads = config_.head_count / config_.kv_head_count;
  for (const RowRun& run : chunk.runs) {
    const std::int64_t row = run.first_row - chunk.first;
    for (std::int64_t kv_head = 0; kv_head < config_.kv_head_count; ++kv_head) {
      kernels_->attention(
          AttentionCall{.query = qkv_.data() + row * qkv_stride_ + kv_head * heads * dim,
                        .query_stride = qkv_stride_,
                        .output = attended_.data() + row * attended_stride_ + kv_head * heads * dim,
                        .output_stride = attended_stride_,
                        .queries = run.rows,
                        .heads = heads,
                        .head_dim = dim,
                        .first_keys = run.first_position + 1,
                        .cache = cache.base(index, kv_head),
                        .values_offset = cache.values_offset(),
                        .block_stride = cache.block_stride(),
                        .blocks = run.blocks,
                        .scratch = scratch_.data()});
    }
  }
}

/// gate_up_ ← silu(gate) · up in its first columns.
void ModelRunner::mlp_up(const PackedLayer& layer, const Chunk& chunk) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const float* hidden = hidden_.data() + chunk.first * hidden_stride_;
  for (std::int64_t row = 0; row < chunk.rows; ++row)
    kernels_->rms_norm(hidden + row * hidden_stride_, layer.post_norm.data(), config_.hidden_size,
                       eps, normed_.data() + row * hidden_stride_);
  const std::int64_t stride = 2 * up_offset_;
  multiply(normed_.data(), hidden_stride_, chunk.rows, layer.gate_up, layer.gate_up_bias,
           gate_up_.data(), stride, false);
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    float* gate = gate_up_.data() + row * stride;
    kernels_->silu_mul(gate, gate + up_offset_, config_.intermediate_size, gate);
  }
}

void ModelRunner::run_layer(const PackedLayer& layer, std::int64_t index, KvCache& cache,
                            const Chunk& chunk) {
  float* hidden = hidden_.data() + chunk.first * hidden_stride_;
  project_qkv(layer, chunk);
  rotate_and_store(layer, index, cache, chunk);
  attend(index, cache, chunk);
  multiply(attended_.data(), attended_stride_, chunk.rows, layer.o, layer.o_bias, hidden,
           hidden_stride_, true);
  mlp_up(layer, chunk);
  multiply(gate_up_.data(), 2 * up_offset_, chunk.rows, layer.down, layer.down_bias, hidden,
           hidden_stride_, true);
}

/// Two sums over ranks per layer, each over all rows at once: latency counts more than cache here.
result<void> ModelRunner::run_shared_layer(const PackedLayer& layer, std::int64_t index,
                                           KvCache& cache, std::int64_t rows,
                                           std::span<const RowRun> runs) {
  const AlignedBuffer no_bias;
  for_each_chunk(rows, runs, [&](const Chunk& chunk) {
    project_qkv(layer, chunk);
    rotate_and_store(layer, index, cache, chunk);
    attend(index, cache, chunk);
    multiply(attended_.data(), attended_stride_, chunk.rows, layer.o, no_bias,
             partial_.data() + chunk.first * hidden_stride_, hidden_stride_, false);
  });
  TROUPE_TRY_VOID(sum_over_ranks(partial_, rows));
  add_partial(layer.o_bias, rows);
  for_each_chunk(rows, runs, [&](const Chunk& chunk) {
    mlp_up(layer, chunk);
    multiply(gate_up_.data(), 2 * up_offset_, chunk.rows, layer.down, no_bias,
             partial_.data() + chunk.first * hidden_stride_, hidden_stride_, false);
  });
  TROUPE_TRY_VOID(sum_over_ranks(partial_, rows));
  add_partial(layer.down_bias, rows);
  return {};
}

result<void> ModelRunner::sum_over_ranks(AlignedBuffer& rows_of_hidden, std::int64_t rows) {
  const Stopwatch watch(times_.collective_s);
  const std::span<float> numbers(rows_of_hidden.data(),
                                 static_cast<std::size_t>(rows * hidden_stride_));
  return ranks_->group().all_reduce(numbers, runtime::ReduceOp::kSum, ranks_->deadline());
}

/// hidden_ ← (partial_ + bias) + hidden_: bias and old value in the order of the kernels.
void ModelRunner::add_partial(const AlignedBuffer& bias, std::int64_t rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* part = partial_.data() + row * hidden_stride_;
    float* hidden = hidden_.data() + row * hidden_stride_;
    if (bias.size() > 0) {
      for (std::int64_t i = 0; i < hidden_stride_; ++i) hidden[i] = (part[i] + bias[i]) + hidden[i];
    } else {
      for (std::int64_t i = 0; i < hidden_stride_; ++i) hidden[i] = part[i] + hidden[i];
    }
  }
}

/// Calls `visit` with each chunk of rows and the runs cut to it.
template <class Visit>
void ModelRunner::for_each_chunk(std::int64_t rows, std::span<const RowRun> runs, Visit visit) {
  std::size_t next = 0;
  for (Chunk chunk; chunk.first < rows; chunk.first += chunk_rows_) {
    chunk.rows = std::min(chunk_rows_, rows - chunk.first);
    const std::int64_t end = chunk.first + chunk.rows;
    pieces_.clear();
    while (next < runs.size() && runs[next].first_row < end) {
      RowRun piece = runs[next];
      const std::int64_t skipped = std::max<std::int64_t>(0, chunk.first - piece.first_row);
      piece.first_row += skipped;
      piece.first_position += skipped;
      piece.rows = std::min(piece.rows - skipped, end - piece.first_row);
      pieces_.push_back(piece);
      if (runs[next].first_row + runs[next].rows > end) break;  // goes on in the next chunk
      ++next;
    }
    chunk.runs = pieces_;
    visit(chunk);
  }
}

result<void> ModelRunner::forward(const PackedWeights& weights, KvCache& cache,
                                  std::span<const std::int32_t> tokens,
                                  std::span<const RowRun> runs,
                                  std::span<const std::int32_t> selected_rows) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  TROUPE_CHECK(rows <= limits_.rows, "model runner: {} rows, at most {}", rows, limits_.rows);
  embed(weights, tokens);
  if (ranks_ != nullptr) TROUPE_TRY_VOID(sum_over_ranks(hidden_, rows));
  for (std::size_t i = 0; i < weights.layers().size(); ++i) {
    const PackedLayer& layer = weights.layers()[i];
    const auto index = static_cast<std::int64_t>(i);
    if (ranks_ != nullptr) {
      TROUPE_TRY_VOID(run_shared_layer(layer, index, cache, rows, runs));
    } else {
      for_each_chunk(rows, runs,
                     [&](const Chunk& chunk) { run_layer(layer, index, cache, chunk); });
    }
  }
  for (std::size_t i = 0; i < selected_rows.size(); ++i)
    kernels_->rms_norm(hidden_.data() + selected_rows[i] * hidden_stride_,
                       weights.final_norm().data(), config_.hidden_size,
                       static_cast<float>(config_.rms_norm_eps),
                       selected_.data() + static_cast<std::int64_t>(i) * hidden_stride_);
  return {};
}

result<const float*> ModelRunner::logits(const PackedWeights& weights, std::int64_t first,
                                         std::int64_t count) {
  TROUPE_CHECK(count <= limits_.logit_rows, "model runner: {} logit rows, at most {}", count,
               limits_.logit_rows);
  if (ranks_ != nullptr) {
    TROUPE_TRY_VOID(gather_logits(weights, first, count));
  } else {
    multiply(selected_.data() + first * hidden_stride_, hidden_stride_, count, weights.head(), {},
             logits_.data(), logit_stride(), false);
  }
  return static_cast<const float*>(logits_.data());
}

/// Each rank multiplies with its rows of the head; all get all of them, in vocabulary order.
result<void> ModelRunner::gather_logits(const PackedWeights& weights, std::int64_t first,
                                        std::int64_t count) {
  const std::int64_t stride = padded(config_.vocab_size);
  const std::int64_t part = count * stride;
  float* mine = gathered_.data() + share_.rank * part;
  multiply(selected_.data() + first * hidden_stride_, hidden_stride_, count, weights.head(), {},
           mine, stride, false);
  const Stopwatch watch(times_.collective_s);
  TROUPE_TRY_VOID(ranks_->group().all_gather(
      std::span<const float>(mine, static_cast<std::size_t>(part)),
      std::span<float>(gathered_.data(), static_cast<std::size_t>(share_.size * part)),
      ranks_->deadline()));
  for (std::int64_t rank = 0; rank < share_.size; ++rank)
    for (std::int64_t row = 0; row < count; ++row)
      std::copy_n(gathered_.data() + rank * part + row * stride,
                  share_.vocab_end(rank) - share_.vocab_begin(rank),
                  logits_.data() + row * logit_stride() + share_.vocab_begin(rank));
  return {};
}

}  // namespace troupe::actors
