#include "actors/model/train_kernels.hpp"

#include "actors/model/simd.hpp"

#include <cmath>

namespace troupe::actors {
namespace {

constexpr std::int64_t kLanes = simd::kLanes;

/// Σ f(i) over [0, count): eight partial sums in a fixed order, then the tail.
template <class Term>
TROUPE_INLINE float lane_sum(std::int64_t count, const Term& term) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t k = 0; k < kLanes; ++k) lanes[k] += term(i + k);
  for (std::int64_t k = 0; i < count; ++i, ++k) lanes[k] += term(i);
  float total = 0.0F;
  for (float lane : lanes) total += lane;
  return total;
}

TROUPE_INLINE float lane_max(std::int64_t count, const float* x) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = x[0];
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t k = 0; k < kLanes; ++k) lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
  for (; i < count; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  float largest = lanes[0];
  for (float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

/// out = weight · x / rms(x); returns 1 / rms(x).
TROUPE_INLINE float norm_row(std::int64_t width, const float* x, const float* weight, float eps,
                             float* out) {
  const float squares = lane_sum(width, [x](std::int64_t i) { return x[i] * x[i]; });
  const float inverse = 1.0F / std::sqrt(squares / static_cast<float>(width) + eps);
  for (std::int64_t i = 0; i < width; ++i) out[i] = weight[i] * (x[i] * inverse);
  return inverse;
}

/// With u = x·r, r = 1/rms: dx = r·(w·g − u·mean(w·g·u)), dw += g·u.
TROUPE_INLINE void norm_row_backward(std::int64_t width, const float* x, const float* w,
                                     float inverse, const float* g, float* x_gradient,
                                     float* w_gradient) {
  const float dot = lane_sum(width, [x, g, w](std::int64_t i) { return w[i] * g[i] * x[i]; });
  const float shrink = dot * inverse * inverse / static_cast<float>(width);
  for (std::int64_t i = 0; i < width; ++i) x_gradient[i] = inverse * (w[i] * g[i] - x[i] * shrink);
  for (std::int64_t i = 0; i < width; ++i) w_gradient[i] += g[i] * (x[i] * inverse);
}

/// 1 / (1 + e^-x), exact to rounding on both tails.
TROUPE_INLINE float sigmoid(float x) { return 1.0F / (1.0F + simd::exp(-x)); }

// Vocabulary entries whose terms are summed in f32 before they join a sum in f64.
constexpr std::int64_t kSumBlock = 512;

}  // namespace

TROUPE_SIMD_VERSIONS
void rms_norm_forward(RowShape shape, const RmsNormForward& p) {
  const std::int64_t width = shape.width;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* x = p.x + r * width;
    if (p.delta != nullptr) {
      const float* delta = p.delta + r * width;
      float* sum = p.sum + r * width;
      for (std::int64_t i = 0; i < width; ++i) sum[i] = x[i] + delta[i];
      x = sum;
    }
    p.inverse_rms[r] = norm_row(width, x, p.weight, p.eps, p.out + r * width);
  }
}

TROUPE_SIMD_VERSIONS
void rms_norm_backward(RowShape shape, const RmsNormBackward& p) {
  const std::int64_t width = shape.width;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    float* to = p.x_gradient + r * width;
    norm_row_backward(width, p.x + r * width, p.weight, p.inverse_rms[r],
                      p.out_gradient + r * width, to, p.weight_gradient);
    if (p.sum_gradient != nullptr) {
      const float* add = p.sum_gradient + r * width;
      for (std::int64_t i = 0; i < width; ++i) to[i] += add[i];
    }
  }
}

TROUPE_SIMD_VERSIONS
void head_norm_forward(const HeadNormShape& shape, const float* qkv, const float* q_weight,
                       const float* k_weight, float* out, float* inverse_rms) {
  const std::int64_t normed = shape.heads + shape.kv_heads;
  for (std::int64_t t = 0; t < shape.tokens; ++t) {
    const float* from = qkv + t * shape.row();
    float* to = out + t * shape.row();
    for (std::int64_t h = 0; h < normed; ++h)
      inverse_rms[t * normed + h] =
          norm_row(shape.head_dim, from + h * shape.head_dim, h < shape.heads ? q_weight : k_weight,
                   shape.eps, to + h * shape.head_dim);
    std::copy_n(from + normed * shape.head_dim, shape.kv_heads * shape.head_dim,
                to + normed * shape.head_dim);
  }
}

