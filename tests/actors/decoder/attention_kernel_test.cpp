// Proves that the packed attention kernel equals a naive double-precision attention with
// finite-difference-free analytic gradients, over head sizes, groups and lengths around the lane
// and block borders; and that a sequence's bits do not depend on its neighbours.
#include "actors/model/attention_kernel.hpp"

#include "actors/model/attention.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

namespace troupe::actors {
namespace {

struct Case {
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::vector<std::int64_t> lengths;
};

std::vector<double> frequencies(std::int64_t head_dim) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < head_dim / 2; ++i)
    out.push_back(std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  return out;
}

/// x [T, heads, D] f64 turned by position.
at::Tensor rotate(const at::Tensor& x, const std::vector<double>& f) {
  const at::Tensor angles = torch::arange(x.size(0), torch::kFloat64)
                                .unsqueeze(1)
                                .matmul(torch::tensor(f, torch::kFloat64).unsqueeze(0))
                                .unsqueeze(1);
  const auto halves = x.chunk(2, -1);
  return torch::cat({halves[0] * angles.cos() - halves[1] * angles.sin(),
                     halves[1] * angles.cos() + halves[0] * angles.sin()},
                    -1);
}

at::Tensor naive(const at::Tensor& qkv, const Case& c) {
  std::vector<at::Tensor> parts;
  std::int64_t start = 0;
  for (const std::int64_t t : c.lengths) {
    const auto split =
        qkv.narrow(0, start, t)
            .split_with_sizes(
                {c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim}, 1);
    const std::int64_t group = c.heads / c.kv_heads;
    const std::vector<double> f = frequencies(c.head_dim);
    const at::Tensor q = rotate(split[0].reshape({t, c.heads, c.head_dim}), f).transpose(0, 1);
    const at::Tensor k = rotate(split[1].reshape({t, c.kv_heads, c.head_dim}), f)
                             .repeat_interleave(group, 1)
                             .transpose(0, 1);
    const at::Tensor v =
        split[2].reshape({t, c.kv_heads, c.head_dim}).repeat_interleave(group, 1).transpose(0, 1);
    const at::Tensor scores =
        (q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(c.head_dim)))
            .masked_fill(torch::ones({t, t}, torch::kBool).triu(1), -INFINITY);
    parts.push_back(scores.softmax(-1).matmul(v).transpose(0, 1).reshape({t, -1}));
    start += t;
  }
  return torch::cat(parts, 0);
}

std::vector<std::int64_t> ends_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets = {0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

SequenceLayout layout_of(const std::vector<std::int64_t>& lengths,
                         const std::vector<std::int64_t>& prefixes = {}) {
  return {.offsets = torch::tensor(ends_of(lengths), torch::kInt64),
          .prefixes = prefixes.empty() ? at::Tensor() : torch::tensor(prefixes, torch::kInt64)};
}

class AttentionCases : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionCases, EqualTheNaiveFormulation) {
  const Case c = GetParam();
  torch::manual_seed(7);
  const SequenceLayout layout = layout_of(c.lengths);
  const std::int64_t tokens = ends_of(c.lengths).back();
  RotaryTable table;
  extend_rotary(table, frequencies(c.head_dim), 512);
  const at::Tensor qkv =
      torch::randn({tokens, (c.heads + 2 * c.kv_heads) * c.head_dim}).set_requires_grad(true);
  const at::Tensor weight = torch::randn({tokens, c.heads * c.head_dim});
  const at::Tensor out = packed_attention(qkv, layout, {c.heads, c.kv_heads, c.head_dim}, table);
  out.backward(weight);

