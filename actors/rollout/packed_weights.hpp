#pragma once

// The weights that one rank holds of a decoder, in the form the kernels read: fused q/k/v and
// gate/up matrices, packed into panels; norms and biases padded to 16.
//
// **Ownership:** owns packed copies; sources are not referenced afterwards.
// **Threads:** const access from any thread; `write` from one.
// **Invariants:** has room for every slot of `weight_slots` and nothing else but padding, which is
// zero; a tied head is stored once; addresses never change.

#include "actors/kernel/packed_matrix.hpp"
#include "actors/model/model_config.hpp"
#include "actors/model/weight_set.hpp"
#include "actors/rollout/weight_slot.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

/// Sizes are the rank's own: N/tp query heads, F/tp mlp columns.
struct PackedLayer {
  AlignedBuffer input_norm;  ///< [H]
  AlignedBuffer post_norm;   ///< [H]
  AlignedBuffer q_norm;      ///< [D], empty without qk-norm
  AlignedBuffer k_norm;
  PackedMatrix qkv;      ///< outputs: q [N·D], k [K·D], v [K·D]
  PackedMatrix o;        ///< [H, N·D]
  PackedMatrix gate_up;  ///< outputs: gate [F], up from padded(F)
  PackedMatrix down;     ///< [H, F]
  AlignedBuffer qkv_bias, o_bias, gate_up_bias, down_bias;  ///< empty when the model has none
};

class PackedWeights {
 public:
  PackedWeights() = default;
  /// All zero; pages are touched when written.
  explicit PackedWeights(const ModelShare& share);

  /// The whole model on one rank. kInvalidArgument or kNotFound naming the tensor when names or
  /// shapes are wrong.
  static result<PackedWeights> pack(const ModelConfig& config,
                                    std::span<const NamedTensor> tensors);

  /// Writes box `box` ⊆ slot.held from `data`, whose rows are `row_stride` apart.
  void write(const WeightSlot& slot, const reshard::Box& box, const float* data,
             std::int64_t row_stride);

  /// Embedding row `row` of those held, [H].
  void copy_embedding(std::int64_t row, std::span<float> target) const;

  const std::vector<PackedLayer>& layers() const { return layers_; }
  const AlignedBuffer& final_norm() const { return final_norm_; }
  const PackedMatrix& head() const { return head_; }
  Bytes bytes() const;
  /// Every array of numbers, padding included, in a fixed order; for tests.
  std::vector<std::span<const float>> arrays() const;

 private:
  PackedMatrix* matrix_of(const WeightSlot& slot);
  AlignedBuffer& vector_of(const WeightSlot& slot);

  std::vector<PackedLayer> layers_;
  AlignedBuffer final_norm_;
  PackedMatrix head_;        // [V/tp, H]
  AlignedBuffer embedding_;  // [V/tp, H] row-major, empty when tied
};

}  // namespace troupe::actors