TROUPE_SIMD_VERSIONS
void head_norm_backward(const HeadNormShape& shape, const HeadNormBackward& p) {
  const std::int64_t normed = shape.heads + shape.kv_heads;
  for (std::int64_t t = 0; t < shape.tokens; ++t) {
    const std::int64_t start = t * shape.row();
    for (std::int64_t h = 0; h < normed; ++h) {
      const bool is_query = h < shape.heads;
      const std::int64_t at = start + h * shape.head_dim;
      norm_row_backward(shape.head_dim, p.qkv + at, is_query ? p.q_weight : p.k_weight,
                        p.inverse_rms[t * normed + h], p.out_gradient + at, p.qkv_gradient + at,
                        is_query ? p.q_weight_gradient : p.k_weight_gradient);
    }
    const std::int64_t values = start + normed * shape.head_dim;
    std::copy_n(p.out_gradient + values, shape.kv_heads * shape.head_dim, p.qkv_gradient + values);
  }
}

TROUPE_SIMD_VERSIONS
void swiglu_forward(RowShape shape, const float* gate_up, float* out) {
  const std::int64_t width = shape.width;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* gate = gate_up + r * 2 * width;
    const float* up = gate + width;
    float* to = out + r * width;
    for (std::int64_t i = 0; i < width; ++i) to[i] = gate[i] * sigmoid(gate[i]) * up[i];
  }
}

TROUPE_SIMD_VERSIONS
void swiglu_backward(RowShape shape, const float* gate_up, const float* out_gradient,
                     float* gate_up_gradient) {
  const std::int64_t width = shape.width;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* gate = gate_up + r * 2 * width;
    const float* up = gate + width;
    const float* g = out_gradient + r * width;
    float* gate_to = gate_up_gradient + r * 2 * width;
    float* up_to = gate_to + width;
    for (std::int64_t i = 0; i < width; ++i) {
      const float s = sigmoid(gate[i]);
      gate_to[i] = g[i] * up[i] * s * (1.0F + gate[i] * (1.0F - s));
      up_to[i] = g[i] * gate[i] * s;
    }
  }
}

TROUPE_SIMD_VERSIONS
void log_prob_rows(RowShape shape, const float* logits, const LogProbRows& p) {
  const float scale = p.inverse_temperature;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* z = logits + r * shape.width;
    const float largest = lane_max(shape.width, z);
    double sum = 0.0;
    double dot = 0.0;  // Σ e^d · d with d = (z − max)/temperature
    for (std::int64_t begin = 0; begin < shape.width; begin += kSumBlock) {
      const std::int64_t count = std::min(kSumBlock, shape.width - begin);
      const float* block = z + begin;
      float e[kSumBlock];
      float d[kSumBlock];
      for (std::int64_t i = 0; i < count; ++i) {
        d[i] = (block[i] - largest) * scale;
        e[i] = simd::exp(d[i]);
      }
      sum += static_cast<double>(lane_sum(count, [&e](std::int64_t i) { return e[i]; }));
      dot += static_cast<double>(lane_sum(count, [&e, &d](std::int64_t i) { return e[i] * d[i]; }));
    }
    const double log_sum = std::log(sum);
    const double top = static_cast<double>(largest) * static_cast<double>(scale);
    const double target = static_cast<double>((z[p.targets[r]] - largest) * scale);
    p.log_prob[r] = static_cast<float>(target - log_sum);
    p.entropy[r] = static_cast<float>(log_sum - dot / sum);
    p.log_sum_exp[r] = static_cast<float>(top + log_sum);
  }
}

TROUPE_SIMD_VERSIONS
void log_prob_rows_backward(RowShape shape, float* logits, const LogProbRowsBackward& p) {
  const float scale = p.inverse_temperature;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    float* z = logits + r * shape.width;
    const float lse = p.log_sum_exp[r];
    const float g = p.log_prob_gradient[r] * scale;
    const float h = p.entropy_gradient == nullptr ? 0.0F : p.entropy_gradient[r] * scale;
    const float entropy = p.entropy[r];
    for (std::int64_t i = 0; i < shape.width; ++i) {
      const float log_p = z[i] * scale - lse;
      z[i] = -simd::exp(log_p) * (g + h * (log_p + entropy));
    }
    if (p.targets[r] >= 0) z[p.targets[r]] += g;
  }
}

void gather_rows(std::int64_t width, const float* source, const std::int64_t* index,
                 std::int64_t count, float* target) {
  for (std::int64_t r = 0; r < count; ++r)
    std::copy_n(source + index[r] * width, width, target + r * width);
}

TROUPE_SIMD_VERSIONS
void scatter_add_rows(std::int64_t width, const float* source, const std::int64_t* index,
                      std::int64_t count, float* target) {
  for (std::int64_t r = 0; r < count; ++r) {
    const float* from = source + r * width;
    float* to = target + index[r] * width;
    for (std::int64_t i = 0; i < width; ++i) to[i] += from[i];
  }
}

}  // namespace troupe::actors
