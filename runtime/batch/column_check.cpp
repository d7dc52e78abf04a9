#include "runtime/batch/column_check.hpp"

#include <nlohmann/json.hpp>

namespace troupe::runtime {

result<void> check_values(const Column& column, std::span<const std::byte> values,
                          std::string_view place) {
  if (column.dtype() == DType::kBool) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] > std::byte{1})
        return fail(ErrorCode::kCorrupt, "{}: flag {} is {}, wanted 0 or 1", place, i,
                    static_cast<unsigned>(values[i]));
    }
  }
  for (std::int64_t i = 0; column.kind() == ColumnKind::kJson && i < column.rows(); ++i) {
    if (!nlohmann::json::accept(column.text(i)))
      return fail(ErrorCode::kCorrupt, "{}: row {}: not a json text: {}", place, i,
                  column.describe_row(i));
  }
  return {};
}

}  // namespace troupe::runtime
