// Row kernels: the same bits on every path (odd widths included), and close to a double reference.

#include "tests/actors/kernel/kernel_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe::actors {
namespace {

constexpr std::int64_t kWidths[] = {1, 8, 15, 16, 17, 64, 172, 576, 1000};

TEST(RowOps, ExpIsWithinTwoUlpOfTheLibrary) {
  std::vector<float> in;
  for (float x = -87.2f; x < 88.0f; x += 0.00731f) in.push_back(x);
  in.insert(in.end(), {0.0f, -0.0f, 1e-30f, -1e-7f, 1.0f});
  std::vector<float> out(in.size());
  kernel_table(KernelPath::kPortable)
      .exp(in.data(), static_cast<std::int64_t>(in.size()), out.data());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double exact = std::exp(static_cast<double>(in[i]));
    const auto rounded = static_cast<float>(exact);
    const double ulp =
        static_cast<double>(std::nextafter(rounded, INFINITY)) - static_cast<double>(rounded);
    ASSERT_LE(std::abs(static_cast<double>(out[i]) - exact), 2.0 * ulp) << in[i];
  }
}

TEST(RowOps, ExpIsZeroFarBelowAndFiniteFarAbove) {
  const float in[] = {-1000.0f, -INFINITY, -88.0f, 0.0f, 200.0f};
  for (const KernelPath path : available_paths()) {
    float out[5];
    kernel_table(path).exp(in, 5, out);
    EXPECT_EQ(out[0], 0.0f);
    EXPECT_EQ(out[1], 0.0f);
    EXPECT_EQ(out[2], 0.0f);
    EXPECT_EQ(out[3], 1.0f);
    EXPECT_TRUE(std::isfinite(out[4]));
  }
}

/// Runs `apply(kernels, out)` on every path and expects the bits of the portable one.
template <class F>
void expect_same_bits(std::int64_t count, F&& apply) {
  std::vector<float> wanted(static_cast<std::size_t>(count));
  apply(kernel_table(KernelPath::kPortable), wanted.data());
  for (const KernelPath path : available_paths()) {
    std::vector<float> out(static_cast<std::size_t>(count));
    apply(kernel_table(path), out.data());
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(bits(out[i]), bits(wanted[i]))
          << kernel_path_name(path) << " element " << i << " of " << count;
  }
}

TEST(RowOps, EveryPathGivesTheSameBits) {
  Rng rng(21);
  for (const std::int64_t width : kWidths) {
    AlignedBuffer x = random_rows(rng, 1, width);
    AlignedBuffer y = random_rows(rng, 1, width);
    AlignedBuffer wide = random_rows(rng, 1, width);
    for (std::int64_t i = 0; i < width; ++i) wide[i] *= 20.0f;
    expect_same_bits(padded(width), [&](const KernelTable& kernels, float* out) {
      kernels.rms_norm(x.data(), y.data(), width, 1e-5f, out);
    });
    expect_same_bits(padded(width), [&](const KernelTable& kernels, float* out) {
      kernels.silu_mul(wide.data(), y.data(), width, out);
    });
    expect_same_bits(width, [&](const KernelTable& kernels, float* out) {
      kernels.exp(wide.data(), width, out);
    });
    expect_same_bits(width + 1, [&](const KernelTable& kernels, float* out) {
      out[width] = kernels.exp_weights(wide.data(), width, 0.7f, out);
    });
    expect_same_bits(width, [&](const KernelTable& kernels, float* out) {
      std::copy_n(x.data(), width, out);
      kernels.head_norm(out, y.data(), width, 1e-6f);
    });
    if (width % 2 == 0) {
      expect_same_bits(width, [&](const KernelTable& kernels, float* out) {
        std::copy_n(x.data(), width, out);
        kernels.rope(out, y.data(), wide.data(), width / 2, 0.35f);
      });
    }
  }
}

