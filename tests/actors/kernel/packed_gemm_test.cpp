// The packed GEMM: every output element has the bits of one scalar fma chain, for every kernel
// path, batch size, row position and odd shape. So no tile, panel or batch can change a result.

#include "actors/kernel/packed_matrix.hpp"
#include "runtime/base/check.hpp"
#include "tests/actors/kernel/kernel_case.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace troupe::actors {
namespace {

struct Shape {
  std::int64_t inputs;
  std::int64_t outputs;
};

struct Problem {
  Shape shape;
  std::vector<float> weight;  // [outputs, inputs]
  AlignedBuffer input;
  AlignedBuffer bias;
  PackedMatrix packed;

  Problem(Shape s, std::int64_t rows, std::uint64_t seed) : shape(s), packed(s.outputs, s.inputs) {
    Rng rng(seed);
    for (std::int64_t i = 0; i < s.inputs * s.outputs; ++i)
      weight.push_back(static_cast<float>(rng.normal()));
    input = random_rows(rng, rows, s.inputs);
    bias = random_rows(rng, 1, s.outputs);
    packed.pack(weight, 0);
  }
  float chain(std::int64_t row, std::int64_t output) const {
    float sum = 0.0f;
    for (std::int64_t k = 0; k < shape.inputs; ++k)
      sum = std::fma(input[row * padded(shape.inputs) + k],
                     weight[static_cast<std::size_t>(output * shape.inputs + k)], sum);
    return sum;
  }
};

TEST(PackedMatrix, PutsEveryPartWhereItsOutputAndInputSay) {
  constexpr std::uint64_t kSeed = 5;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  const auto pick = [&](std::int64_t below) {
    return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(below)));
  };
  for (int round = 0; round < 400; ++round) {
    PackedMatrix matrix(1 + pick(70), 1 + pick(30));
    const std::int64_t inputs = matrix.inputs();
    MatrixPart part;
    part.first_output = pick(matrix.outputs());
    part.outputs = 1 + pick(matrix.outputs() - part.first_output);
    part.first_input = pick(inputs);
    part.inputs = 1 + pick(inputs - part.first_input);
    const std::int64_t stride = part.inputs + pick(9);
    std::vector<float> weight(static_cast<std::size_t>(part.outputs * stride));
    for (float& w : weight) w = static_cast<float>(rng.normal());
    matrix.write(part, weight.data(), stride);
    for (std::int64_t o = 0; o < padded(matrix.outputs()); ++o)
      for (std::int64_t k = 0; k < inputs; ++k) {
        const std::int64_t row = o - part.first_output;
        const std::int64_t col = k - part.first_input;
        const bool inside = row >= 0 && row < part.outputs && col >= 0 && col < part.inputs;
        const float wanted = inside ? weight[static_cast<std::size_t>(row * stride + col)] : 0.0f;
        ASSERT_EQ(matrix.panels()[(o / kLanes * inputs + k) * kLanes + o % kLanes], wanted)
            << "round " << round << ", output " << o << ", input " << k;
      }
  }
  PackedMatrix matrix(4, 4);
  const std::vector<float> weight(16);
  EXPECT_THROW(matrix.write({2, 3, 0, 1}, weight.data(), 4), CheckFailure);
  EXPECT_THROW(matrix.write({0, 1, 3, 2}, weight.data(), 4), CheckFailure);
}

TEST(PackedGemm, EqualsOneScalarChainPerElementOnEveryPath) {
  constexpr std::int64_t kRows = 23;
  for (const Shape shape : {Shape{1, 1}, Shape{7, 5}, Shape{64, 172}, Shape{172, 64}, Shape{33, 16},
                            Shape{48, 129}, Shape{5, 300}}) {
    const Problem problem(shape, kRows, 7);
    const std::int64_t stride = padded(shape.outputs);
    for (const KernelPath path : available_paths()) {
      AlignedBuffer out(kRows * stride);
      packed_gemm(kernel_table(path), problem.input.data(), padded(shape.inputs), kRows,
                  problem.packed, out.data(), stride);
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t o = 0; o < shape.outputs; ++o)
          ASSERT_EQ(bits(out[r * stride + o]), bits(problem.chain(r, o)))
              << shape.inputs << "->" << shape.outputs << " path " << kernel_path_name(path)
              << " row " << r << " output " << o;
    }
  }
}

TEST(PackedGemm, GivesARowTheSameBitsInEveryBatchSizeAndPosition) {
  constexpr std::int64_t kRows = 40;
  const Shape shape{72, 172};
  const Problem problem(shape, kRows, 11);
  const std::int64_t stride = padded(shape.outputs);
  for (const KernelPath path : available_paths()) {
    AlignedBuffer alone(kRows * stride);
    for (std::int64_t r = 0; r < kRows; ++r)
      packed_gemm(kernel_table(path), problem.input.data() + r * padded(shape.inputs),
                  padded(shape.inputs), 1, problem.packed, alone.data() + r * stride, stride);
    for (std::int64_t batch = 1; batch <= kRows; ++batch) {
      for (const std::int64_t first : {std::int64_t{0}, (kRows - batch) / 2, kRows - batch}) {
        AlignedBuffer out(batch * stride);
        packed_gemm(kernel_table(path), problem.input.data() + first * padded(shape.inputs),
                    padded(shape.inputs), batch, problem.packed, out.data(), stride);
        for (std::int64_t i = 0; i < batch * stride; ++i)
          ASSERT_EQ(bits(out[i]), bits(alone[first * stride + i]))
              << "batch " << batch << " first " << first << " path " << kernel_path_name(path);
      }
    }
  }
}

