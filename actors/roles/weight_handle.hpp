#pragma once

// What a trainer rank hands to a rollout rank of the same process when weights are published.
//
// **Ownership:** borrows the trainer's tensors: valid until that trainer's next update.
// **Threads:** a value type; the loop orders publication after the update, on the device's lane.

#include "actors/model/weight_set.hpp"
#include "runtime/base/ids.hpp"

#include <span>

namespace troupe::actors {

struct WeightHandle {
  std::span<const NamedTensor> tensors;  ///< canonical names, views into the trainer
  WeightVersion version;
};

}  // namespace troupe::actors