  const at::Tensor exact = qkv.detach().to(torch::kFloat64).set_requires_grad(true);
  const at::Tensor wanted = naive(exact, c);
  wanted.backward(weight.to(torch::kFloat64));
  EXPECT_LT((out - wanted).abs().max().item<double>(), 1e-5);
  EXPECT_LT((qkv.grad() - exact.grad()).abs().max().item<double>() /
                exact.grad().abs().max().item<double>(),
            1e-5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionCases,
                         ::testing::Values(Case{1, 1, 2, {1}}, Case{2, 1, 4, {2, 3, 1}},
                                           Case{4, 2, 6, {15, 16, 17, 7}},
                                           Case{8, 4, 8, {32, 31, 33}}, Case{3, 3, 10, {40}},
                                           Case{4, 1, 16, {64, 5}}, Case{2, 2, 32, {100, 1, 130}},
                                           Case{2, 1, 64, {257}}, Case{1, 1, 128, {48, 47}}));

TEST(Attention, BitsDoNotDependOnTheNeighbours) {
  torch::manual_seed(8);
  RotaryTable table;
  extend_rotary(table, frequencies(8), 128);
  const AttentionShape shape{4, 2, 8};
  const at::Tensor mine = torch::randn({37, 64});
  const at::Tensor others = torch::randn({90, 64});
  const at::NoGradGuard no_gradient;
  const at::Tensor alone = packed_attention(mine, layout_of({37}), shape, table);
  const at::Tensor among = packed_attention(torch::cat({others, mine, others}, 0),
                                            layout_of({60, 30, 37, 90}), shape, table);
  EXPECT_TRUE(torch::equal(alone, among.narrow(0, 90, 37)));
}

/// Random pieces, some of which go on from an earlier one, and the same with own copies of it.
struct SharedCase {
  Case shape = {};  ///< lengths are those of the pieces
  std::vector<std::int64_t> prefixes;
  std::vector<std::int64_t> rows;            ///< of the pieces, in the order of the copies
  std::vector<std::int64_t> lengths_copied;  ///< prefix and own together
  std::vector<std::int64_t> own;  ///< for each row of the pieces, its place among the copies
};

SharedCase shared_case(Rng& rng) {
  constexpr std::int64_t kDims[] = {2, 6, 8, 16, 32};
  const auto kv_heads = static_cast<std::int64_t>(1 + rng.below(3));
  SharedCase c;
  c.shape.kv_heads = kv_heads;
  c.shape.heads = kv_heads * static_cast<std::int64_t>(1 + rng.below(3));
  c.shape.head_dim = kDims[rng.below(5)];
  std::int64_t begin = 0;
  std::vector<std::int64_t> starts;
  for (std::uint64_t piece = 0; piece < 2 + rng.below(8); ++piece) {
    const auto length = static_cast<std::int64_t>(1 + rng.below(40));
    std::int64_t prefix = -1;
    if (piece > 0 && rng.below(3) > 0) prefix = static_cast<std::int64_t>(rng.below(piece));
    if (prefix >= 0 && c.prefixes[static_cast<std::size_t>(prefix)] >= 0) prefix = -1;
    std::int64_t before = 0;
    if (prefix >= 0) {
      before = c.shape.lengths[static_cast<std::size_t>(prefix)];
      for (std::int64_t i = 0; i < before; ++i)
        c.rows.push_back(starts[static_cast<std::size_t>(prefix)] + i);
    }
    for (std::int64_t i = 0; i < length; ++i) {
      c.own.push_back(static_cast<std::int64_t>(c.rows.size()));
      c.rows.push_back(begin + i);
    }
    starts.push_back(begin);
    begin += length;
    c.shape.lengths.push_back(length);
    c.prefixes.push_back(prefix);
    c.lengths_copied.push_back(before + length);
  }
  return c;
}

TEST(Attention, ASharedPrefixGivesTheBitsOfOwnCopiesAndTheGradientsOfTheirSum) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    torch::manual_seed(seed);
    const SharedCase c = shared_case(rng);
    const AttentionShape shape{c.shape.heads, c.shape.kv_heads, c.shape.head_dim};
    RotaryTable table;
    extend_rotary(table, frequencies(shape.head_dim), 128);
    const at::Tensor rows = torch::tensor(c.rows, torch::kInt64);
    const at::Tensor own = torch::tensor(c.own, torch::kInt64);
    const at::Tensor qkv =
        torch::randn({own.numel(), (shape.heads + 2 * shape.kv_heads) * shape.head_dim})
            .set_requires_grad(true);
    const at::Tensor weight = torch::randn({own.numel(), shape.heads * shape.head_dim});
    const at::Tensor out =
        packed_attention(qkv, layout_of(c.shape.lengths, c.prefixes), shape, table);
    out.backward(weight);
    const at::Tensor copied = packed_attention(qkv.detach().index_select(0, rows),
                                               layout_of(c.lengths_copied), shape, table);
    EXPECT_TRUE(torch::equal(out, copied.index_select(0, own)));

    const at::Tensor exact = qkv.detach().to(torch::kFloat64).set_requires_grad(true);
    Case copies = c.shape;
    copies.lengths = c.lengths_copied;
    naive(exact.index_select(0, rows), copies)
        .index_select(0, own)
        .backward(weight.to(torch::kFloat64));
    EXPECT_LT((qkv.grad() - exact.grad()).abs().max().item<double>() /
                  exact.grad().abs().max().item<double>(),
              1e-5);
  }
}

TEST(Attention, LargeScoresStayFinite) {
  RotaryTable table;
  extend_rotary(table, frequencies(4), 64);
  const at::Tensor qkv = (1000.0 * torch::randn({20, 12})).set_requires_grad(true);
  const at::Tensor out = packed_attention(qkv, layout_of({20}), {1, 1, 4}, table);
  out.sum().backward();
  EXPECT_TRUE(torch::isfinite(out).all().item<bool>());
  EXPECT_TRUE(torch::isfinite(qkv.grad()).all().item<bool>());
}

TEST(Attention, AnEmptySequenceIsLegal) {
  RotaryTable table;
  extend_rotary(table, frequencies(4), 64);
  const at::NoGradGuard no_gradient;
  const at::Tensor qkv = torch::randn({5, 12});
  const at::Tensor out = packed_attention(qkv, layout_of({0, 5, 0}), {1, 1, 4}, table);
  EXPECT_TRUE(torch::equal(out, packed_attention(qkv, layout_of({5}), {1, 1, 4}, table)));
}

TEST(RotaryTable, GrowsWithoutChangingWhatIsThere) {
  RotaryTable grown;
  extend_rotary(grown, frequencies(6), 10);
  extend_rotary(grown, frequencies(6), 40);
  RotaryTable whole;
  extend_rotary(whole, frequencies(6), 40);
  EXPECT_EQ(grown.cosine, whole.cosine);
  EXPECT_EQ(grown.sine, whole.sine);
  EXPECT_EQ(grown.positions, 40);
}

}  // namespace
}  // namespace troupe::actors
