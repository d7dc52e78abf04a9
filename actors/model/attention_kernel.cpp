#include "actors/model/attention_kernel.hpp"

#include "actors/model/simd.hpp"

#include <cmath>

namespace troupe::actors {
namespace {

using simd::Left;
using simd::Right;
using simd::Target;

// Query rows per block: 16 skips most of the causal upper triangle of short sequences and still
// feeds the 4-row tiles (32 was 15 % slower at T = 32, equal at T = 512; bench/train).
constexpr std::int64_t kBlock = 16;

/// One sequence's view of the problem and its scratch, all padded with zeros to whole lanes.
struct Frame {
  std::int64_t tokens;    // T of this sequence
  std::int64_t padded_t;  // T rounded up
  std::int64_t dim;       // D
  std::int64_t padded_d;  // D rounded up
  float scale;
  const float* cosine;
  const float* sine;
};

/// Takes `count` floats from the scratch and moves on.
TROUPE_INLINE float* take(float*& cursor, std::int64_t count) {
  float* part = cursor;
  cursor += count;
  return part;
}

/// target [T, padded_d] = scale · head of source, rotated by position when `rotate`.
TROUPE_INLINE void gather_head(const Frame& f, const float* source, std::int64_t row, bool rotate,
                               float scale, float* target) {
  const std::int64_t half = f.dim / 2;
  for (std::int64_t t = 0; t < f.tokens; ++t) {
    const float* from = source + t * row;
    float* to = target + t * f.padded_d;
    if (rotate) {
      const float* c = f.cosine + t * half;
      const float* s = f.sine + t * half;
      for (std::int64_t i = 0; i < half; ++i) {
        const float low = from[i];
        const float high = from[i + half];
        to[i] = (low * c[i] - high * s[i]) * scale;
        to[i + half] = (high * c[i] + low * s[i]) * scale;
      }
    } else {
      for (std::int64_t i = 0; i < f.dim; ++i) to[i] = from[i] * scale;
    }
    for (std::int64_t i = f.dim; i < f.padded_d; ++i) to[i] = 0.0F;
  }
}

/// The inverse of gather_head: rotates back, scales and stores one head.
TROUPE_INLINE void scatter_head(const Frame& f, const float* source, bool rotate, float scale,
                                float* target, std::int64_t row) {
  const std::int64_t half = f.dim / 2;
  for (std::int64_t t = 0; t < f.tokens; ++t) {
    const float* from = source + t * f.padded_d;
    float* to = target + t * row;
    if (rotate) {
      const float* c = f.cosine + t * half;
      const float* s = f.sine + t * half;
      for (std::int64_t i = 0; i < half; ++i) {
        to[i] = (from[i] * c[i] + from[i + half] * s[i]) * scale;
        to[i + half] = (from[i + half] * c[i] - from[i] * s[i]) * scale;
      }
    } else {
      for (std::int64_t i = 0; i < f.dim; ++i) to[i] = from[i] * scale;
    }
  }
}

/// target [D, padded_t] = transpose of source [T, padded_d]; columns past T become 0.
TROUPE_INLINE void transpose(const Frame& f, const float* source, float* target) {
  for (std::int64_t d = 0; d < f.dim; ++d) {
    float* to = target + d * f.padded_t;
    for (std::int64_t t = 0; t < f.tokens; ++t) to[t] = source[t * f.padded_d + d];
    for (std::int64_t t = f.tokens; t < f.padded_t; ++t) to[t] = 0.0F;
  }
}

/// Softmax of one causal row of scores in place, unnormalised; returns (sum, log-sum-exp).
TROUPE_INLINE void exponentiate(float* scores, std::int64_t keys, std::int64_t width, float& sum,
                                float& log_sum_exp) {
  float largest = scores[0];
  for (std::int64_t j = 1; j < keys; ++j) largest = scores[j] > largest ? scores[j] : largest;
  for (std::int64_t j = 0; j < keys; ++j) scores[j] = simd::exp(scores[j] - largest);
  for (std::int64_t j = keys; j < width; ++j) scores[j] = 0.0F;
  // Lane-wise partial sums in a fixed order; entries past `keys` are 0.
  float lanes[simd::kLanes] = {};
  for (std::int64_t j = 0; j < width; j += simd::kLanes)
    for (std::int64_t i = 0; i < simd::kLanes; ++i) lanes[i] += scores[j + i];
  float total = 0.0F;
  for (float lane : lanes) total += lane;
  sum = total;
  log_sum_exp = largest + std::log(total);
}

TROUPE_SIMD_VERSIONS
void forward_sequence(const AttentionShape& shape, const Frame& f, const AttentionInputs& in,
                      std::int64_t first, std::int64_t all_tokens, float* out, float* log_sum_exp,
                      float* cursor) {
  float* head = take(cursor, f.tokens * f.padded_d);
  float* keys_transposed = take(cursor, f.dim * f.padded_t);
  float* values = take(cursor, f.tokens * f.padded_d);
  float* scores = take(cursor, kBlock * f.padded_t);
  float* mixed = take(cursor, kBlock * f.padded_d);
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
    gather_head(f, in.k + first * in.row + kv * f.dim, in.row, true, 1.0F, head);
    transpose(f, head, keys_transposed);
    gather_head(f, in.v + first * in.row + kv * f.dim, in.row, false, 1.0F, values);
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      gather_head(f, in.q + first * in.row + h * f.dim, in.row, true, f.scale, head);
      for (std::int64_t begin = 0; begin < f.tokens; begin += kBlock) {
        const std::int64_t end = std::min(begin + kBlock, f.tokens);
        const std::int64_t width = simd::round_up(end, simd::kLanes);
        simd::multiply(end - begin, end, f.dim, Left{head + begin * f.padded_d, f.padded_d, 1},
                       Right{keys_transposed, f.padded_t}, Target{scores, f.padded_t}, false);
        float sums[kBlock];
        for (std::int64_t i = begin; i < end; ++i)
          exponentiate(scores + (i - begin) * f.padded_t, i + 1, width, sums[i - begin],
                       log_sum_exp[h * all_tokens + first + i]);
        simd::multiply(end - begin, f.dim, end, Left{scores, f.padded_t, 1},
                       Right{values, f.padded_d}, Target{mixed, f.padded_d}, false);
        for (std::int64_t i = begin; i < end; ++i) {
          float* to = out + (first + i) * shape.heads * f.dim + h * f.dim;
          const float inverse = 1.0F / sums[i - begin];
          for (std::int64_t d = 0; d < f.dim; ++d)
            to[d] = mixed[(i - begin) * f.padded_d + d] * inverse;
        }
      }
    }
  }
}

