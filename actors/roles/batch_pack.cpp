#include "actors/roles/batch_pack.hpp"

#include "actors/algorithm/partition.hpp"
#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/token_column.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;

result<PackedBatch> pack_batch(const Batch& batch) {
  TROUPE_TRY(const Column prompts, batch.require(column::kPrompts));
  TROUPE_TRY(const Column responses, batch.require(column::kResponses));
  PackedBatch packed;
  packed.response_lengths = responses.row_lengths();
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const auto prompt = prompts.row<std::int32_t>(row);
    if (prompt.empty())
      return fail(ErrorCode::kConflict, "batch: row {}: prompt of 0 tokens, wanted at least 1",
                  row);
    packed.pack.add(prompt, responses.row<std::int32_t>(row));
  }
  return packed;
}

result<std::vector<float>> token_values(const Batch& batch, std::string_view name,
                                        const PackedBatch& packed) {
  TROUPE_TRY(const Column found,
             require_token_column(batch, name, packed.response_lengths, "batch"));
  return found.values<float>();
}

result<std::vector<std::uint8_t>> response_mask(const Batch& batch, const PackedBatch& packed) {
  if (!batch.has(column::kResponseMask)) {
    const auto& lengths = packed.response_lengths;
    std::int64_t tokens = 0;
    for (const std::int64_t length : lengths) tokens += length;
    return std::vector<std::uint8_t>(static_cast<std::size_t>(tokens), 1);
  }
  TROUPE_TRY(const Column found,
             require_token_column(batch, column::kResponseMask, packed.response_lengths, "batch"));
  return found.values<std::uint8_t>();
}

result<RowOrder> balanced_order(const Batch& batch, std::int64_t ranks) {
  TROUPE_TRY(const Column prompts, batch.require(column::kPrompts));
  TROUPE_TRY(const Column responses, batch.require(column::kResponses));
  std::vector<std::int64_t> lengths = prompts.row_lengths();
  for (std::size_t row = 0; row < lengths.size(); ++row)
    lengths[row] += responses.row_length(static_cast<std::int64_t>(row));
  TROUPE_TRY(Partition parts, balance_ranks(lengths, ranks));
  // `split` makes the larger parts first; which rank gets which part does not matter.
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  RowOrder rows;
  for (const auto& part : parts) rows.order.insert(rows.order.end(), part.begin(), part.end());
  rows.inverse.resize(rows.order.size());
  for (std::size_t place = 0; place < rows.order.size(); ++place)
    rows.inverse[static_cast<std::size_t>(rows.order[place])] = static_cast<std::int64_t>(place);
  return rows;
}

}  // namespace troupe::actors
