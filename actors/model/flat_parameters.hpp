#pragma once

// The parameters that a rank trains, in one buffer of f32, and their gradients in another.
//
// One buffer makes the optimizer, the norm and the reduction single loops. Neighbouring tensors of
// a group also form one *leaf*, e.g. q, k and v of a layer as one [(N+2K)·D, H] matrix, so that a
// layer multiplies once. The tensors of a group are row blocks of it. Over a group of ranks the
// buffers may be cut (ParameterShards): the optimizer's share alone, or each unit's weights and
// gradients too, which are then gathered for the time of a lease (sharded_parameters.hpp).
// **Ownership:** owns both buffers; views and leaves point into them and live as long. Borrows the
// collective of its shards.
// **Threads:** one thread at a time; with cut weights, leases and backward are collective.
// **Invariants:** buffers and whole leaves never move; gaps between groups (alignment) hold 0 for
// ever; the weights are the optimizer's f32 masters, there is no second copy.

#include "actors/model/weight_set.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/comm/collective.hpp"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

class GatheredUnit;
class ShardedParameters;

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

/// One tensor in the order of the buffers as they are before they are cut.
struct ParameterSegment {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< in floats
  std::int64_t count = 0;
  LocalTensor tensor = {};
  bool is_matrix() const { return shape.size() > 1; }  ///< weight decay applies
};

/// A run of one segment's numbers that this rank updates.
struct ParameterRun {
  std::size_t segment = 0;
  std::int64_t begin = 0;  ///< of the segment's numbers, row-major
  std::int64_t count = 0;
  std::int64_t weight_offset = 0;  ///< in weights()
  std::int64_t shard_offset = 0;   ///< in shard_gradients(), and in the optimizer's moments
};

/// Tensors stacked along their first dimension into one leaf.
using ParameterGroup = std::vector<LocalTensor>;
/// Leaves that are needed together: the embedding, a layer, the final norm, the head.
using ParameterUnit = std::vector<ParameterGroup>;

/// How the buffers are cut over a group of ranks.
struct ParameterShards {
  int ranks = 1;
  int rank = 0;
  bool weights = false;  ///< weights and gradients too, not the updates alone
  /// Of those ranks. Set before the first lease, and again when the ranks met anew.
  runtime::Collective* group = nullptr;
  Duration timeout = std::chrono::minutes(10);
};

/// The leaves of one unit, there while the lease lives and, by `watch`, again in backward.
class UnitLease {
 public:
  explicit UnitLease(std::span<const at::Tensor> leaves) : leaves_(leaves) {}
  /// `keep`: the leaves stay until backward is done with them.
  UnitLease(std::shared_ptr<GatheredUnit> gathered, bool keep);
  ~UnitLease();
  UnitLease(const UnitLease&) = delete;
  UnitLease& operator=(const UnitLease&) = delete;

  const at::Tensor& operator[](std::size_t leaf) const { return leaves_[leaf]; }
  std::size_t size() const { return leaves_.size(); }
  /// To be called on everything that was computed with the leaves, whose backward reads them and
  /// that goes on from here, all at once (one or two tensors): gives the same tensors, whose
  /// backward first sees to it that the leaves are there. Undefined tensors stay so.
  void watch(std::span<at::Tensor* const> outputs) const;

 private:
  std::span<const at::Tensor> leaves_;
  std::shared_ptr<GatheredUnit> gathered_;
  bool keep_ = false;
};

class FlatParameters {
 public:
  /// All zero. Segments keep the order of `canonical`, whose tensors the units must cover once.
  /// `shards`, if any, outlives this; of it only the group may change.
  FlatParameters(std::span<const ParameterUnit> units, std::span<const TensorShape> canonical,
                 bool trainable, const ParameterShards* shards = nullptr);
  ~FlatParameters();
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  /// Takes the leaves of a unit for a forward pass; ask again at each use, keep none.
  UnitLease lease(std::size_t unit, bool keep = false);
  std::span<const ParameterSegment> segments() const { return segments_; }
  const ParameterSegment* find(std::string_view name) const;
  /// What this rank updates, in the order of segments: all of each, or its share.
  std::span<const ParameterRun> runs() const { return runs_; }
  /// What lies in weights(): `runs`, but all of each segment while only updates are cut.
  std::span<const ParameterRun> weight_runs() const { return weight_runs_; }
  bool weights_are_cut() const { return sharded_ != nullptr; }
  bool updates_are_cut() const { return ranks_ > 1; }

  /// What this rank stores.
  std::span<float> weights();
  /// Empty unless allocated.
  std::span<float> gradients();
  /// Gradients of `runs()`, after `reduce` where updates are cut. Empty unless allocated.
  std::span<float> shard_gradients();
  std::int64_t shard_elements() const { return shard_elements_; }
  std::int64_t stored_elements() const { return weights_.numel(); }  ///< of weights()
  std::int64_t shard_ranks() const { return ranks_; }
  std::size_t gradient_elements()
      const;  ///< allocated now, gradients of this rank's share included
  /// Views of the weights in canonical order; empty when they are cut.
  std::span<const NamedTensor> tensors() const { return tensors_; }

  /// Copies this rank's share of every tensor from whole canonical ones; extra names are ignored.
  /// All or nothing. Errors: kNotFound, kInvalidArgument naming the tensor.
  result<void> set_weights(std::span<const NamedTensor> whole);

  /// Makes the gradient buffer if there is none, and sets it to 0. CHECKs `trainable`.
  void zero_gradients();
  void release_gradients();

  /// Where only updates are cut: sums the gradients over the group into shard_gradients(), and
  /// shares the updated weights out again. Nothing to do otherwise. Collective.
  result<void> reduce_gradients();
  result<void> gather_weights();

  /// The first collective that failed inside forward or backward, where nothing can be returned,
  /// since the last call: every later one failed at once, and results are worthless.
  result<void> take_failure();
  void note(Error error);

  /// Bytes of gathered units: held now (0 after `trim`), and the most so far.
  std::int64_t gathered_bytes() const;
  std::int64_t gathered_bytes_peak() const;
  void trim();

 private:
  struct UnitPlace {
    std::int64_t offset = 0;  // before cutting, in floats
    std::int64_t count = 0;   // a multiple of the number of ranks
  };
  void place(std::span<const ParameterUnit> units, std::span<const TensorShape> canonical);
  void cut();
  void add_runs(std::int64_t begin, std::int64_t end, std::int64_t weight_offset,
                std::int64_t shard_offset);

  const ParameterShards* shards_;
  std::int64_t ranks_ = 1;
  std::int64_t rank_ = 0;
  bool trainable_;
  std::int64_t elements_ = 0;  // before cutting
  std::int64_t shard_elements_ = 0;
  at::Tensor weights_;
  at::Tensor gradients_;
  at::Tensor gradient_shard_;  // only while updates alone are cut
  std::vector<at::Tensor> leaves_;
  std::vector<std::vector<std::int64_t>> leaf_shapes_;
  std::vector<std::int64_t> leaf_offsets_;
  std::vector<std::size_t> unit_begins_;  // first leaf of each unit, and one past the last
  std::vector<UnitPlace> unit_places_;
  std::vector<ParameterSegment> segments_;
  std::vector<ParameterRun> runs_;
  std::vector<ParameterRun> weight_runs_;
  std::vector<NamedTensor> tensors_;
  std::optional<Error> failure_;
  std::unique_ptr<ShardedParameters> sharded_;
};

}  // namespace troupe::actors
