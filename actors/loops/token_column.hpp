#pragma once

// A column of per-token numbers beside `responses`: row by row as long as they.
//
// **Threads:** pure.

#include "runtime/batch/batch.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::actors {

/// The column `name`; kNotFound, or kConflict naming the row whose length is not `lengths` [B].
/// `place` begins the message.
result<runtime::Column> require_token_column(const runtime::Batch& batch, std::string_view name,
                                             std::span<const std::int64_t> lengths,
                                             std::string_view place);

}  // namespace troupe::actors
