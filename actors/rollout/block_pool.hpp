#pragma once

// Which KV cache blocks are free, and how many holders each has. Pure bookkeeping: the numbers of
// the cache live elsewhere (kv_cache.hpp).
//
// A block table is the list of block ids of one sequence: token t lives in block t / 16, slot
// t % 16. Forks share full blocks; a partly filled block is never shared, so a writer owns its
// block alone.
// **Threads:** one thread.
// **Invariants:** a block is free exactly when its count is 0; `check_invariants` verifies it.
// **Cost:** allocate, retain, release O(1).

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troupe::actors {

inline constexpr std::int64_t kBlockTokens = 16;

using BlockTable = std::vector<std::int32_t>;

/// Blocks that hold `tokens` tokens.
constexpr std::int64_t blocks_for_tokens(std::int64_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

/// Copy the numbers of block `source` to block `target`.
struct BlockCopy {
  std::int32_t source = 0;
  std::int32_t target = 0;
  bool operator==(const BlockCopy&) const = default;
};

class BlockPool {
 public:
  explicit BlockPool(std::int64_t blocks);

  std::int64_t block_count() const { return static_cast<std::int64_t>(holders_.size()); }
  std::int64_t free_count() const { return static_cast<std::int64_t>(free_.size()); }
  std::int32_t holders(std::int32_t block) const;

  /// A block with one holder, the most recently freed first; empty when none is free.
  std::optional<std::int32_t> allocate();
  /// Extends `table` until it holds `tokens` tokens; all or nothing.
  [[nodiscard]] bool grow(BlockTable& table, std::int64_t tokens);
  void retain(std::int32_t block);
  void release(std::int32_t block);
  /// Releases all blocks and empties the table.
  void release_all(BlockTable& table);

  struct Fork {
    BlockTable table;
    std::optional<BlockCopy> copy;  ///< to do before either side writes
  };
  /// One table more for the first `tokens` tokens of `parent`; empty when no block is free for the
  /// copy of a partly filled last block.
  std::optional<Fork> fork(std::span<const std::int32_t> parent, std::int64_t tokens);
  /// `copies` forks, all or nothing.
  std::optional<std::vector<Fork>> fork(std::span<const std::int32_t> parent, std::int64_t tokens,
                                        std::int64_t copies);

  /// CHECKs that free list and counts agree.
  void check_invariants() const;

 private:
  std::vector<std::int32_t> holders_;
  std::vector<std::int32_t> free_;  // a stack, so that hot blocks are used again first
};

}  // namespace troupe::actors
