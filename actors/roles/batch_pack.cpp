#include "actors/roles/batch_pack.hpp"

#include "actors/algorithm/partition.hpp"
#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/token_column.hpp"

#include <algorithm>
#include <map>
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

namespace {

/// The rows of each group, in order of their first rows, if rows of a group can come to one rank
/// each: the column is at hand, all groups are of one size above 1 and share out evenly.
std::vector<std::vector<std::int64_t>> groups_for(const Batch& batch, std::int64_t ranks) {
  if (!batch.has(column::kGroup) || batch.column(column::kGroup).is_reference()) return {};
  const Column ids = batch.column(column::kGroup);
  std::map<std::int64_t, std::size_t> places;
  std::vector<std::vector<std::int64_t>> groups;
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const auto [place, is_new] = places.try_emplace(ids.scalar<std::int64_t>(row), groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].push_back(row);
  }
  const auto count = static_cast<std::int64_t>(groups.size());
  if (count == 0 || count == batch.rows() || count % ranks != 0) return {};
  const std::size_t size = groups.front().size();
  const bool even = std::ranges::all_of(groups, [size](const auto& g) { return g.size() == size; });
  return even ? groups : std::vector<std::vector<std::int64_t>>{};
}

std::vector<std::vector<std::int64_t>> single_rows(std::int64_t rows) {
  std::vector<std::vector<std::int64_t>> singles;
  for (std::int64_t row = 0; row < rows; ++row) singles.push_back({row});
  return singles;
}

}  // namespace

result<RowOrder> balanced_order(const Batch& batch, std::int64_t ranks) {
  TROUPE_TRY(const Column prompts, batch.require(column::kPrompts));
  TROUPE_TRY(const Column responses, batch.require(column::kResponses));
  std::vector<std::vector<std::int64_t>> units = groups_for(batch, ranks);
  if (units.empty()) units = single_rows(batch.rows());
  std::vector<std::int64_t> lengths;  // of each unit, its prompt once
  for (const auto& rows : units) {
    lengths.push_back(prompts.row_length(rows.front()));
    for (const std::int64_t row : rows) lengths.back() += responses.row_length(row);
  }
  TROUPE_TRY(Partition parts, balance_ranks(lengths, ranks));
  // `split` makes the larger parts first; which rank gets which part does not matter.
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  RowOrder rows;
  for (const auto& part : parts) {
    for (const std::int64_t unit : part) {
      const auto& of_unit = units[static_cast<std::size_t>(unit)];
      rows.order.insert(rows.order.end(), of_unit.begin(), of_unit.end());
    }
  }
  rows.inverse.resize(rows.order.size());
  for (std::size_t place = 0; place < rows.order.size(); ++place)
    rows.inverse[static_cast<std::size_t>(rows.order[place])] = static_cast<std::int64_t>(place);
  return rows;
}

}  // namespace troupe::actors
