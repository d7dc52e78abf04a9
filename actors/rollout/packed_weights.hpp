#pragma once

// The weights of one decoder in the form the kernels read: fused q/k/v and gate/up matrices, packed
// into panels; norms and biases padded to 16.
//
// **Ownership:** owns a packed copy; the source tensors are not referenced afterwards.
// **Threads:** const access from any thread.
// **Invariants:** holds every tensor of `expected_tensors(config)`; a tied head is stored once.

#include "actors/kernel/packed_matrix.hpp"
#include "actors/model/model_config.hpp"
#include "actors/model/weight_set.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

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
  /// kInvalidArgument or kNotFound naming the tensor when names or shapes are wrong.
  static result<PackedWeights> pack(const ModelConfig& config,
                                    std::span<const NamedTensor> tensors);

  /// Embedding row of `token`, [H].
  void copy_embedding(std::int32_t token, std::span<float> target) const;

  const std::vector<PackedLayer>& layers() const { return layers_; }
  const AlignedBuffer& final_norm() const { return final_norm_; }
  const PackedMatrix& head() const { return head_; }
  Bytes bytes() const;

 private:
  std::vector<PackedLayer> layers_;
  AlignedBuffer final_norm_;
  PackedMatrix head_;        // [V, H]
  AlignedBuffer embedding_;  // [V, H] row-major, empty when tied
};

}  // namespace troupe::actors
