// Proves the way between batches and engines: packing, per-token columns that must match, default
// masks, and a row order that shares work out and can be undone.

#include "actors/roles/batch_pack.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;
using Rows = std::vector<std::vector<std::int32_t>>;

Batch batch_of(const Rows& prompts, const Rows& responses) {
  Batch batch;
  EXPECT_TRUE(batch.set(std::string(column::kPrompts), Column::jagged(prompts)).has_value());
  EXPECT_TRUE(batch.set(std::string(column::kResponses), Column::jagged(responses)).has_value());
  return batch;
}

TEST(BatchPack, LaysPromptAndResponseOfEachRowEndToEnd) {
  const auto packed = pack_batch(batch_of({{1, 2}, {3}}, {{4}, {5, 6}}));
  ASSERT_TRUE(packed.has_value()) << packed.error().to_string();
  const PackedSequences view = packed->pack.view();
  EXPECT_EQ(std::vector<std::int32_t>(view.tokens.begin(), view.tokens.end()),
            (std::vector<std::int32_t>{1, 2, 4, 3, 5, 6}));
  EXPECT_EQ(packed->response_lengths, (std::vector<std::int64_t>{1, 2}));
}

TEST(BatchPack, NamesTheRowWithoutAPromptAndTheColumnOfAnotherLength) {
  const auto empty = pack_batch(batch_of({{1}, {}}, {{4}, {5}}));
  ASSERT_FALSE(empty.has_value());
  EXPECT_NE(empty.error().message.find("row 1"), std::string::npos);

  Batch batch = batch_of({{1}, {2}}, {{4}, {5, 6}});
  ASSERT_TRUE(
      batch.set("old", Column::jagged(std::vector<std::vector<float>>{{0}, {0}})).has_value());
  const auto packed = pack_batch(batch);
  const auto values = token_values(batch, "old", *packed);
  ASSERT_FALSE(values.has_value());
  EXPECT_NE(values.error().message.find("old row 1: 1 tokens, responses has 2"), std::string::npos)
      << values.error().message;
}

TEST(BatchPack, TrainsOnEveryTokenWhenThereIsNoMask) {
  Batch batch = batch_of({{1}, {2}}, {{4}, {5, 6}});
  const auto packed = pack_batch(batch);
  EXPECT_EQ(*response_mask(batch, *packed), (std::vector<std::uint8_t>{1, 1, 1}));
  ASSERT_TRUE(batch
                  .set(std::string(column::kResponseMask),
                       Column::jagged(std::vector<std::vector<std::uint8_t>>{{1}, {0, 1}}))
                  .has_value());
  EXPECT_EQ(*response_mask(batch, *packed), (std::vector<std::uint8_t>{1, 0, 1}));
}

TEST(BalancedOrder, IsUndoneByItsInverseAndEvensOutTheTokensOfRanks) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    Rows prompts, responses;
    const auto rows = static_cast<std::int64_t>(rng.below(40));
    for (std::int64_t row = 0; row < rows; ++row) {
      prompts.emplace_back(1 + rng.below(20), static_cast<std::int32_t>(row));
      responses.emplace_back(rng.below(60), 9);
    }
    const Batch batch = batch_of(prompts, responses);
    const auto ranks = static_cast<std::int64_t>(1 + rng.below(5));
    const auto order = balanced_order(batch, ranks);
    ASSERT_TRUE(order.has_value()) << "seed " << seed << ": " << order.error().to_string();
    const Batch there = *batch.reorder(order->order);
    const Batch back = *there.reorder(order->inverse);
    EXPECT_TRUE(back == batch) << "seed " << seed;
    if (rows < 4 * ranks) continue;
    std::int64_t least = INT64_MAX, most = 0, longest = 0;
    for (const Batch& part : there.split(ranks)) {
      const std::int64_t tokens =
          part.column(column::kPrompts).elements() + part.column(column::kResponses).elements();
      least = std::min(least, tokens);
      most = std::max(most, tokens);
    }
    for (std::size_t row = 0; row < prompts.size(); ++row)
      longest =
          std::max(longest, static_cast<std::int64_t>(prompts[row].size() + responses[row].size()));
    // Row counts must differ by at most one, which alone may cost up to one row of tokens.
    EXPECT_LE(most - least, 2 * longest) << "seed " << seed;
  }
}

TEST(BalancedOrder, KeepsGroupsOnOneRankWhereTheyShareOutEvenly) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const auto ranks = static_cast<std::int64_t>(1 + rng.below(4));
    const std::int64_t groups = ranks * static_cast<std::int64_t>(1 + rng.below(4));
    const auto size = static_cast<std::int64_t>(2 + rng.below(4));
    Rows prompts, responses;
    std::vector<std::int64_t> ids;
    for (std::int64_t row = 0; row < groups * size; ++row) {
      ids.push_back(row % groups);  // not side by side
      prompts.emplace_back(static_cast<std::size_t>(1 + ids.back()), 1);
      responses.emplace_back(rng.below(30), 9);
    }
    Batch batch = batch_of(prompts, responses);
    ASSERT_TRUE(batch.set(std::string(column::kGroup), Column::dense(ids)).has_value());
    const RowOrder order = balanced_order(batch, ranks).value();
    const Batch there = *batch.reorder(order.order);
    EXPECT_TRUE(*there.reorder(order.inverse) == batch);
    std::set<std::int64_t> met;
    for (const Batch& part : there.split(ranks)) {
      std::set<std::int64_t> mine;
      for (std::int64_t row = 0; row < part.rows(); ++row)
        mine.insert(part.column(column::kGroup).scalar<std::int64_t>(row));
      EXPECT_EQ(static_cast<std::int64_t>(mine.size()), groups / ranks);
      for (const std::int64_t id : mine) EXPECT_TRUE(met.insert(id).second) << "group " << id;
    }
  }
}

TEST(BalancedOrder, GroupsThatDoNotShareOutAreBalancedByRows) {
  Batch batch = batch_of({{1}, {1}, {1}, {2}, {2}, {2}}, {{4}, {4}, {4}, {4}, {4}, {4}});
  ASSERT_TRUE(batch
                  .set(std::string(column::kGroup),
                       Column::dense(std::vector<std::int64_t>{0, 0, 0, 0, 1, 1}))
                  .has_value());
  for (const Batch& part : batch.reorder(balanced_order(batch, 3)->order)->split(3))
    EXPECT_EQ(part.rows(), 2);
}

}  // namespace
}  // namespace troupe::actors
