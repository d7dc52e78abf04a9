// Proves that log-probs of the cut distribution, and their gradients in hidden states and head, are
// those of the slow row processor, at any chunk size; that what is cut off gets no gradient; and
// that without a cut they are those of the whole distribution.
#include "actors/algorithm/processed_distribution.hpp"
#include "actors/model/token_log_prob_cut.hpp"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace troupe::actors {
namespace {

struct Case {
  SamplingTransform transform;
  std::int64_t chunk;
};

class ProcessedLogProbs : public ::testing::TestWithParam<Case> {};

std::span<const float> row_of(const at::Tensor& logits, std::int64_t row) {
  return {logits.data_ptr<float>() + row * logits.size(1),
          static_cast<std::size_t>(logits.size(1))};
}

TEST_P(ProcessedLogProbs, EqualTheSlowRowsWithTheirGradient) {
  constexpr std::int64_t kTokens = 40;
  constexpr std::int64_t kVocabulary = 70;
  const auto [transform, chunk] = GetParam();
  torch::manual_seed(11);
  const at::Tensor hidden = torch::randn({kTokens, 12}).set_requires_grad(true);
  const at::Tensor head = torch::randn({kVocabulary, 12}).set_requires_grad(true);
  const at::Tensor targets = torch::randint(kVocabulary, {kTokens}, torch::kInt64);
  const at::Tensor upstream = torch::randn({kTokens});
  const at::Tensor found =
      processed_log_prob(hidden, head, targets,
                         {.temperature = transform.temperature, .chunk_tokens = chunk}, transform);
  torch::autograd::backward({found}, {upstream});

  const at::Tensor logits = hidden.detach().mm(head.detach().t()).contiguous();
  const at::Tensor slopes = torch::zeros({kTokens, kVocabulary}, torch::kFloat64);
  RowProcessor processor;
  std::vector<double> slope(kVocabulary);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto token = static_cast<std::int32_t>(targets[t].item<std::int64_t>());
    const ProcessedRow row = processor.process(row_of(logits, t), token, transform).value();
    EXPECT_NEAR(found[t].item<float>(), row.log_prob, 1e-5) << "token " << t;
    processor.gradient(upstream[t].item<float>(), slope);
    for (std::int64_t v = 0; v < kVocabulary; ++v)
      slopes[t][v] = slope[static_cast<std::size_t>(v)];
  }
  const auto close = [](const at::Tensor& got, const at::Tensor& wanted) {
    return torch::allclose(got.to(torch::kFloat64), wanted, 1e-4, 1e-4);
  };
  EXPECT_TRUE(close(hidden.grad(), slopes.mm(head.detach().to(torch::kFloat64))));
  EXPECT_TRUE(close(head.grad(), slopes.t().mm(hidden.detach().to(torch::kFloat64))));
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, ProcessedLogProbs,
    ::testing::Values(Case{{.top_p = 0.8}, 64}, Case{{.temperature = 0.7, .top_k = 6}, 7},
                      Case{{.temperature = 1.4, .min_p = 0.1}, 40}, Case{{.top_k = 1}, 3},
                      Case{{.temperature = 0.9, .top_p = 0.9, .top_k = 20, .min_p = 0.01}, 1},
                      Case{{.temperature = 0.8}, 16}));

TEST(ProcessedLogProb, OfNoTokensIsEmpty) {
  const at::Tensor none = processed_log_prob(torch::zeros({0, 4}), torch::zeros({9, 4}),
                                             torch::zeros({0}, torch::kInt64), {}, {.top_p = 0.5});
  EXPECT_EQ(none.numel(), 0);
}

}  // namespace
}  // namespace troupe::actors
