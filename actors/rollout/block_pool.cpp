#include "actors/rollout/block_pool.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

BlockPool::BlockPool(std::int64_t blocks) : holders_(static_cast<std::size_t>(blocks), 0) {
  TROUPE_CHECK(blocks >= 0, "block pool: {} blocks, wanted ≥ 0", blocks);
  free_.reserve(holders_.size());
  for (std::int64_t block = blocks; block > 0; --block)
    free_.push_back(static_cast<std::int32_t>(block - 1));
}

std::int32_t BlockPool::holders(std::int32_t block) const {
  TROUPE_CHECK(block >= 0 && block < block_count(), "block pool: block {}, have {}", block,
               block_count());
  return holders_[static_cast<std::size_t>(block)];
}

std::optional<std::int32_t> BlockPool::allocate() {
  if (free_.empty()) return std::nullopt;
  const std::int32_t block = free_.back();
  free_.pop_back();
  holders_[static_cast<std::size_t>(block)] = 1;
  return block;
}

bool BlockPool::grow(BlockTable& table, std::int64_t tokens) {
  const std::int64_t missing = blocks_for_tokens(tokens) - static_cast<std::int64_t>(table.size());
  if (missing > free_count()) return false;
  for (std::int64_t i = 0; i < missing; ++i) table.push_back(*allocate());
  return true;
}

void BlockPool::retain(std::int32_t block) {
  TROUPE_CHECK(holders(block) > 0, "block pool: retain of free block {}", block);
  ++holders_[static_cast<std::size_t>(block)];
}

void BlockPool::release(std::int32_t block) {
  TROUPE_CHECK(holders(block) > 0, "block pool: release of free block {}", block);
  if (--holders_[static_cast<std::size_t>(block)] == 0) free_.push_back(block);
}

void BlockPool::release_all(BlockTable& table) {
  // Last block first, so that a reader of the same prefix gets its blocks back in order.
  for (std::size_t i = table.size(); i > 0; --i) release(table[i - 1]);
  table.clear();
}

std::optional<BlockPool::Fork> BlockPool::fork(std::span<const std::int32_t> parent,
                                               std::int64_t tokens) {
  TROUPE_CHECK(tokens >= 0 && blocks_for_tokens(tokens) <= static_cast<std::int64_t>(parent.size()),
               "block pool: fork of {} tokens from {} blocks", tokens, parent.size());
  const auto full = static_cast<std::size_t>(tokens / kBlockTokens);
  const bool partial = tokens % kBlockTokens != 0;
  if (partial && free_.empty()) return std::nullopt;
  Fork forked;
  forked.table.reserve(parent.size() + 1);
  for (std::size_t i = 0; i < full; ++i) {
    retain(parent[i]);
    forked.table.push_back(parent[i]);
  }
  if (partial) {
    const std::int32_t block = *allocate();
    forked.table.push_back(block);
    forked.copy = BlockCopy{.source = parent[full], .target = block};
  }
  return forked;
}

std::optional<std::vector<BlockPool::Fork>> BlockPool::fork(std::span<const std::int32_t> parent,
                                                            std::int64_t tokens,
                                                            std::int64_t copies) {
  const std::int64_t wanted = tokens % kBlockTokens != 0 ? copies : 0;
  if (wanted > free_count()) return std::nullopt;
  std::vector<Fork> forks;
  for (std::int64_t i = 0; i < copies; ++i) forks.push_back(*fork(parent, tokens));
  return forks;
}

void BlockPool::check_invariants() const {
  std::vector<bool> is_free(holders_.size(), false);
  for (const std::int32_t block : free_) {
    TROUPE_CHECK(holders(block) == 0, "block pool: free block {} has {} holders", block,
                 holders(block));
    TROUPE_CHECK(!is_free[static_cast<std::size_t>(block)], "block pool: block {} is free twice",
                 block);
    is_free[static_cast<std::size_t>(block)] = true;
  }
  for (std::size_t block = 0; block < holders_.size(); ++block)
    TROUPE_CHECK(is_free[block] == (holders_[block] == 0), "block pool: block {} leaked", block);
}

}  // namespace troupe::actors