/// What backward holds of one kv head.
struct KeyValueScratch {
  float* keys;               // [T, padded_d], rotated
  float* keys_transposed;    // [D, padded_t]
  float* values_transposed;  // [D, padded_t]
  float* key_gradient;       // [T, padded_d]
  float* value_gradient;     // [T, padded_d]
};

/// One query head: adds to the gradients of its kv head, leaves its own in `query_gradient`.
TROUPE_INLINE void backward_head(const Frame& f, const KeyValueScratch& kv, const float* query,
                                 const float* out_gradient, const float* row_dot,
                                 const float* log_sum_exp, float* scores, float* score_gradient,
                                 float* query_gradient) {
  for (std::int64_t begin = 0; begin < f.tokens; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, f.tokens);
    const std::int64_t rows = end - begin;
    const std::int64_t width = simd::round_up(end, simd::kLanes);
    const float* block_query = query + begin * f.padded_d;
    const float* block_gradient = out_gradient + begin * f.padded_d;
    simd::multiply(rows, end, f.dim, Left{block_query, f.padded_d, 1},
                   Right{kv.keys_transposed, f.padded_t}, Target{scores, f.padded_t}, false);
    simd::multiply(rows, end, f.dim, Left{block_gradient, f.padded_d, 1},
                   Right{kv.values_transposed, f.padded_t}, Target{score_gradient, f.padded_t},
                   false);
    for (std::int64_t i = begin; i < end; ++i) {
      float* p = scores + (i - begin) * f.padded_t;
      float* g = score_gradient + (i - begin) * f.padded_t;
      const float lse = log_sum_exp[i];
      const float dot = row_dot[i];
      for (std::int64_t j = 0; j <= i; ++j) {
        p[j] = simd::exp(p[j] - lse);
        g[j] = p[j] * (g[j] - dot);
      }
      for (std::int64_t j = i + 1; j < width; ++j) p[j] = g[j] = 0.0F;
    }
    simd::multiply(end, f.dim, rows, Left{scores, 1, f.padded_t}, Right{block_gradient, f.padded_d},
                   Target{kv.value_gradient, f.padded_d}, true);
    simd::multiply(end, f.dim, rows, Left{score_gradient, 1, f.padded_t},
                   Right{block_query, f.padded_d}, Target{kv.key_gradient, f.padded_d}, true);
    simd::multiply(rows, f.dim, end, Left{score_gradient, f.padded_t, 1},
                   Right{kv.keys, f.padded_d},
                   Target{query_gradient + begin * f.padded_d, f.padded_d}, false);
  }
}