TEST(PackedGemm, KeepsItsBitsInBatchesLargerThanARowBlock) {
  constexpr std::int64_t kRows = 401;
  const Shape shape{24, 50};
  const Problem problem(shape, kRows, 3);
  const std::int64_t stride = padded(shape.outputs);
  for (const KernelPath path : available_paths()) {
    AlignedBuffer out(kRows * stride);
    packed_gemm(kernel_table(path), problem.input.data(), padded(shape.inputs), kRows,
                problem.packed, out.data(), stride);
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t o = 0; o < shape.outputs; ++o)
        ASSERT_EQ(bits(out[r * stride + o]), bits(problem.chain(r, o))) << "row " << r;
  }
}

TEST(PackedGemm, AddsBiasThenTheOldValue) {
  constexpr std::int64_t kRows = 9;
  const Shape shape{20, 37};
  const Problem problem(shape, kRows, 5);
  const std::int64_t stride = padded(shape.outputs);
  for (const KernelPath path : available_paths()) {
    Rng rng(9);
    AlignedBuffer out = random_rows(rng, kRows, shape.outputs);
    std::vector<float> old(out.data(), out.data() + out.size());
    packed_gemm(kernel_table(path), problem.input.data(), padded(shape.inputs), kRows,
                problem.packed, out.data(), stride,
                GemmOptions{.bias = problem.bias.data(), .accumulate = true});
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t o = 0; o < shape.outputs; ++o)
        ASSERT_EQ(bits(out[r * stride + o]), bits((problem.chain(r, o) + problem.bias[o]) +
                                                  old[static_cast<std::size_t>(r * stride + o)]));
  }
}

TEST(PackedGemm, KeepsANaNRowToItself) {
  const Shape shape{16, 16};
  Problem problem(shape, 3, 1);
  problem.input[16 + 4] = std::nanf("");
  for (const KernelPath path : available_paths()) {
    AlignedBuffer out(3 * 16);
    packed_gemm(kernel_table(path), problem.input.data(), 16, 3, problem.packed, out.data(), 16);
    for (std::int64_t o = 0; o < 16; ++o) {
      EXPECT_EQ(bits(out[o]), bits(problem.chain(0, o)));
      EXPECT_TRUE(std::isnan(out[16 + o]));
      EXPECT_EQ(bits(out[32 + o]), bits(problem.chain(2, o)));
    }
  }
}

TEST(PackedMatrix, GivesBackEachOutputAndPacksStackedParts) {
  Rng rng(2);
  std::vector<float> top(19 * 6);
  std::vector<float> bottom(11 * 6);
  for (float& w : top) w = static_cast<float>(rng.normal());
  for (float& w : bottom) w = static_cast<float>(rng.normal());
  PackedMatrix matrix(30, 6);
  matrix.pack(top, 0);
  matrix.pack(bottom, 19);
  std::vector<float> row(6);
  for (std::int64_t o = 0; o < 30; ++o) {
    matrix.copy_output(o, row);
    const float* wanted = o < 19 ? top.data() + o * 6 : bottom.data() + (o - 19) * 6;
    for (std::size_t k = 0; k < 6; ++k) EXPECT_EQ(row[k], wanted[k]) << o;
  }
  EXPECT_THROW(matrix.pack(bottom, 20), CheckFailure);
  EXPECT_THROW(matrix.pack(std::span(bottom).first(7), 0), CheckFailure);
  EXPECT_THROW(matrix.copy_output(30, row), CheckFailure);
}

TEST(PackedGemm, RefusesStridesThatDoNotHoldARow) {
  const Problem problem(Shape{20, 37}, 1, 5);
  AlignedBuffer out(64);
  const KernelTable& kernels = kernel_table();
  EXPECT_THROW(packed_gemm(kernels, problem.input.data(), 19, 1, problem.packed, out.data(), 48),
               CheckFailure);
  EXPECT_THROW(packed_gemm(kernels, problem.input.data(), 32, 1, problem.packed, out.data(), 47),
               CheckFailure);
}

TEST(KernelPath, AutoIsAvailableAndNamed) {
  const KernelPath chosen = resolve_kernel_path(KernelPath::kAuto);
  EXPECT_TRUE(kernel_path_available(chosen));
  EXPECT_NE(chosen, KernelPath::kAuto);
  EXPECT_EQ(kernel_table().path, chosen);
  EXPECT_EQ(kernel_path_name(KernelPath::kAvx2), "avx2");
}

}  // namespace
}  // namespace troupe::actors
