// Proves that the packed attention kernel equals a naive double-precision attention with
// finite-difference-free analytic gradients, over head sizes, groups and lengths around the lane
// and block borders; and that a sequence's bits do not depend on its neighbours.
#include "actors/model/attention_kernel.hpp"

#include "actors/model/attention.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

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

at::Tensor offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets = {0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return torch::tensor(offsets, torch::kInt64);
}

class AttentionCases : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionCases, EqualTheNaiveFormulation) {
  const Case c = GetParam();
  torch::manual_seed(7);
  const at::Tensor offsets = offsets_of(c.lengths);
  const std::int64_t tokens = offsets[-1].item<std::int64_t>();
  RotaryTable table;
  extend_rotary(table, frequencies(c.head_dim), 512);
  const at::Tensor qkv =
      torch::randn({tokens, (c.heads + 2 * c.kv_heads) * c.head_dim}).set_requires_grad(true);
  const at::Tensor weight = torch::randn({tokens, c.heads * c.head_dim});
  const at::Tensor out = packed_attention(qkv, offsets, {c.heads, c.kv_heads, c.head_dim}, table);
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
  const at::Tensor alone = packed_attention(mine, offsets_of({37}), shape, table);
  const at::Tensor among = packed_attention(torch::cat({others, mine, others}, 0),
                                            offsets_of({60, 30, 37, 90}), shape, table);
  EXPECT_TRUE(torch::equal(alone, among.narrow(0, 90, 37)));
}

TEST(Attention, LargeScoresStayFinite) {
  RotaryTable table;
  extend_rotary(table, frequencies(4), 64);
  const at::Tensor qkv = (1000.0 * torch::randn({20, 12})).set_requires_grad(true);
  const at::Tensor out = packed_attention(qkv, offsets_of({20}), {1, 1, 4}, table);
  out.sum().backward();
  EXPECT_TRUE(torch::isfinite(out).all().item<bool>());
  EXPECT_TRUE(torch::isfinite(qkv.grad()).all().item<bool>());
}

TEST(Attention, AnEmptySequenceIsLegal) {
  RotaryTable table;
  extend_rotary(table, frequencies(4), 64);
  const at::NoGradGuard no_gradient;
  const at::Tensor qkv = torch::randn({5, 12});
  const at::Tensor out = packed_attention(qkv, offsets_of({0, 5, 0}), {1, 1, 4}, table);
  EXPECT_TRUE(torch::equal(out, packed_attention(qkv, offsets_of({5}), {1, 1, 4}, table)));
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
