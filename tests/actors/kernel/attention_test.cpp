// Paged attention: close to a double reference; and bit for bit the same whether positions are
// attended one by one, in chunks of any size, or on another path, with blocks in any order, and
// with garbage (NaN) in every slot that a query must not see.

#include "tests/actors/kernel/kernel_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe::actors {
namespace {

struct Case {
  std::int64_t heads;
  std::int64_t head_dim;
  std::int64_t tokens;
};

/// One kv head of one sequence: queries, keys and values [tokens, ·], and their paged form.
struct Sequence {
  Case shape;
  std::vector<float> query;  // [tokens, heads, D]
  std::vector<float> key;    // [tokens, D]
  std::vector<float> value;
  AlignedBuffer cache;
  std::vector<std::int32_t> blocks;

  std::int64_t values_offset() const { return shape.head_dim * kLanes; }
  std::int64_t block_floats() const { return kLanes * (shape.head_dim + padded(shape.head_dim)); }

  Sequence(Case c, std::uint64_t seed) : shape(c) {
    Rng rng(seed);
    const auto fill = [&](std::vector<float>& v, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) v.push_back(static_cast<float>(rng.normal()));
    };
    fill(query, c.tokens * c.heads * c.head_dim);
    fill(key, c.tokens * c.head_dim);
    fill(value, c.tokens * c.head_dim);
    const std::int64_t used = (c.tokens + kLanes - 1) / kLanes;
    for (const std::int64_t block : rng.permutation(used + 3))
      if (static_cast<std::int64_t>(blocks.size()) < used)
        blocks.push_back(static_cast<std::int32_t>(block));
    cache = AlignedBuffer((used + 3) * block_floats());
    std::fill(cache.data(), cache.data() + cache.size(), std::numeric_limits<float>::quiet_NaN());
    write(0, c.tokens);
  }
  void write(std::int64_t begin, std::int64_t end) {
    const std::int64_t d = shape.head_dim;
    for (std::int64_t t = begin; t < end; ++t) {
      float* block = cache.data() + blocks[static_cast<std::size_t>(t / kLanes)] * block_floats();
      for (std::int64_t i = 0; i < d; ++i) {
        block[i * kLanes + t % kLanes] = key[static_cast<std::size_t>(t * d + i)];
        block[values_offset() + t % kLanes * padded(d) + i] =
            value[static_cast<std::size_t>(t * d + i)];
      }
    }
  }
  std::vector<float> attend(const KernelTable& kernels, std::int64_t chunk) const {
    const std::int64_t row = shape.heads * shape.head_dim;
    std::vector<float> out(static_cast<std::size_t>(shape.tokens * row));
    AlignedBuffer scratch(attention_scratch_floats(shape.heads, shape.head_dim, shape.tokens));
    for (std::int64_t first = 0; first < shape.tokens; first += chunk)
      kernels.attention(AttentionCall{.query = query.data() + first * row,
                                      .query_stride = row,
                                      .output = out.data() + first * row,
                                      .output_stride = row,
                                      .queries = std::min(chunk, shape.tokens - first),
                                      .heads = shape.heads,
                                      .head_dim = shape.head_dim,
                                      .first_keys = first + 1,
                                      .cache = cache.data(),
                                      .values_offset = values_offset(),
                                      .block_stride = block_floats(),
                                      .blocks = blocks.data(),
                                      .scratch = scratch.data()});
    return out;
  }
  /// Softmax over keys 0..t in double.
  std::vector<double> reference() const {
    const std::int64_t d = shape.head_dim;
    std::vector<double> out;
    for (std::int64_t t = 0; t < shape.tokens; ++t)
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const float* q = query.data() + (t * shape.heads + h) * d;
        std::vector<double> score;
        for (std::int64_t j = 0; j <= t; ++j) {
          double s = 0.0;
          for (std::int64_t i = 0; i < d; ++i)
            s += static_cast<double>(q[i]) * key[static_cast<std::size_t>(j * d + i)];
          score.push_back(s);
        }
        const double top = *std::ranges::max_element(score);
        double sum = 0.0;
        for (double& s : score) sum += s = std::exp(s - top);
        for (std::int64_t i = 0; i < d; ++i) {
          double o = 0.0;
          for (std::int64_t j = 0; j <= t; ++j)
            o += score[static_cast<std::size_t>(j)] * value[static_cast<std::size_t>(j * d + i)];
          out.push_back(o / sum);
        }
      }
    return out;
  }
};

constexpr Case kCases[] = {{1, 64, 70}, {2, 8, 45},   {3, 64, 33}, {7, 64, 50},
                           {4, 32, 48}, {1, 128, 20}, {9, 24, 19}, {20, 16, 18}};

TEST(PagedAttention, MatchesADoubleReferenceOnEveryPath) {
  for (const Case c : kCases) {
    const Sequence sequence(c, 31);
    const std::vector<double> wanted = sequence.reference();
    for (const KernelPath path : available_paths()) {
      const std::vector<float> out = sequence.attend(kernel_table(path), c.tokens);
      for (std::size_t i = 0; i < out.size(); ++i)
        ASSERT_NEAR(out[i], wanted[i], 3e-5)
            << kernel_path_name(path) << " heads " << c.heads << " D " << c.head_dim;
    }
  }
}

TEST(PagedAttention, GivesTheSameBitsForEveryChunkSizeAndPath) {
  for (const Case c : kCases) {
    const Sequence sequence(c, 77);
    const std::vector<float> wanted = sequence.attend(kernel_table(KernelPath::kPortable), 1);
    for (const KernelPath path : available_paths())
      for (const std::int64_t chunk : {1, 2, 3, 4, 5, 7, 16, 17, 64}) {
        const std::vector<float> out = sequence.attend(kernel_table(path), chunk);
        for (std::size_t i = 0; i < out.size(); ++i)
          ASSERT_EQ(bits(out[i]), bits(wanted[i]))
              << kernel_path_name(path) << " chunk " << chunk << " element " << i;
      }
  }
}

TEST(PagedAttention, DoesNotSeeKeysPastItsOwnPosition) {
  const Case c{3, 24, 40};
  Sequence sequence(c, 5);
  const std::vector<float> wanted = sequence.attend(kernel_table(), 40);
  Sequence fresh(c, 5);
  std::fill(fresh.cache.data(), fresh.cache.data() + fresh.cache.size(), INFINITY);
  // Tokens are written as they come, with infinities in all later slots.
  const std::int64_t row = c.heads * c.head_dim;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    fresh.write(t, t + 1);
    AlignedBuffer scratch(attention_scratch_floats(c.heads, c.head_dim, c.tokens));
    std::vector<float> out(static_cast<std::size_t>(row));
    kernel_table().attention(AttentionCall{.query = fresh.query.data() + t * row,
                                           .query_stride = row,
                                           .output = out.data(),
                                           .output_stride = row,
                                           .queries = 1,
                                           .heads = c.heads,
                                           .head_dim = c.head_dim,
                                           .first_keys = t + 1,
                                           .cache = fresh.cache.data(),
                                           .values_offset = fresh.values_offset(),
                                           .block_stride = fresh.block_floats(),
                                           .blocks = fresh.blocks.data(),
                                           .scratch = scratch.data()});
    for (std::int64_t i = 0; i < row; ++i)
      ASSERT_EQ(bits(out[static_cast<std::size_t>(i)]),
                bits(wanted[static_cast<std::size_t>(t * row + i)]))
          << "position " << t;
  }
}

}  // namespace
}  // namespace troupe::actors
