#pragma once

// Whole weights for rollout ranks that no trainer publishes to, as in an evaluation.
//
// In a process the rollout rank reads the tensors where they lie, between processes it pulls them.
// **Ownership:** what the batch keeps; whoever made it must not change the values before the ranks
// have taken them.
// **Threads:** a value type.

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
