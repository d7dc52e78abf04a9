#pragma once

// The kernels of one instruction set as a table of functions, chosen once at run time.
//
// Fixed order: every output element is one chain of fused multiply-adds in ascending order of the
// summed index, or a sum over 16 fixed lanes folded 8, 4, 2, 1. Tile shapes, batch sizes, vector
// widths and chunks of a prompt only change which chains run side by side, never a chain. So a
// row's bits depend on the row's inputs alone.
// **Rows:** row buffers have a stride that is a multiple of 16 floats, and what lies between the
// last column and the stride is zero on input (kernels keep it zero or finite).
// **Ownership:** all pointers are borrowed for the call.
// **Threads:** kernels are pure; different threads may run them on different outputs.

#include "actors/kernel/kernel_path.hpp"

#include <cstddef>
#include <cstdint>

namespace troupe::actors {

inline constexpr int kLanes = 16;  ///< floats of a panel, a lane group, and a KV block

/// `count` rounded up to a multiple of 16.
constexpr std::int64_t padded(std::int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

/// out[r][j] = (accumulate ? out[r][j] : 0) + bias[j] + Σ_k in[r][k] · panel[j/16][k][j%16].
/// The sum is one fma chain from 0 in ascending k; then bias, then the old value are added.
struct GemmCall {
  const float* input = nullptr;  ///< [rows, depth], row stride `input_stride`
  std::ptrdiff_t input_stride = 0;
  const float* panels = nullptr;  ///< [panel_count][depth][16]
  std::int64_t panel_count = 0;
  std::int64_t depth = 0;
  std::int64_t rows = 0;
  const float* bias = nullptr;  ///< [panel_count * 16], or null
  float* output = nullptr;      ///< [rows, panel_count * 16], row stride `output_stride`
  std::ptrdiff_t output_stride = 0;
  bool accumulate = false;
};

/// Attention of the `heads` query heads that share one kv head, for `queries` consecutive
/// positions of one sequence: query i sees keys 0 .. first_keys + i − 1.
struct AttentionCall {
  const float* query = nullptr;  ///< query i, head h at query + i·query_stride + h·head_dim; scaled
  std::ptrdiff_t query_stride = 0;
  float* output = nullptr;  ///< same layout with output_stride
  std::ptrdiff_t output_stride = 0;
  std::int64_t queries = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t first_keys = 0;           ///< keys seen by query 0, ≥ 1
  const float* cache = nullptr;          ///< block 0 of this layer and kv head: keys [D][16]
  std::ptrdiff_t values_offset = 0;      ///< from keys to values [16][padded(D)]
  std::ptrdiff_t block_stride = 0;       ///< floats between blocks
  const std::int32_t* blocks = nullptr;  ///< block table of the sequence
  float* scratch = nullptr;              ///< attention_scratch_floats(…) floats
};

/// Queries that share one walk over the keys; callers may pass any number.
inline constexpr std::int64_t kAttentionQueries = 4;

/// Floats of scratch for up to `keys` keys.
constexpr std::int64_t attention_scratch_floats(std::int64_t heads, std::int64_t head_dim,
                                                std::int64_t keys) {
  const std::int64_t width = padded(head_dim) < 64 ? 64 : padded(head_dim);  // with its chains
  return kAttentionQueries * heads * (padded(keys) + kLanes + width) + 2 * kLanes;
}

struct KernelTable {
  KernelPath path;
  void (*gemm)(const GemmCall&);
  void (*attention)(const AttentionCall&);
  /// out = in · rsqrt(mean(in²) + eps) · weight over `columns`; in and out may be the same.
  void (*rms_norm)(const float* in, const float* weight, std::int64_t columns, float eps,
                   float* out);
  /// The same over short vectors of any length and alignment (q and k heads), in place.
  void (*head_norm)(float* head, const float* weight, std::int64_t columns, float eps);
  /// Turns dimension i with i + half by the angle whose cosine and sine are given (half each), then
  /// multiplies by `scale`: (x0·c − x1·s)·scale, (x1·c + x0·s)·scale.
  void (*rope)(float* head, const float* cosine, const float* sine, std::int64_t half, float scale);
  /// out[j] = silu(gate[j]) · up[j] for j < padded(columns).
  void (*silu_mul)(const float* gate, const float* up, std::int64_t columns, float* out);
  /// weights[j] = exp((logits[j] − max) · inverse_temperature) for j < count; returns max.
  /// Non-finite logits give a NaN result.
  float (*exp_weights)(const float* logits, std::int64_t count, float inverse_temperature,
                       float* weights);
  /// y = exp(x), elementwise, within 2 ulp for −87 ≤ x ≤ 88; 0 below; saturates above.
  void (*exp)(const float* in, std::int64_t count, float* out);
};

/// The table of an available path (CHECKs that it is); `kAuto` picks the fastest.
const KernelTable& kernel_table(KernelPath path = KernelPath::kAuto);

}  // namespace troupe::actors
