#pragma once

// Fully sharded units: each rank stores 1/R of every unit, and has all of one only while it runs
// (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
// SC'20, §5; units as in PyTorch's FSDP).
//
// A lease gathers the unit into a buffer that its leaves view. When the forward pass is done with
// the unit the buffer is given back, though autograd keeps the leaves; the unit's watch gathers
// into another one before backward reads them. The gradients of all leaves are packed in one pass,
// summed over the ranks in rank order, and added to this rank's share.
// **Ownership:** borrows weights, gradients and the group from its FlatParameters. A gathered unit
// lives as long as the graph that needs it, and ends before the store.
// **Threads:** the rank's; every rank must lease the same units in the same order. Backward of
// equal graphs runs in equal order, since on the CPU autograd runs on the calling thread, the
// latest node first.
// **Invariants:** at most one unit is there at a time, and then its packed gradients; the pool
// keeps no more than two of the largest layer beyond them.
// **Cost:** per pass each unit is gathered once forward and once backward, and reduced once.

#include "actors/model/flat_parameters.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace troupe::actors {

/// Float buffers that are taken and given back all the time.
class BufferPool {
 public:
  /// Keeps at most `idle_max` floats that nobody uses.
  explicit BufferPool(std::int64_t idle_max) : idle_max_(idle_max) {}
  float* take(std::int64_t count);  ///< content is arbitrary
  void give(float* buffer);
  void trim();
  std::int64_t held() const { return held_; }  ///< floats, in use or idle
  std::int64_t peak() const { return peak_; }

 private:
  using Memory = std::unique_ptr<float[]>;
  struct Used {
    Memory memory;
    std::int64_t count = 0;
  };
  std::map<float*, Used> used_;
  std::multimap<std::int64_t, Memory> idle_;  // by size
  std::int64_t idle_max_;
  std::int64_t idle_count_ = 0;
  std::int64_t held_ = 0;
  std::int64_t peak_ = 0;
};

/// One leaf inside its unit.
struct LeafPlace {
  std::int64_t offset = 0;  ///< in floats, from the start of the unit
  std::vector<std::int64_t> shape;
  std::int64_t count = 0;
};

struct ShardedUnit {
  std::int64_t count = 0;         ///< with padding: a multiple of the number of ranks
  std::int64_t shard_offset = 0;  ///< of this rank's part in weights and gradients
  std::vector<LeafPlace> leaves;
};

class ShardedParameters {
 public:
  /// `weights` [shard] is the owner's and stays where it is.
  ShardedParameters(FlatParameters& owner, const ParameterShards& shards,
                    std::vector<ShardedUnit> units, std::span<float> weights);

  /// Differentiable in grad mode when `trainable`.
  std::shared_ptr<GatheredUnit> gather(std::size_t unit, bool trainable);
  BufferPool& pool() { return pool_; }

 private:
  friend class GatheredUnit;
  std::int64_t part_of(const ShardedUnit& unit) const { return unit.count / ranks_; }

  FlatParameters& owner_;
  const ParameterShards& shards_;
  std::int64_t ranks_;
  std::vector<ShardedUnit> units_;
  std::span<float> weights_;
  at::Tensor anchor_;  // autograd makes a node only for what takes something that needs gradients
  BufferPool pool_;
};

class GatheredUnit {
 public:
  GatheredUnit(ShardedParameters& store, const ShardedUnit& unit);
  ~GatheredUnit() { release(); }
  GatheredUnit(const GatheredUnit&) = delete;
  GatheredUnit& operator=(const GatheredUnit&) = delete;

  void fetch();    ///< gathers, unless it is there
  void release();  ///< gives the buffer back, if it is there
  std::vector<at::Tensor> make_leaves() const;
  /// Gradients of the leaves, undefined ones are 0 → summed over ranks, added to the share.
  void reduce(std::span<const at::Tensor> gradients);

  std::vector<at::Tensor> leaves;  ///< what the lease hands out

 private:
  ShardedParameters& store_;
  const ShardedUnit& unit_;
  c10::Storage storage_;  // of all leaves; its pointer is that of the buffer, or null
  float* buffer_ = nullptr;
};

/// x [..], y undefined or [..] → the same, whose backward first fetches the unit.
void watch_unit(const std::shared_ptr<GatheredUnit>& unit, std::span<at::Tensor* const> outputs);

}  // namespace troupe::actors
