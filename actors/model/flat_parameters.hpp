#pragma once

// All parameters of a model in one buffer of f32, and their gradients in another.
//
// One buffer makes the optimizer, the norm and the all-reduce single loops. Neighbouring tensors of
// a group also form one *leaf*, e.g. q, k and v of a layer as one [(N+2K)·D, H] matrix, so that a
// layer multiplies once. The canonical Hugging Face tensors are views of rows of it.
// **Ownership:** owns both buffers; views and leaves point into them and live as long.
// **Threads:** one thread at a time.
// **Invariants:** leaves never move; gaps between groups (alignment) hold 0 for ever; the weights
// are the optimizer's f32 masters, there is no second copy.

#include "actors/model/weight_set.hpp"
#include "runtime/base/result.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// Where one canonical tensor lies in the buffers.
struct ParameterSegment {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< in floats
  std::int64_t count = 0;
  bool is_matrix() const { return shape.size() > 1; }  ///< weight decay applies
};

/// Tensors stacked along their first dimension into one leaf.
using ParameterGroup = std::vector<TensorShape>;

class FlatParameters {
 public:
  /// All zero. Segments keep the order of `canonical`, whose tensors the groups must cover once.
  FlatParameters(std::span<const ParameterGroup> groups, std::span<const TensorShape> canonical,
                 bool trainable);

  const at::Tensor& leaf(std::size_t group) const { return leaves_[group]; }
  std::span<const ParameterSegment> segments() const { return segments_; }
  const ParameterSegment* find(std::string_view name) const;

  std::span<float> weights();
  /// Empty unless allocated.
  std::span<float> gradients();
  /// Views of the weights in canonical order.
  std::span<const NamedTensor> tensors() const { return tensors_; }

  /// Makes the gradient buffer if there is none, and sets it to 0. CHECKs `trainable`.
  void zero_gradients();
  void release_gradients();

 private:
  at::Tensor weights_;
  at::Tensor gradients_;
  bool trainable_;
  std::vector<at::Tensor> leaves_;
  std::vector<std::int64_t> leaf_offsets_;
  std::vector<ParameterSegment> segments_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace troupe::actors
