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
  std::int64_t first;         // where its tokens begin
  std::int64_t tokens;        // T of this sequence
  std::int64_t prefix_first;  // where those of its prefix begin
  std::int64_t before;        // P: tokens of its prefix, 0 without one
  std::int64_t keys;          // P + T
  std::int64_t padded_k;      // keys rounded up
  std::int64_t dim;           // D
  std::int64_t padded_d;      // D rounded up
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

/// Rows of a sequence that are gathered or scattered together.
struct Rows {
  std::int64_t count;
  std::int64_t position;  // of the first
};

/// target [count, padded_d] = scale · head of source, rotated by position when `rotate`.
TROUPE_INLINE void gather_head(const Frame& f, Rows rows, const float* source, std::int64_t row,
                               bool rotate, float scale, float* target) {
  const std::int64_t half = f.dim / 2;
  for (std::int64_t t = 0; t < rows.count; ++t) {
    const float* from = source + t * row;
    float* to = target + t * f.padded_d;
    if (rotate) {
      const float* c = f.cosine + (rows.position + t) * half;
      const float* s = f.sine + (rows.position + t) * half;
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

/// The sequence's own rows of a head whose column of all tokens is `source`.
TROUPE_INLINE void gather_own(const Frame& f, const float* source, std::int64_t row, bool rotate,
                              float scale, float* target) {
  gather_head(f, {.count = f.tokens, .position = f.before}, source + f.first * row, row, rotate,
              scale, target);
}

/// The prefix's rows and then its own: target [P + T, padded_d].
TROUPE_INLINE void gather_keys(const Frame& f, const float* source, std::int64_t row, bool rotate,
                               float* target) {
  gather_head(f, {.count = f.before, .position = 0}, source + f.prefix_first * row, row, rotate,
              1.0F, target);
  gather_own(f, source, row, rotate, 1.0F, target + f.before * f.padded_d);
}

/// The inverse of gather_head: rotates back, scales, and stores one head or adds it.
template <bool kAdd>
TROUPE_INLINE void scatter_head(const Frame& f, Rows rows, const float* source, bool rotate,
                                float scale, float* target, std::int64_t row) {
  const std::int64_t half = f.dim / 2;
  const auto put = [](float& to, float value) { to = kAdd ? to + value : value; };
  for (std::int64_t t = 0; t < rows.count; ++t) {
    const float* from = source + t * f.padded_d;
    float* to = target + t * row;
    if (rotate) {
      const float* c = f.cosine + (rows.position + t) * half;
      const float* s = f.sine + (rows.position + t) * half;
      for (std::int64_t i = 0; i < half; ++i) {
        put(to[i], (from[i] * c[i] + from[i + half] * s[i]) * scale);
        put(to[i + half], (from[i + half] * c[i] - from[i] * s[i]) * scale);
      }
    } else {
      for (std::int64_t i = 0; i < f.dim; ++i) put(to[i], from[i] * scale);
    }
  }
}

TROUPE_INLINE void scatter_own(const Frame& f, const float* source, bool rotate, float scale,
                               float* target, std::int64_t row) {
  scatter_head<false>(f, {.count = f.tokens, .position = f.before}, source, rotate, scale,
                      target + f.first * row, row);
}

/// Gradients of keys or values: added to those of the prefix, which an earlier sequence stored.
TROUPE_INLINE void scatter_keys(const Frame& f, const float* source, bool rotate, float* target,
                                std::int64_t row) {
  scatter_head<true>(f, {.count = f.before, .position = 0}, source, rotate, 1.0F,
                     target + f.prefix_first * row, row);
  scatter_own(f, source + f.before * f.padded_d, rotate, 1.0F, target, row);
}

/// target [D, padded_k] = transpose of source [P + T, padded_d]; columns past that become 0.
TROUPE_INLINE void transpose(const Frame& f, const float* source, float* target) {
  for (std::int64_t d = 0; d < f.dim; ++d) {
    float* to = target + d * f.padded_k;
    for (std::int64_t t = 0; t < f.keys; ++t) to[t] = source[t * f.padded_d + d];
    for (std::int64_t t = f.keys; t < f.padded_k; ++t) to[t] = 0.0F;
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
                      std::int64_t all_tokens, float* out, float* log_sum_exp, float* cursor) {
  float* head = take(cursor, f.keys * f.padded_d);
  float* keys_transposed = take(cursor, f.dim * f.padded_k);
  float* values = take(cursor, f.keys * f.padded_d);
  float* scores = take(cursor, kBlock * f.padded_k);
  float* mixed = take(cursor, kBlock * f.padded_d);
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
    gather_keys(f, in.k + kv * f.dim, in.row, true, head);
    transpose(f, head, keys_transposed);
    gather_keys(f, in.v + kv * f.dim, in.row, false, values);
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      gather_own(f, in.q + h * f.dim, in.row, true, f.scale, head);
      for (std::int64_t begin = 0; begin < f.tokens; begin += kBlock) {
        const std::int64_t end = std::min(begin + kBlock, f.tokens);
        const std::int64_t keys = f.before + end;
        const std::int64_t width = simd::round_up(keys, simd::kLanes);
        simd::multiply(end - begin, keys, f.dim, Left{head + begin * f.padded_d, f.padded_d, 1},
                       Right{keys_transposed, f.padded_k}, Target{scores, f.padded_k}, false);
        float sums[kBlock];
        for (std::int64_t i = begin; i < end; ++i)
          exponentiate(scores + (i - begin) * f.padded_k, f.before + i + 1, width, sums[i - begin],
                       log_sum_exp[h * all_tokens + f.first + i]);
        simd::multiply(end - begin, f.dim, keys, Left{scores, f.padded_k, 1},
                       Right{values, f.padded_d}, Target{mixed, f.padded_d}, false);
        for (std::int64_t i = begin; i < end; ++i) {
          float* to = out + (f.first + i) * shape.heads * f.dim + h * f.dim;
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
  float* keys;               // [P + T, padded_d], rotated
  float* keys_transposed;    // [D, padded_k]
  float* values_transposed;  // [D, padded_k]
  float* key_gradient;       // [P + T, padded_d]
  float* value_gradient;     // [P + T, padded_d]
};

/// One query head: adds to the gradients of its kv head, leaves its own in `query_gradient`.
TROUPE_INLINE void backward_head(const Frame& f, const KeyValueScratch& kv, const float* query,
                                 const float* out_gradient, const float* row_dot,
                                 const float* log_sum_exp, float* scores, float* score_gradient,
                                 float* query_gradient) {
  for (std::int64_t begin = 0; begin < f.tokens; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, f.tokens);
    const std::int64_t rows = end - begin;
    const std::int64_t keys = f.before + end;
    const std::int64_t width = simd::round_up(keys, simd::kLanes);
    const float* block_query = query + begin * f.padded_d;
    const float* block_gradient = out_gradient + begin * f.padded_d;
    simd::multiply(rows, keys, f.dim, Left{block_query, f.padded_d, 1},
                   Right{kv.keys_transposed, f.padded_k}, Target{scores, f.padded_k}, false);
    simd::multiply(rows, keys, f.dim, Left{block_gradient, f.padded_d, 1},
                   Right{kv.values_transposed, f.padded_k}, Target{score_gradient, f.padded_k},
                   false);
    for (std::int64_t i = begin; i < end; ++i) {
      float* p = scores + (i - begin) * f.padded_k;
      float* g = score_gradient + (i - begin) * f.padded_k;
      const float lse = log_sum_exp[i];
      const float dot = row_dot[i];
      const std::int64_t seen = f.before + i + 1;
      for (std::int64_t j = 0; j < seen; ++j) {
        p[j] = simd::exp(p[j] - lse);
        g[j] = p[j] * (g[j] - dot);
      }
      for (std::int64_t j = seen; j < width; ++j) p[j] = g[j] = 0.0F;
    }
    simd::multiply(keys, f.dim, rows, Left{scores, 1, f.padded_k},
                   Right{block_gradient, f.padded_d}, Target{kv.value_gradient, f.padded_d}, true);
    simd::multiply(keys, f.dim, rows, Left{score_gradient, 1, f.padded_k},
                   Right{block_query, f.padded_d}, Target{kv.key_gradient, f.padded_d}, true);
    simd::multiply(rows, f.dim, keys, Left{score_gradient, f.padded_k, 1},
                   Right{kv.keys, f.padded_d},
                   Target{query_gradient + begin * f.padded_d, f.padded_d}, false);
  }
}

TROUPE_SIMD_VERSIONS
void backward_sequence(const AttentionShape& shape, const Frame& f, const AttentionInputs& in,
                       const AttentionGradients& grad, std::int64_t all_tokens, float* cursor) {
  const std::int64_t own = f.tokens * f.padded_d;
  const std::int64_t all = f.keys * f.padded_d;
  const KeyValueScratch scratch{take(cursor, all), take(cursor, f.dim * f.padded_k),
                                take(cursor, f.dim * f.padded_k), take(cursor, all),
                                take(cursor, all)};
  float* query = take(cursor, own);
  float* query_gradient = take(cursor, own);
  float* out_gradient = take(cursor, own);
  float* row_dot = take(cursor, f.padded_k);
  float* scores = take(cursor, kBlock * f.padded_k);
  float* score_gradient = take(cursor, kBlock * f.padded_k);
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::int64_t out_row = shape.heads * f.dim;
  for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
    gather_keys(f, in.v + kv * f.dim, in.row, false, scratch.keys);
    transpose(f, scratch.keys, scratch.values_transposed);
    gather_keys(f, in.k + kv * f.dim, in.row, true, scratch.keys);
    transpose(f, scratch.keys, scratch.keys_transposed);
    std::fill_n(scratch.key_gradient, all, 0.0F);
    std::fill_n(scratch.value_gradient, all, 0.0F);
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      gather_own(f, in.q + h * f.dim, in.row, true, f.scale, query);
      gather_own(f, grad.out_gradient + h * f.dim, out_row, false, 1.0F, out_gradient);
      for (std::int64_t t = 0; t < f.tokens; ++t) {
        const float* o = grad.out + (f.first + t) * out_row + h * f.dim;
        float dot = 0.0F;
        for (std::int64_t d = 0; d < f.dim; ++d) dot += o[d] * out_gradient[t * f.padded_d + d];
        row_dot[t] = dot;
      }
      backward_head(f, scratch, query, out_gradient, row_dot,
                    grad.log_sum_exp + h * all_tokens + f.first, scores, score_gradient,
                    query_gradient);
      scatter_own(f, query_gradient, true, f.scale, grad.q + h * f.dim, in.row);
    }
    scatter_keys(f, scratch.key_gradient, true, grad.k + kv * f.dim, in.row);
    scatter_keys(f, scratch.value_gradient, false, grad.v + kv * f.dim, in.row);
  }
}

Frame frame_of(const AttentionShape& shape, const RotaryTable& table, const AttentionInputs& in,
               std::size_t sequence) {
  Frame f{.first = in.offsets[sequence],
          .tokens = in.offsets[sequence + 1] - in.offsets[sequence],
          .prefix_first = 0,
          .before = 0,
          .keys = 0,
          .padded_k = 0,
          .dim = shape.head_dim,
          .padded_d = simd::round_up(shape.head_dim, simd::kLanes),
          .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
          .cosine = table.cosine.data(),
          .sine = table.sine.data()};
  if (!in.prefixes.empty() && in.prefixes[sequence] >= 0) {
    const auto prefix = static_cast<std::size_t>(in.prefixes[sequence]);
    f.prefix_first = in.offsets[prefix];
    f.before = in.offsets[prefix + 1] - in.offsets[prefix];
  }
  f.keys = f.before + f.tokens;
  f.padded_k = simd::round_up(f.keys, simd::kLanes);
  return f;
}

/// Grows the scratch to what the longest sequence needs.
float* reserve(AttentionScratch& scratch, const AttentionShape& shape, const AttentionInputs& in) {
  const std::int64_t t = simd::round_up(longest_sequence(in.offsets, in.prefixes), simd::kLanes);
  const std::int64_t d = simd::round_up(shape.head_dim, simd::kLanes);
  const std::int64_t needed = 8 * t * d + 2 * kBlock * t + kBlock * d + t;
  if (static_cast<std::int64_t>(scratch.size()) < needed)
    scratch.resize(static_cast<std::size_t>(needed));
  return scratch.data();
}

}  // namespace

std::int64_t longest_sequence(std::span<const std::int64_t> offsets,
                              std::span<const std::int64_t> prefixes) {
  const auto length = [offsets](std::size_t s) { return offsets[s + 1] - offsets[s]; };
  std::int64_t longest = 0;
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
    const bool goes_on = !prefixes.empty() && prefixes[s] >= 0;
    const std::int64_t before = goes_on ? length(static_cast<std::size_t>(prefixes[s])) : 0;
    longest = std::max(longest, before + length(s));
  }
  return longest;
}

void attention_forward(const AttentionShape& shape, const RotaryTable& table,
                       const AttentionInputs& in, float* out, float* log_sum_exp,
                       AttentionScratch& scratch) {
  float* cursor = reserve(scratch, shape, in);
  for (std::size_t s = 0; s + 1 < in.offsets.size(); ++s)
    forward_sequence(shape, frame_of(shape, table, in, s), in, in.offsets.back(), out, log_sum_exp,
                     cursor);
}

void attention_backward(const AttentionShape& shape, const RotaryTable& table,
                        const AttentionInputs& in, const AttentionGradients& gradients,
                        AttentionScratch& scratch) {
  float* cursor = reserve(scratch, shape, in);
  for (std::size_t s = 0; s + 1 < in.offsets.size(); ++s)
    backward_sequence(shape, frame_of(shape, table, in, s), in, gradients, in.offsets.back(),
                      cursor);
}

}  // namespace troupe::actors
