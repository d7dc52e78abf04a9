#pragma once

// The numbers of the paged KV cache: per block, layer and kv head, keys of 16 tokens as [D][16] and
// values as [16][padded(D)] — the order in which attention reads them.
//
// **Ownership:** owns the memory; which block belongs to whom is BlockPool's business.
// **Threads:** one thread.
// **Cost:** pages are touched when first used; copying a block is one memcpy over all layers.

#include "actors/kernel/aligned_buffer.hpp"
#include "actors/kernel/kernel_table.hpp"
#include "actors/model/model_config.hpp"
#include "actors/rollout/block_pool.hpp"
#include "runtime/base/units.hpp"

#include <algorithm>
#include <cstdint>

namespace troupe::actors {

class KvCache {
 public:
  KvCache() = default;
  KvCache(const ModelConfig& config, std::int64_t blocks)
      : head_dim_(config.head_dim),
        kv_heads_(config.kv_head_count),
        block_floats_(floats_per_block(config)),
        numbers_(blocks * block_floats_) {}

  static std::int64_t floats_per_block(const ModelConfig& config) {
    return config.layer_count * config.kv_head_count * head_floats(config.head_dim);
  }
  /// Keys and values of one kv head in one block.
  static constexpr std::int64_t head_floats(std::int64_t head_dim) {
    return head_dim * kBlockTokens + kBlockTokens * padded(head_dim);
  }

  bool resident() const { return numbers_.size() > 0; }
  Bytes bytes() const { return Bytes{numbers_.size() * static_cast<std::int64_t>(sizeof(float))}; }
  std::int64_t block_stride() const { return block_floats_; }
  std::int64_t values_offset() const { return head_dim_ * kBlockTokens; }

  /// Start of one layer and kv head in block 0; add block · block_stride().
  const float* base(std::int64_t layer, std::int64_t kv_head) const {
    return numbers_.data() + (layer * kv_heads_ + kv_head) * head_floats(head_dim_);
  }

  /// Stores key and value [D] of one token, layer and kv head.
  void store(std::int64_t layer, std::int64_t kv_head, std::int32_t block, std::int64_t slot,
             const float* key, const float* value) {
    float* keys = numbers_.data() + block * block_floats_ +
                  (layer * kv_heads_ + kv_head) * head_floats(head_dim_);
    for (std::int64_t d = 0; d < head_dim_; ++d) keys[d * kBlockTokens + slot] = key[d];
    std::copy_n(value, head_dim_, keys + values_offset() + slot * padded(head_dim_));
  }

  void copy(const BlockCopy& blocks) {
    std::copy_n(numbers_.data() + blocks.source * block_floats_, block_floats_,
                numbers_.data() + blocks.target * block_floats_);
  }

 private:
  std::int64_t head_dim_ = 0;
  std::int64_t kv_heads_ = 0;
  std::int64_t block_floats_ = 0;
  AlignedBuffer numbers_;
};

}  // namespace troupe::actors
