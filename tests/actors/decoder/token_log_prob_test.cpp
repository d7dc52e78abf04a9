// Proves that chunked token log-probs and entropies, and their gradients, equal the full
// double-precision log-softmax, at any chunk size, temperature and vocabulary; and that extreme
// logits stay finite.
#include "actors/model/token_log_prob.hpp"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace troupe::actors {
namespace {

struct Case {
  std::int64_t tokens;
  std::int64_t hidden;
  std::int64_t vocab;
  std::int64_t chunk;
  double temperature;
};

class TokenLogProbCases : public ::testing::TestWithParam<Case> {};

TEST_P(TokenLogProbCases, EqualTheFullFormulation) {
  const Case c = GetParam();
  torch::manual_seed(3);
  const at::Tensor hidden = torch::randn({c.tokens, c.hidden}).set_requires_grad(true);
  const at::Tensor head = torch::randn({c.vocab, c.hidden}).set_requires_grad(true);
  const at::Tensor targets = torch::randint(c.vocab, {c.tokens}, torch::kInt64);
  const at::Tensor log_prob_weight = torch::randn({c.tokens});
  const at::Tensor entropy_weight = torch::randn({c.tokens});

  const TokenLogProb out = token_log_prob(hidden, head, targets,
                                          {.temperature = c.temperature, .chunk_tokens = c.chunk});
  torch::autograd::backward({out.log_prob, out.entropy}, {log_prob_weight, entropy_weight});

  const at::Tensor hidden64 = hidden.detach().to(torch::kFloat64).set_requires_grad(true);
  const at::Tensor head64 = head.detach().to(torch::kFloat64).set_requires_grad(true);
  const at::Tensor full = (hidden64.matmul(head64.t()) / c.temperature).log_softmax(-1);
  const at::Tensor log_prob = full.gather(1, targets.unsqueeze(1)).squeeze(1);
  const at::Tensor entropy = -(full.exp() * full).sum(-1);
  ((log_prob * log_prob_weight).sum() + (entropy * entropy_weight).sum()).backward();

  const auto error = [](const at::Tensor& got, const at::Tensor& wanted) {
    return ((got - wanted).abs().max() / (wanted.abs().max() + 1e-3)).item<double>();
  };
  EXPECT_LT(error(out.log_prob.detach(), log_prob.detach()), 2e-6);
  EXPECT_LT((out.entropy.detach() - entropy.detach()).abs().max().item<double>(), 1e-5);
  EXPECT_LT(error(hidden.grad(), hidden64.grad()), 2e-5);
  EXPECT_LT(error(head.grad(), head64.grad()), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, TokenLogProbCases,
                         ::testing::Values(Case{1, 8, 5, 1024, 1.0}, Case{9, 8, 33, 4, 1.0},
                                           Case{64, 16, 300, 64, 0.7}, Case{65, 16, 300, 64, 1.3},
                                           Case{5, 4, 512, 2, 1.0}, Case{5, 4, 513, 5, 1.0},
                                           Case{12, 6, 3000, 5, 0.5}, Case{4, 3, 1, 3, 1.0}));

TEST(TokenLogProb, DoesNotDependOnTheChunkBeyondRounding) {
  torch::manual_seed(4);
  const at::Tensor hidden = torch::randn({50, 16});
  const at::Tensor head = torch::randn({77, 16});
  const at::Tensor targets = torch::randint(77, {50}, torch::kInt64);
  const at::Tensor a = token_log_prob(hidden, head, targets, {.chunk_tokens = 50}).log_prob;
  const at::Tensor b = token_log_prob(hidden, head, targets, {.chunk_tokens = 3}).log_prob;
  EXPECT_LT((a - b).abs().max().item<double>(), 1e-5);
}

TEST(TokenLogProb, ExtremeLogitsStayFinite) {
  const at::Tensor head = torch::tensor({1.0F, -1.0F, 0.0F}).view({3, 1});
  const at::Tensor hidden = torch::tensor({3000.0F, -3000.0F, 0.0F}).view({3, 1});
  hidden.set_requires_grad(true);
  const at::Tensor targets = torch::tensor({0, 0, 2}, torch::kInt64);
  const TokenLogProb out = token_log_prob(hidden, head, targets, {});
  EXPECT_FLOAT_EQ(out.log_prob[0].item<float>(), 0.0F);
  EXPECT_FLOAT_EQ(out.log_prob[1].item<float>(), -6000.0F);
  EXPECT_NEAR(out.entropy[0].item<float>(), 0.0F, 1e-6F);
  EXPECT_NEAR(out.entropy[2].item<float>(), std::log(3.0F), 1e-6F);
  torch::autograd::backward({out.log_prob, out.entropy}, {torch::ones({3}), torch::ones({3})});
  EXPECT_TRUE(torch::isfinite(hidden.grad()).all().item<bool>());
}

TEST(TokenLogProb, ANaNInOneRowStaysInThatRow) {
  torch::manual_seed(5);
  const at::Tensor head = torch::randn({40, 4});
  const at::Tensor hidden = torch::randn({3, 4});
  hidden[1][2] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor out =
      token_log_prob(hidden, head, torch::tensor({1, 2, 3}, torch::kInt64), {}).log_prob;
  EXPECT_TRUE(std::isfinite(out[0].item<float>()));
  EXPECT_TRUE(std::isnan(out[1].item<float>()));
  EXPECT_TRUE(std::isfinite(out[2].item<float>()));
}

TEST(TokenLogProb, NoTokensGiveEmptyResults) {
  const TokenLogProb out = token_log_prob(torch::zeros({0, 4}), torch::zeros({9, 4}),
                                          torch::zeros({0}, torch::kInt64), {});
  EXPECT_EQ(out.log_prob.numel(), 0);
  EXPECT_EQ(out.entropy.numel(), 0);
}

}  // namespace
}  // namespace troupe::actors
