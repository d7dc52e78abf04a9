#pragma once

// Rules that put the local tensors of a rank into buffers: whole, or cut once more by FSDP.
//
// **Threads:** pure functions.
// **Invariants:** padding (vocabulary rows, FSDP tails, alignment) gets room in a buffer and no
// segment.

#include "reshard/local_model.hpp"

#include <cstdint>

namespace troupe::reshard {

/// Which rank, and on which node.
struct RankPlace {
  std::int32_t rank = 0;
  std::int32_t node = 0;
};

/// Part `index` of `count`.
struct Shard {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

struct StorageOptions {
  std::int64_t alignment = 1;      ///< elements; the start of each local tensor is a multiple
  bool buffer_per_tensor = false;  ///< else one buffer for each dtype
};

/// Each local tensor whole.
RankLayout store_whole(const LocalModel& model, RankPlace place,
                       const StorageOptions& options = {});

/// FSDP2: dimension 0 of each local tensor in parts of c = ceil(rows / count) rows, of which the
/// last may be short or empty; room for c rows is kept.
RankLayout store_rows(const LocalModel& model, RankPlace place, Shard shard,
                      const StorageOptions& options = {});

/// FSDP1: the local tensors of each unit, flattened one after the other from aligned starts and
/// padded to a multiple of `count`, cut evenly; one buffer for each unit and dtype. A border may
/// fall inside a row.
RankLayout store_flat(const LocalModel& model, RankPlace place, Shard shard,
                      std::int64_t alignment = 1);

}  // namespace troupe::reshard
