#pragma once

// Row-wise kernels of training, forward and backward, fused so that a row is read once: RMSNorm
// with its residual sum, the gated MLP activation, and log-softmax statistics of logits.
//
// Torch-free. **Threads:** pure functions. All matrices are dense, row-major, f32.
// **Invariants:** a row's result does not depend on the other rows nor on their number.

#include <cstdint>

namespace troupe::actors {

/// Rows and width of a dense matrix.
struct RowShape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

/// sum = x + delta (delta may be null: sum is x, and not written when `sum` is null);
/// out = weight · sum / √(mean(sum²) + eps); inverse_rms [rows]. x, delta, sum, out [rows, width].
struct RmsNormForward {
  const float* x;
  const float* delta;
  const float* weight;
  float eps;
  float* sum;
  float* out;
  float* inverse_rms;
};
void rms_norm_forward(RowShape shape, const RmsNormForward& p);

/// x_gradient = (sum_gradient or 0) + what flows through the norm; weight_gradient [width] is
/// added to. `x` is the normalised input (x + delta of forward).
struct RmsNormBackward {
  const float* x;
  const float* weight;
  const float* inverse_rms;
  const float* out_gradient;
  const float* sum_gradient;  ///< null: 0
  float* x_gradient;
  float* weight_gradient;
};
void rms_norm_backward(RowShape shape, const RmsNormBackward& p);

/// RMSNorm of single heads (Qwen3): qkv [T, row] with `heads` query heads, then `kv_heads` key
/// heads, then values, each head `head_dim` wide. Values are copied. inverse_rms [T, N + K].
struct HeadNormShape {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  float eps;
  std::int64_t row() const { return (heads + 2 * kv_heads) * head_dim; }
};
void head_norm_forward(const HeadNormShape& shape, const float* qkv, const float* q_weight,
                       const float* k_weight, float* out, float* inverse_rms);
struct HeadNormBackward {
  const float* qkv;
  const float* q_weight;
  const float* k_weight;
  const float* inverse_rms;
  const float* out_gradient;
  float* qkv_gradient;
  float* q_weight_gradient;  ///< [D], added to
  float* k_weight_gradient;  ///< [D], added to
};
void head_norm_backward(const HeadNormShape& shape, const HeadNormBackward& p);

/// gate_up [rows, 2·width]: gate then up; out [rows, width] = silu(gate) · up.
void swiglu_forward(RowShape shape, const float* gate_up, float* out);
/// gate_up_gradient [rows, 2·width].
void swiglu_backward(RowShape shape, const float* gate_up, const float* out_gradient,
                     float* gate_up_gradient);

/// What log-softmax of one row of logits z/temperature yields.
struct LogProbRows {
  const std::int64_t* targets;  ///< [rows]
  float inverse_temperature;
  float* log_prob;     ///< [rows] of the target
  float* entropy;      ///< [rows] H = log Σe^z − Σ p·z
  float* log_sum_exp;  ///< [rows] of z/temperature
};
void log_prob_rows(RowShape shape, const float* logits, const LogProbRows& p);

/// Replaces logits by d loss / d logits, given d loss / d log_prob and d loss / d entropy:
/// (g·(1[target] − p) − h·p·(log p + H)) / temperature. `entropy_gradient` may be null (0).
struct LogProbRowsBackward {
  const std::int64_t* targets;  ///< [rows]; negative: none of these columns
  float inverse_temperature;
  const float* log_sum_exp;
  const float* entropy;
  const float* log_prob_gradient;
  const float* entropy_gradient;
};
void log_prob_rows_backward(RowShape shape, float* logits, const LogProbRowsBackward& p);

/// target [count, width] = rows `index` of source.
void gather_rows(std::int64_t width, const float* source, const std::int64_t* index,
                 std::int64_t count, float* target);
/// Rows `index` of target += source [count, width], in order; repeated rows add up.
void scatter_add_rows(std::int64_t width, const float* source, const std::int64_t* index,
                      std::int64_t count, float* target);

}  // namespace troupe::actors
