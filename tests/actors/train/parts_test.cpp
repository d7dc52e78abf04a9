// Proves the torch-free parts of the engine: schedules, AdamW against torch::optim::AdamW, the
// gradient norm and clip, packed sequences, and micro-batches under a hard cap.
#include "actors/train/adamw.hpp"
#include "actors/train/micro_batch.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe::actors {
namespace {

TEST(LearningRate, FollowsWarmUpAndDecay) {
  OptimizerOptions o{.lr = 2.0, .schedule = LrSchedule::kLinear};
  o.warmup_steps = 4;
  o.total_steps = 14;
  o.lr_min_ratio = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(o, 0), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(o, 3), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(o, 4), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(o, 9), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(learning_rate(o, 14), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000), 0.2);
  o.schedule = LrSchedule::kCosine;
  EXPECT_DOUBLE_EQ(learning_rate(o, 4), 2.0);
  EXPECT_NEAR(learning_rate(o, 9), 2.0 * (0.1 + 0.9 * 0.5), 1e-12);
  EXPECT_NEAR(learning_rate(o, 14), 0.2, 1e-12);
  EXPECT_GT(learning_rate(o, 6), learning_rate(o, 7));
  o.schedule = LrSchedule::kConstant;
  EXPECT_DOUBLE_EQ(learning_rate(o, 999), 2.0);
  EXPECT_EQ(*lr_schedule_from_name("cosine"), LrSchedule::kCosine);
  EXPECT_EQ(lr_schedule_from_name("cosin").error().code, ErrorCode::kConfig);
}

TEST(AdamW, EqualsTorchOverManySteps) {
  for (const bool decay : {true, false}) {
    torch::manual_seed(1);
    const std::int64_t n = 1003;
    const at::Tensor start = torch::randn({n});
    at::Tensor p = start.clone().to(torch::kFloat64).set_requires_grad(true);
    torch::optim::AdamW oracle({p}, torch::optim::AdamWOptions(0.01)
                                        .betas({0.9, 0.95})
                                        .eps(1e-8)
                                        .weight_decay(decay ? 0.1 : 0.0));
    OptimizerOptions options;
    options.beta2 = 0.95;
    options.weight_decay = 0.1;
    std::vector<float> w(start.data_ptr<float>(), start.data_ptr<float>() + n);
    std::vector<float> m(w.size(), 0.0F);
    std::vector<float> v(w.size(), 0.0F);
    for (std::int64_t step = 1; step <= 50; ++step) {
      const at::Tensor g = torch::randn({n}) * std::pow(10.0, static_cast<double>(step % 5) - 3.0);
      p.mutable_grad() = g.to(torch::kFloat64);
      oracle.step();
      const std::vector<float> gradient(g.data_ptr<float>(), g.data_ptr<float>() + n);
      adamw(options, {.lr = 0.01, .gradient_scale = 1.0, .step = step, .decay = decay}, w, gradient,
            m, v);
    }
    const at::Tensor wanted = p.detach();
    for (std::size_t i = 0; i < w.size(); ++i)
      ASSERT_NEAR(static_cast<double>(w[i]), wanted.data_ptr<double>()[i], 1e-5) << i;
  }
}

TEST(AdamW, ScalesTheGradientByTheClipFactor) {
  OptimizerOptions options;
  std::vector<float> a = {1.0F, 2.0F};
  std::vector<float> b = a;
  std::vector<float> ma(2), va(2), mb(2), vb(2);
  adamw(options, {.lr = 0.1, .gradient_scale = 0.25}, a, std::vector<float>{4.0F, -8.0F}, ma, va);
  adamw(options, {.lr = 0.1, .gradient_scale = 1.0}, b, std::vector<float>{1.0F, -2.0F}, mb, vb);
  EXPECT_EQ(a, b);
  EXPECT_EQ(ma, mb);
  EXPECT_EQ(va, vb);
}

