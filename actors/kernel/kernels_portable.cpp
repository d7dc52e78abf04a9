// Plain C++ lanes: the reference for what every other path must compute, bit for bit.

#include "actors/kernel/attention_templates.hpp"
#include "actors/kernel/kernel_sets.hpp"
#include "actors/kernel/row_templates.hpp"
#include "actors/kernel/tile_templates.hpp"

#include <bit>
#include <cmath>

namespace troupe::actors {
namespace {

struct Lanes {
  static constexpr int kTileRows = 4;
  static constexpr int kTileRegisters = 4;
  float v[kLanes];

  template <class F>
  static Lanes each(F&& f) {
    Lanes out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
    return out;
  }
  static Lanes zero() { return broadcast(0.0f); }
  static Lanes broadcast(float x) {
    return each([&](int) { return x; });
  }
  static Lanes load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static void store(float* p, const Lanes& a) {
    for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
  }
  static Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static Lanes add(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static Lanes sub(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static Lanes mul(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static Lanes div(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
  }
  /// The second operand when either is NaN, as x86's maxps.
  static Lanes max(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Lanes min(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  /// To the nearest integer, halves to even.
  static Lanes round(const Lanes& a) {
    return each([&](int i) { return std::nearbyint(a.v[i]); });
  }
  /// 2^n for integers −126 ≤ n ≤ 127.
  static Lanes power_of_two(const Lanes& n) {
    return each([&](int i) {
      return std::bit_cast<float>((static_cast<std::int32_t>(n.v[i]) + 127) << 23);
    });
  }
  /// value where x ≥ bound, else 0.
  static Lanes keep_where_at_least(const Lanes& x, const Lanes& bound, const Lanes& value) {
    return each([&](int i) { return x.v[i] >= bound.v[i] ? value.v[i] : 0.0f; });
  }
  template <class F>
  static float fold(Lanes a, F&& f) {
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) a.v[i] = f(a.v[i], a.v[i + half]);
    return a.v[0];
  }
  static float fold_sum(const Lanes& a) {
    return fold(a, [](float x, float y) { return x + y; });
  }
  static float fold_max(const Lanes& a) {
    return fold(a, [](float x, float y) { return x > y ? x : y; });
  }
};

}  // namespace

const KernelTable& portable_kernels() {
  static constexpr KernelTable kTable{KernelPath::kPortable, &gemm<Lanes>,        &attention<Lanes>,
                                      &rms_norm<Lanes>,      &head_norm<Lanes>,   &rope<Lanes>,
                                      &silu_mul<Lanes>,      &exp_weights<Lanes>, &exp_row<Lanes>};
  return kTable;
}

}  // namespace troupe::actors