TEST(RowOps, NormAndHeadNormMatchTheFormula) {
  Rng rng(4);
  for (const std::int64_t width : kWidths) {
    const AlignedBuffer x = random_rows(rng, 1, width);
    const AlignedBuffer w = random_rows(rng, 1, width);
    AlignedBuffer out(padded(width));
    AlignedBuffer head(padded(width));
    std::copy_n(x.data(), width, head.data());
    kernel_table().rms_norm(x.data(), w.data(), width, 1e-5f, out.data());
    kernel_table().head_norm(head.data(), w.data(), width, 1e-5f);
    double squares = 0.0;
    for (std::int64_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    for (std::int64_t i = 0; i < width; ++i) {
      EXPECT_NEAR(out[i], x[i] * scale * w[i], 1e-5) << width;
      EXPECT_NEAR(head[i], x[i] * scale * w[i], 1e-5) << width;
    }
    for (std::int64_t i = width; i < padded(width); ++i) EXPECT_EQ(out[i], 0.0f);
  }
}

TEST(RowOps, SiluMulMatchesTheFormulaAndSurvivesExtremes) {
  AlignedBuffer gate(16);
  AlignedBuffer up(16);
  AlignedBuffer out(16);
  const float values[] = {0.0f, 1.0f, -1.0f, 5.5f, -5.5f, 80.0f, -80.0f, 300.0f, -300.0f, 1e-20f};
  std::copy(std::begin(values), std::end(values), gate.data());
  std::fill(up.data(), up.data() + 16, 1.5f);
  kernel_table().silu_mul(gate.data(), up.data(), 10, out.data());
  for (std::size_t i = 0; i < std::size(values); ++i) {
    const double x = values[i];
    const double wanted = x / (1.0 + std::exp(-x)) * 1.5;
    EXPECT_NEAR(out[static_cast<std::int64_t>(i)], wanted, 1e-6 * std::max(1.0, std::abs(wanted)))
        << values[i];
  }
}

TEST(RowOps, RopeTurnsPairsByTheAngle) {
  const double angle = 0.7;
  float head[] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, 8.0f};
  std::vector<float> cosine(4, static_cast<float>(std::cos(angle)));
  std::vector<float> sine(4, static_cast<float>(std::sin(angle)));
  kernel_table().rope(head, cosine.data(), sine.data(), 4, 2.0f);
  for (int i = 0; i < 4; ++i) {
    const double a = i + 1;
    const double b = i + 5;
    EXPECT_NEAR(head[i], 2.0 * (a * std::cos(angle) - b * std::sin(angle)), 1e-5);
    EXPECT_NEAR(head[i + 4], 2.0 * (b * std::cos(angle) + a * std::sin(angle)), 1e-5);
  }
}

TEST(RowOps, ExpWeightsReturnsTheMaximumAndRelativeWeights) {
  Rng rng(8);
  for (const std::int64_t width : kWidths) {
    const AlignedBuffer logits = random_rows(rng, 1, width);
    std::vector<float> weights(static_cast<std::size_t>(width));
    for (const KernelPath path : available_paths()) {
      const float max = kernel_table(path).exp_weights(logits.data(), width, 2.0f, weights.data());
      EXPECT_EQ(max, *std::max_element(logits.data(), logits.data() + width));
      for (std::int64_t i = 0; i < width; ++i)
        ASSERT_NEAR(weights[static_cast<std::size_t>(i)], std::exp((logits[i] - max) * 2.0), 1e-6);
    }
  }
}

TEST(RowOps, ExpWeightsReportsEveryKindOfBadLogitAnywhere) {
  for (const KernelPath path : available_paths()) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (const std::int64_t place : {0, 5, 15, 16, 31, 32, 36}) {
        std::vector<float> logits(37, 1.0f);
        logits[static_cast<std::size_t>(place)] = bad;
        std::vector<float> weights(37);
        EXPECT_TRUE(
            std::isnan(kernel_table(path).exp_weights(logits.data(), 37, 1.0f, weights.data())))
            << bad << " at " << place;
      }
    }
  }
}

}  // namespace
}  // namespace troupe::actors
