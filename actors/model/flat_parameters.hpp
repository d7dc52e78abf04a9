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

/// One canonical tensor as a rank computes with it: the whole, or (tensor parallel) a box of it.
struct LocalTensor {
  std::string name;
  std::vector<std::int64_t> shape;  ///< of the box
  std::vector<std::int64_t> whole;  ///< of the canonical tensor
  std::int64_t row_begin = 0;       ///< where the box lies in it
  std::int64_t col_begin = 0;
  bool owned = true;  ///< false: a copy of what another rank counts in norms and checkpoints

  static LocalTensor of(const TensorShape& tensor) {
    return {.name = tensor.name, .shape = tensor.shape, .whole = tensor.shape};
  }
};

/// Where one tensor lies in the buffers.
struct ParameterSegment {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< in floats
  std::int64_t count = 0;
  LocalTensor tensor = {};
  bool is_matrix() const { return shape.size() > 1; }  ///< weight decay applies
};

/// Tensors stacked along their first dimension into one leaf.
using ParameterGroup = std::vector<LocalTensor>;
/// Leaves that are needed together: the embedding, a layer, the final norm, the head.
using ParameterUnit = std::vector<ParameterGroup>;

/// The leaves of one unit, there while the lease lives and, by `watch`, again in backward.
class UnitLease {
 public:
  explicit UnitLease(std::span<const at::Tensor> leaves) : leaves_(leaves) {}

  const at::Tensor& operator[](std::size_t leaf) const { return leaves_[leaf]; }
  std::size_t size() const { return leaves_.size(); }
  /// To be called on everything that was computed with the leaves and goes on from here, all at
  /// once: gives the same tensors, whose backward first sees to it that the leaves are there.
  /// Undefined tensors stay so.
  void watch(std::span<at::Tensor* const> outputs) const;

 private:
  std::span<const at::Tensor> leaves_;
};

class FlatParameters {
 public:
  /// All zero. Segments keep the order of `canonical`, whose tensors the units must cover once.
  FlatParameters(std::span<const ParameterUnit> units, std::span<const TensorShape> canonical,
                 bool trainable);

  /// Takes the leaves of a unit for a forward pass; ask again at each use, keep none.
  UnitLease lease(std::size_t unit);
  std::size_t unit_count() const { return unit_begins_.size() - 1; }
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
  std::vector<std::size_t> unit_begins_;  // first leaf of each unit, and one past the last
  std::vector<ParameterSegment> segments_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace troupe::actors
