// Proves that the fast cut of a row keeps what the slow one keeps: over random rows, rows full of
// ties, and every mix of min-p, top-k and top-p, token by token.
#include "actors/algorithm/row_cut.hpp"

#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace troupe::actors {
namespace {

SamplingTransform random_transform(Rng& rng) {
  SamplingTransform transform{.temperature = 0.4 + rng.uniform()};
  if (rng.below(2) == 0) transform.top_p = 0.05 + 0.94 * rng.uniform();
  if (rng.below(3) == 0) transform.top_k = static_cast<std::int32_t>(1 + rng.below(60));
  if (rng.below(3) == 0) transform.min_p = 0.3 * rng.uniform();
  return transform;
}

/// Whole numbers tie often.
std::vector<float> random_row(Rng& rng, bool ties) {
  std::vector<float> logits(1 + rng.below(80));
  for (float& logit : logits) {
    const double value = 3 * rng.normal();
    logit = static_cast<float>(ties ? std::round(value) : value);
  }
  return logits;
}

TEST(RowCut, KeepsWhatTheSlowWalkKeeps) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const SamplingTransform transform = random_transform(rng);
    const std::vector<float> logits = random_row(rng, seed % 2 == 0);
    RowProcessor processor;
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    ASSERT_TRUE(processor.process(logits, static_cast<std::int32_t>(best), transform).has_value());
    RowCutter cutter(transform);
    const RowCut cut = cutter.cut(logits);
    for (std::size_t v = 0; v < logits.size(); ++v)
      ASSERT_EQ(cut.keeps(logits[v], static_cast<std::int64_t>(v)), processor.kept()[v] != 0)
          << "token " << v << " of " << logits.size();
  }
}

TEST(RowCut, UsesItsScratchAgainWithoutATrace) {
  Rng rng(5);
  RowCutter cutter({.top_p = 0.7, .top_k = 9});
  const std::vector<float> first = random_row(rng, false);
  const RowCut alone = cutter.cut(first);
  for (int i = 0; i < 5; ++i) cutter.cut(random_row(rng, true));
  EXPECT_EQ(cutter.cut(first), alone);
}

TEST(RowCut, KeepsARowThatIsNotFiniteWhole) {
  RowCutter cutter({.top_p = 0.1});
  const std::vector<float> logits = {1, std::numeric_limits<float>::quiet_NaN(), 3};
  EXPECT_EQ(cutter.cut(logits), RowCut{});
}

}  // namespace
}  // namespace troupe::actors
