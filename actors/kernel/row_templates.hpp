#pragma once

// Row kernels over a type `L` of 16 float lanes: RMSNorm, silu·mul, exp.
//
// **Threads:** pure.
// **Invariants:** sums run in 16 lanes (element j in lane j mod 16) folded in one fixed tree; exp
// is one polynomial for every path, so all bits agree.

#include "actors/kernel/kernel_table.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

namespace troupe::actors {

/// exp(x) within 2 ulp on [−87, 88]; 0 below; 2.4e38 above. x = n·ln 2 + r with |r| ≤ ln 2 / 2, a
/// degree-6 polynomial in r (Taylor terms with minimax tail as in Cephes expf), times 2^n.
template <class L>
[[gnu::always_inline]] inline L exp_lanes(L x) {
  const L lowest = L::broadcast(-87.3f);
  const L highest = L::broadcast(88.3f);
  const L bounded = L::min(L::max(x, lowest), highest);
  const L n = L::round(L::mul(bounded, L::broadcast(1.44269504088896341f)));
  L r = L::fma(n, L::broadcast(-0.693359375f), bounded);
  r = L::fma(n, L::broadcast(2.12194440e-4f), r);
  L p = L::broadcast(1.9875691500e-4f);
  p = L::fma(p, r, L::broadcast(1.3981999507e-3f));
  p = L::fma(p, r, L::broadcast(8.3334519073e-3f));
  p = L::fma(p, r, L::broadcast(4.1665795894e-2f));
  p = L::fma(p, r, L::broadcast(1.6666665459e-1f));
  p = L::fma(p, r, L::broadcast(5.0000001201e-1f));
  p = L::fma(L::mul(r, r), p, r);
  p = L::add(p, L::broadcast(1.0f));
  return L::keep_where_at_least(x, lowest, L::mul(p, L::power_of_two(n)));
}

template <class L>
void rms_norm(const float* in, const float* weight, std::int64_t columns, float eps, float* out) {
  L squares = L::zero();
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    const L x = L::load(in + j);
    squares = L::fma(x, x, squares);
  }
  const float mean = L::fold_sum(squares) / static_cast<float>(columns);
  const L scale = L::broadcast(1.0f / std::sqrt(mean + eps));
  for (std::int64_t j = 0; j < columns; j += kLanes)
    L::store(out + j, L::mul(L::mul(L::load(in + j), scale), L::load(weight + j)));
}

template <class L>
void head_norm(float* head, const float* weight, std::int64_t columns, float eps) {
  float lanes[kLanes] = {};
  L squares = L::zero();
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = j + i < columns ? head[j + i] : 0.0f;
    const L x = L::load(lanes);
    squares = L::fma(x, x, squares);
  }
  const float mean = L::fold_sum(squares) / static_cast<float>(columns);
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (std::int64_t j = 0; j < columns; ++j) head[j] = head[j] * scale * weight[j];
}

template <class L>
void rope(float* head, const float* cosine, const float* sine, std::int64_t half, float scale) {
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const L x0 = L::load(head + i);
    const L x1 = L::load(head + half + i);
    const L c = L::load(cosine + i);
    const L s = L::load(sine + i);
    const L factor = L::broadcast(scale);
    L::store(head + i, L::mul(L::sub(L::mul(x0, c), L::mul(x1, s)), factor));
    L::store(head + half + i, L::mul(L::add(L::mul(x1, c), L::mul(x0, s)), factor));
  }
  for (; i < half; ++i) {
    const float x0 = head[i];
    const float x1 = head[half + i];
    head[i] = (x0 * cosine[i] - x1 * sine[i]) * scale;
    head[half + i] = (x1 * cosine[i] + x0 * sine[i]) * scale;
  }
}

template <class L>
void silu_mul(const float* gate, const float* up, std::int64_t columns, float* out) {
  const L one = L::broadcast(1.0f);
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    const L x = L::load(gate + j);
    const L divisor = L::add(one, exp_lanes<L>(L::sub(L::zero(), x)));
    L::store(out + j, L::mul(L::div(x, divisor), L::load(up + j)));
  }
}

template <class L>
float exp_weights(const float* logits, std::int64_t count, float inverse_temperature,
                  float* weights) {
  const std::int64_t whole = count / kLanes * kLanes;
  float tail[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) tail[i] = logits[whole + i < count ? whole + i : 0];
  L top = L::load(tail);
  L poison = L::mul(top, L::zero());  // NaN as soon as one logit is not finite
  for (std::int64_t j = 0; j < whole; j += kLanes) {
    const L x = L::load(logits + j);
    top = L::max(top, x);
    poison = L::fma(x, L::zero(), poison);
  }
  const float bad = L::fold_sum(poison);
  if (bad != 0.0f) return std::numeric_limits<float>::quiet_NaN();
  const float max = L::fold_max(top);
  const L shift = L::broadcast(max);
  const L scale = L::broadcast(inverse_temperature);
  for (std::int64_t j = 0; j < whole; j += kLanes)
    L::store(weights + j, exp_lanes<L>(L::mul(L::sub(L::load(logits + j), shift), scale)));
  if (whole < count) {
    L::store(tail, exp_lanes<L>(L::mul(L::sub(L::load(tail), shift), scale)));
    for (std::int64_t i = 0; whole + i < count; ++i) weights[whole + i] = tail[i];
  }
  return max;
}

template <class L>
void exp_row(const float* in, std::int64_t count, float* out) {
  float lanes[kLanes];
  for (std::int64_t j = 0; j < count; j += kLanes) {
    for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = j + i < count ? in[j + i] : 0.0f;
    L::store(lanes, exp_lanes<L>(L::load(lanes)));
    for (std::int64_t i = 0; i < kLanes && j + i < count; ++i) out[j + i] = lanes[i];
  }
}

}  // namespace troupe::actors
