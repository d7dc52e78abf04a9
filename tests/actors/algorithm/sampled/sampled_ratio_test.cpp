// Proves that the trainer's side of a truncated distribution is the sampler's: for tokens that the
// rollout's own sampler draws under temperature, top-k, top-p and min-p, both log-probs that it
// reports are recomputed from the logits, so the ratio at lag 0 is 1 and not the kept mass.
#include "actors/algorithm/processed_distribution.hpp"
#include "actors/algorithm/row_cut.hpp"
#include "actors/kernel/kernel_table.hpp"
#include "actors/rollout/sampler.hpp"
#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace troupe::actors {
namespace {

TEST(SampledRatio, IsOneAtLagZeroUnderEveryCut) {
  constexpr std::int64_t kVocabulary = 300;
  Sampler sampler(kVocabulary, kernel_table());
  RowProcessor processor;
  const SamplingTransform transforms[] = {{.temperature = 0.7},
                                          {.top_p = 0.8},
                                          {.top_k = 20},
                                          {.min_p = 0.05},
                                          {.temperature = 1.3, .top_p = 0.9, .top_k = 40},
                                          {.temperature = 0.6, .top_p = 0.95, .min_p = 0.02}};
  for (const SamplingTransform& transform : transforms) {
    const SamplingOptions options{.temperature = transform.temperature,
                                  .top_p = transform.top_p,
                                  .top_k = transform.top_k,
                                  .min_p = transform.min_p};
    Rng rng(17);
    double off_by = 0;
    constexpr std::uint32_t kDraws = 300;
    for (std::uint32_t draw = 0; draw < kDraws; ++draw) {
      std::vector<float> logits(kVocabulary);
      for (float& logit : logits) logit = static_cast<float>(2.5 * rng.normal());
      const std::int32_t prompt[] = {1};
      const SampledToken sampled =
          sampler.sample(logits, options, prompt, 1, {.seed = 3, .position = draw}).value();
      const ProcessedRow row = processor.process(logits, sampled.token, transform).value();
      ASSERT_FALSE(row.added) << "draw " << draw;
      ASSERT_NEAR(row.log_prob, sampled.log_prob, 2e-5) << "draw " << draw;
      ASSERT_NEAR(row.full_log_prob, sampled.full_log_prob, 2e-5) << "draw " << draw;
      off_by += std::exp(row.full_log_prob - double{sampled.log_prob}) / kDraws;
    }
    if (transform.has_truncation())
      EXPECT_LT(off_by, 0.99) << "what mixing the two kinds would report as the mean ratio";
    else
      EXPECT_NEAR(off_by, 1, 1e-5);
  }
}

TEST(RowCutter, KeepsTheSamplersSupportTiesIncluded) {
  constexpr std::int64_t kVocabulary = 120;
  Sampler sampler(kVocabulary, kernel_table());
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    // 0.5, 0.25, …: sums of the sampler's weights and ours are then exact, so that ties decide.
    const bool ties = seed % 2 == 0;
    SamplingTransform transform{.temperature = ties ? 1 / std::log(2.0) : 0.8};
    if (seed % 3 != 0) transform.top_p = ties ? 0.75 : 0.9;
    if (seed % 3 != 1) transform.top_k = 7;
    if (seed % 5 == 0) transform.min_p = 0.02;
    std::vector<float> logits(kVocabulary);
    for (float& logit : logits)
      logit = static_cast<float>(ties ? -static_cast<double>(rng.below(12)) : 2 * rng.normal());
    const SamplingOptions options{.temperature = transform.temperature,
                                  .top_p = transform.top_p,
                                  .top_k = transform.top_k,
                                  .min_p = transform.min_p};
    const std::int32_t prompt[] = {1};
    const std::vector<double> drawn = sampler.distribution(logits, options, prompt, 1).value();
    RowCutter cutter(transform);
    const RowCut cut = cutter.cut(logits);
    for (std::size_t v = 0; v < logits.size(); ++v)
      ASSERT_EQ(cut.keeps(logits[v], static_cast<std::int64_t>(v)), drawn[v] > 0) << "token " << v;
  }
}

}  // namespace
}  // namespace troupe::actors
