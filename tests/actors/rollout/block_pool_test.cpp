// The block pool against a slow model (a count per block) under random operations; forks share full
// blocks and copy the partial one; nothing leaks.

#include "actors/rollout/block_pool.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace troupe::actors {
namespace {

TEST(BlockPool, AgreesWithACountPerBlockUnderRandomOperations) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    BlockPool pool(1 + static_cast<std::int64_t>(rng.below(30)));
    std::vector<std::pair<BlockTable, std::int64_t>> tables;  // with the tokens they hold
    for (int round = 0; round < 400; ++round) {
      const std::uint64_t action = rng.below(4);
      if (action == 0 || tables.empty()) {
        BlockTable table;
        const auto tokens = static_cast<std::int64_t>(1 + rng.below(60));
        const bool fits = blocks_for_tokens(tokens) <= pool.free_count();
        ASSERT_EQ(pool.grow(table, tokens), fits);
        if (fits) tables.emplace_back(table, tokens);
        ASSERT_EQ(table.size(), fits ? static_cast<std::size_t>(blocks_for_tokens(tokens)) : 0u);
      } else if (action == 1) {
        auto& [table, tokens] = tables[rng.below(tables.size())];
        const std::int64_t more = tokens + static_cast<std::int64_t>(rng.below(20));
        const std::size_t before = table.size();
        if (pool.grow(table, more))
          tokens = more;
        else
          ASSERT_EQ(table.size(), before) << "a refused growth changes nothing";
      } else if (action == 2) {
        const auto [parent, tokens] = tables[rng.below(tables.size())];
        auto fork = pool.fork(parent, tokens);
        const bool partial = tokens % kBlockTokens != 0;
        if (!fork) {
          ASSERT_TRUE(partial && pool.free_count() == 0);
          continue;
        }
        ASSERT_EQ(fork->copy.has_value(), partial);
        for (std::int64_t b = 0; b < tokens / kBlockTokens; ++b)
          ASSERT_EQ(fork->table[static_cast<std::size_t>(b)], parent[static_cast<std::size_t>(b)]);
        if (partial) {
          ASSERT_EQ(fork->copy->source, parent[static_cast<std::size_t>(tokens / kBlockTokens)]);
          ASSERT_EQ(fork->copy->target, fork->table.back());
          ASSERT_EQ(pool.holders(fork->table.back()), 1) << "a block to be written is not shared";
        }
        tables.emplace_back(fork->table, tokens);
      } else {
        const std::size_t victim = rng.below(tables.size());
        pool.release_all(tables[victim].first);
        tables.erase(tables.begin() + static_cast<std::ptrdiff_t>(victim));
      }
      std::map<std::int32_t, std::int32_t> counts;
      for (const auto& [table, tokens] : tables)
        for (const std::int32_t block : table) ++counts[block];
      for (const auto& [block, count] : counts) ASSERT_EQ(pool.holders(block), count);
      ASSERT_EQ(pool.free_count(), pool.block_count() - static_cast<std::int64_t>(counts.size()));
      pool.check_invariants();
    }
  }
}

TEST(BlockPool, ForksSeveralAtOnceOrNotAtAll) {
  BlockPool pool(6);
  BlockTable parent;
  ASSERT_TRUE(pool.grow(parent, 40));  // 3 blocks, the last holds 8
  EXPECT_FALSE(pool.fork(parent, 40, 4).has_value());
  EXPECT_EQ(pool.free_count(), 3);
  const auto forks = pool.fork(parent, 40, 3);
  ASSERT_TRUE(forks.has_value());
  EXPECT_EQ(pool.free_count(), 0);
  EXPECT_EQ(pool.holders(parent[0]), 4);
  std::set<std::int32_t> own;
  for (const auto& fork : *forks) own.insert(fork.table.back());
  EXPECT_EQ(own.size(), 3u);
  // A prompt of whole blocks needs no copy, so it forks without free blocks.
  EXPECT_TRUE(pool.fork(parent, 32, 5).has_value());
  EXPECT_EQ(pool.holders(parent[0]), 9);
}

TEST(BlockPool, RefusesDoubleReleaseAndUnknownBlocks) {
  BlockPool pool(2);
  const std::int32_t block = *pool.allocate();
  pool.release(block);
  EXPECT_THROW(pool.release(block), CheckFailure);
  EXPECT_THROW(pool.retain(block), CheckFailure);
  EXPECT_THROW(pool.release(2), CheckFailure);
  EXPECT_THROW(pool.release(-1), CheckFailure);
  const BlockTable none;
  EXPECT_THROW(pool.fork(none, 1), CheckFailure);
}

}  // namespace
}  // namespace troupe::actors
