#pragma once

// What a trainer rank hands to a rollout rank when weights are published.
//
// The tensors stay at the trainer: in a process the rollout rank reads them where they lie, between
// processes it pulls them.
// **Ownership:** keeps the trainer's engine, not its values: valid until that trainer's next
// update.
// **Threads:** a value type; the loop orders publication after the update, on the device's lane.

#include "actors/roles/tensor_batch.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/wire/wire.hpp"

#include <tuple>

namespace troupe::actors {

struct WeightHandle {
  runtime::Batch tensors;  ///< canonical names; see tensor_batch.hpp
  WeightVersion version;

  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("tensors", &WeightHandle::tensors),
                      field("version", &WeightHandle::version)};
  }
};

}  // namespace troupe::actors
