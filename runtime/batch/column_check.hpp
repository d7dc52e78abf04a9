#pragma once

// What only some bytes can be: rows of JSON texts, and flags of 0 or 1. For columns from outside.
//
// **Threads:** pure.

#include "runtime/base/result.hpp"
#include "runtime/batch/column.hpp"

#include <cstddef>
#include <span>
#include <string_view>

namespace troupe::runtime {

/// `values` are the bytes of all rows of `column`; kCorrupt names `place` and the first bad one.
result<void> check_values(const Column& column, std::span<const std::byte> values,
                          std::string_view place);

}  // namespace troupe::runtime