TROUPE_SIMD_VERSIONS
void backward_sequence(const AttentionShape& shape, const Frame& f, const AttentionInputs& in,
                       const AttentionGradients& grad, std::int64_t first, std::int64_t all_tokens,
                       float* cursor) {
  const std::int64_t rows = f.tokens * f.padded_d;
  const KeyValueScratch scratch{take(cursor, rows), take(cursor, f.dim * f.padded_t),
                                take(cursor, f.dim * f.padded_t), take(cursor, rows),
                                take(cursor, rows)};
  float* query = take(cursor, rows);
  float* query_gradient = take(cursor, rows);
  float* out_gradient = take(cursor, rows);
  float* row_dot = take(cursor, f.padded_t);
  float* scores = take(cursor, kBlock * f.padded_t);
  float* score_gradient = take(cursor, kBlock * f.padded_t);
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::int64_t out_row = shape.heads * f.dim;
  for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
    const std::int64_t kv_start = first * in.row + kv * f.dim;
    gather_head(f, in.v + kv_start, in.row, false, 1.0F, scratch.keys);
    transpose(f, scratch.keys, scratch.values_transposed);
    gather_head(f, in.k + kv_start, in.row, true, 1.0F, scratch.keys);
    transpose(f, scratch.keys, scratch.keys_transposed);
    std::fill_n(scratch.key_gradient, rows, 0.0F);
    std::fill_n(scratch.value_gradient, rows, 0.0F);
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      const std::int64_t q_start = first * in.row + h * f.dim;
      const std::int64_t out_start = first * out_row + h * f.dim;
      gather_head(f, in.q + q_start, in.row, true, f.scale, query);
      gather_head(f, grad.out_gradient + out_start, out_row, false, 1.0F, out_gradient);
      for (std::int64_t t = 0; t < f.tokens; ++t) {
        const float* o = grad.out + out_start + t * out_row;
        float dot = 0.0F;
        for (std::int64_t d = 0; d < f.dim; ++d) dot += o[d] * out_gradient[t * f.padded_d + d];
        row_dot[t] = dot;
      }
      backward_head(f, scratch, query, out_gradient, row_dot,
                    grad.log_sum_exp + h * all_tokens + first, scores, score_gradient,
                    query_gradient);
      scatter_head(f, query_gradient, true, f.scale, grad.q + q_start, in.row);
    }
    scatter_head(f, scratch.key_gradient, true, 1.0F, grad.k + kv_start, in.row);
    scatter_head(f, scratch.value_gradient, false, 1.0F, grad.v + kv_start, in.row);
  }
}

Frame frame_of(const AttentionShape& shape, const RotaryTable& table, std::int64_t tokens) {
  return Frame{.tokens = tokens,
               .padded_t = simd::round_up(tokens, simd::kLanes),
               .dim = shape.head_dim,
               .padded_d = simd::round_up(shape.head_dim, simd::kLanes),
               .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
               .cosine = table.cosine.data(),
               .sine = table.sine.data()};
}

/// Grows the scratch to what the longest sequence of `offsets` needs.
float* reserve(AttentionScratch& scratch, const AttentionShape& shape,
               std::span<const std::int64_t> offsets) {
  std::int64_t longest = 0;
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s)
    longest = std::max(longest, offsets[s + 1] - offsets[s]);
  const std::int64_t t = simd::round_up(longest, simd::kLanes);
  const std::int64_t d = simd::round_up(shape.head_dim, simd::kLanes);
  const std::int64_t needed = 8 * t * d + 2 * kBlock * t + kBlock * d + t;
  if (static_cast<std::int64_t>(scratch.size()) < needed)
    scratch.resize(static_cast<std::size_t>(needed));
  return scratch.data();
}

}  // namespace

void attention_forward(const AttentionShape& shape, const RotaryTable& table,
                       const AttentionInputs& in, float* out, float* log_sum_exp,
                       AttentionScratch& scratch) {
  float* cursor = reserve(scratch, shape, in.offsets);
  for (std::size_t s = 0; s + 1 < in.offsets.size(); ++s)
    forward_sequence(shape, frame_of(shape, table, in.offsets[s + 1] - in.offsets[s]), in,
                     in.offsets[s], in.offsets.back(), out, log_sum_exp, cursor);
}

void attention_backward(const AttentionShape& shape, const RotaryTable& table,
                        const AttentionInputs& in, const AttentionGradients& gradients,
                        AttentionScratch& scratch) {
  float* cursor = reserve(scratch, shape, in.offsets);
  for (std::size_t s = 0; s + 1 < in.offsets.size(); ++s)
    backward_sequence(shape, frame_of(shape, table, in.offsets[s + 1] - in.offsets[s]), in,
                      gradients, in.offsets[s], in.offsets.back(), cursor);
}

}  // namespace troupe::actors