TEST(GradientNorm, IsExactAndShowsNonFiniteValues) {
  std::vector<float> g(1001, 0.0F);
  g[3] = 3.0F;
  g[1000] = 4.0F;
  EXPECT_DOUBLE_EQ(gradient_norm(g), 5.0);
  EXPECT_EQ(gradient_norm({}), 0.0);
  g[500] = 1e30F;  // its square overflows f32
  EXPECT_TRUE(std::isfinite(gradient_norm(g)));
  g[500] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(gradient_norm(g)));
  g[500] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(gradient_norm(g)));
  EXPECT_DOUBLE_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_NEAR(clip_factor(10.0, 1.0), 0.1, 1e-6);
  EXPECT_DOUBLE_EQ(clip_factor(10.0, 0.0), 1.0);
}

TEST(MicroBatch, EverySequenceIsInOneAndNoneExceedsTheCap) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    SequencePack pack;
    const auto count = static_cast<int>(rng.below(30));
    for (int s = 0; s < count; ++s) {
      const std::vector<std::int32_t> prompt(1 + rng.below(6), s);
      const std::vector<std::int32_t> response(rng.below(7), 1000 + s);
      pack.add(prompt, response);
    }
    const PackedSequences view = pack.view();
    const std::int64_t cap = 12 + static_cast<std::int64_t>(rng.below(30));
    const std::vector<MicroBatch> batches =
        make_micro_batches(view, cap, rng.below(2) == 1).value();
    std::vector<int> seen(static_cast<std::size_t>(count), 0);
    std::vector<float> written(static_cast<std::size_t>(view.response_tokens()), 0.0F);
    std::vector<float> source(written.size());
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = 1.0F + static_cast<float>(i);
    for (const MicroBatch& batch : batches) {
      EXPECT_LE(static_cast<std::int64_t>(batch.tokens.size()), cap);
      EXPECT_EQ(batch.offsets.back(), static_cast<std::int64_t>(batch.tokens.size()));
      for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
        const std::int64_t s = batch.sequences[i];
        ++seen[static_cast<std::size_t>(s)];
        EXPECT_EQ(batch.offsets[i + 1] - batch.offsets[i], view.length(s));
        EXPECT_EQ(batch.response_offsets[i + 1] - batch.response_offsets[i],
                  view.response_length(s));
        for (std::int64_t r = batch.response_offsets[i]; r < batch.response_offsets[i + 1]; ++r) {
          const auto at = static_cast<std::size_t>(r);
          EXPECT_EQ(batch.targets[at], 1000 + s);
          EXPECT_EQ(batch.tokens[static_cast<std::size_t>(batch.rows[at] + 1)], 1000 + s);
          EXPECT_GE(batch.rows[at], batch.offsets[i]);
        }
      }
      batch.put(batch.part(std::span<const float>(source)), written);
    }
    EXPECT_TRUE(std::ranges::all_of(seen, [](int n) { return n == 1; }));
    EXPECT_EQ(written, source);
  }
}

/// Tokens that the row sees, through its piece and that one's prefix, ending with its own.
std::vector<std::int32_t> seen_by(const MicroBatch& batch, std::int64_t row) {
  const auto after = std::ranges::upper_bound(batch.offsets, row);
  const auto piece = static_cast<std::size_t>(after - batch.offsets.begin()) - 1;
  const auto at = [&batch](std::int64_t i) { return batch.tokens.begin() + i; };
  std::vector<std::int32_t> seen;
  if (!batch.prefixes.empty() && batch.prefixes[piece] >= 0) {
    const auto prefix = static_cast<std::size_t>(batch.prefixes[piece]);
    EXPECT_LT(prefix, piece);
    EXPECT_EQ(batch.prefixes[prefix], -1);
    seen.assign(at(batch.offsets[prefix]), at(batch.offsets[prefix + 1]));
  }
  seen.insert(seen.end(), at(batch.offsets[piece]), at(row + 1));
  return seen;
}

