#pragma once

// The columns that a role sends to its workers, of those that a batch has.
//
// **Threads:** a pure function.

#include "runtime/batch/batch.hpp"
#include "runtime/task/failure.hpp"

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// Those of `names` that the batch has. Throws `Failure`.
inline runtime::Batch select_present(const runtime::Batch& batch,
                                     std::initializer_list<std::string_view> names) {
  std::vector<std::string> present;
  for (const std::string_view name : names) {
    if (batch.has(name)) present.emplace_back(name);
  }
  return runtime::value_or_throw(batch.select(present));
}

}  // namespace troupe::actors
