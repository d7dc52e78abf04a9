#include "actors/loops/token_column.hpp"

#include <cstddef>

namespace troupe::actors {

result<runtime::Column> require_token_column(const runtime::Batch& batch, std::string_view name,
                                             std::span<const std::int64_t> lengths,
                                             std::string_view place) {
  TROUPE_TRY(runtime::Column found, batch.require(name));
  for (std::int64_t row = 0; row < found.rows(); ++row) {
    const std::int64_t wanted = lengths[static_cast<std::size_t>(row)];
    if (found.row_length(row) != wanted)
      return fail(ErrorCode::kConflict, "{}: column {} row {}: {} tokens, responses has {}", place,
                  name, row, found.row_length(row), wanted);
  }
  return found;
}

}  // namespace troupe::actors