TEST(MicroBatch, EqualPromptsAreHeldOnceAndEachTokenIsPredictedFromAllBeforeIt) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    SequencePack pack;
    std::vector<std::vector<std::int32_t>> whole;
    std::vector<std::vector<std::int32_t>> prompts;
    for (std::uint64_t g = 0; g < 1 + rng.below(5); ++g) {
      prompts.emplace_back();
      for (std::uint64_t i = 0; i < 1 + rng.below(5); ++i)
        prompts.back().push_back(static_cast<std::int32_t>(rng.below(2)));
    }
    for (std::uint64_t s = 0; s < rng.below(25); ++s) {
      const auto& prompt = prompts[rng.below(prompts.size())];
      std::vector<std::int32_t> response;
      for (std::uint64_t i = 0; i < rng.below(7); ++i)
        response.push_back(static_cast<std::int32_t>(rng.below(100)));
      pack.add(prompt, response);
      whole.push_back(prompt);
      whole.back().insert(whole.back().end(), response.begin(), response.end());
    }
    const PackedSequences view = pack.view();
    const auto cap = static_cast<std::int64_t>(12 + rng.below(60));
    const std::vector<MicroBatch> shared = make_micro_batches(view, cap, true).value();
    std::int64_t held = 0;
    std::vector<int> predicted(static_cast<std::size_t>(view.response_tokens()), 0);
    for (const MicroBatch& batch : shared) {
      EXPECT_LE(std::ssize(batch.tokens), cap);
      held += std::ssize(batch.tokens);
      for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
        const auto s = static_cast<std::size_t>(batch.sequences[i]);
        for (std::int64_t r = batch.response_offsets[i]; r < batch.response_offsets[i + 1]; ++r) {
          const auto at = static_cast<std::size_t>(r);
          ++predicted[static_cast<std::size_t>(batch.origin[at])];
          std::vector<std::int32_t> seen = seen_by(batch, batch.rows[at]);
          const std::size_t before = seen.size();
          seen.push_back(static_cast<std::int32_t>(batch.targets[at]));
          EXPECT_EQ(seen, std::vector<std::int32_t>(
                              whole[s].begin(),
                              whole[s].begin() + static_cast<std::ptrdiff_t>(before) + 1));
          EXPECT_EQ(static_cast<std::int64_t>(before),
                    view.prompt_lengths[s] + r - batch.response_offsets[i]);
        }
      }
    }
    EXPECT_TRUE(std::ranges::all_of(predicted, [](int n) { return n == 1; }));
    EXPECT_LE(held, std::ssize(view.tokens));
  }
}

TEST(MicroBatch, AGroupTakesItsPromptOnceAndSplitsWhereTheCapAsksForIt) {
  SequencePack pack;
  const std::vector<std::int32_t> prompt(10, 1);
  for (int s = 0; s < 6; ++s) pack.add(prompt, std::vector<std::int32_t>(5, 2));
  const auto one = make_micro_batches(pack.view(), 90, true).value();
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].tokens.size(), 40U) << "10 and 6 x 5, not 6 x 15";
  EXPECT_EQ(one[0].prefixes, (std::vector<std::int64_t>{-1, 0, 0, 0, 0, 0, 0}));
  const auto alone = make_micro_batches(pack.view(), 90, false).value();
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_EQ(alone[0].tokens.size(), 90U);
  EXPECT_TRUE(alone[0].prefixes.empty());
  const auto split = make_micro_batches(pack.view(), 25, true).value();
  ASSERT_EQ(split.size(), 2U);
  EXPECT_EQ(split[0].tokens.size() + split[1].tokens.size(), 50U);
}

TEST(MicroBatch, ASequenceOverTheCapIsRefusedByName) {
  SequencePack pack;
  pack.add(std::vector<std::int32_t>(3, 1), std::vector<std::int32_t>(3, 1));
  pack.add(std::vector<std::int32_t>(5, 1), std::vector<std::int32_t>(6, 1));
  const auto batches = make_micro_batches(pack.view(), 10, true);
  ASSERT_FALSE(batches);
  EXPECT_EQ(batches.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(batches.error().message.find('1'), std::string::npos) << batches.error().message;
}

}  // namespace
}  // namespace troupe::actors
