#include "actors/kernel/packed_matrix.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::actors {
namespace {

/// Four floats that compilers keep in one register of every instruction set here.
using Quad = float __attribute__((vector_size(16)));

Quad load_quad(const float* from) {
  Quad quad;
  std::memcpy(&quad, from, sizeof(quad));
  return quad;
}

/// Turns a 4 × 4 square: target[k][i] ← source[i][k], rows of either side so many floats apart.
void turn_square(const float* source, std::int64_t source_stride, float* target) {
  const Quad a = load_quad(source);
  const Quad b = load_quad(source + source_stride);
  const Quad c = load_quad(source + 2 * source_stride);
  const Quad d = load_quad(source + 3 * source_stride);
  const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Quad columns[] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                          __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                          __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                          __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (int k = 0; k < 4; ++k) std::memcpy(target + k * kLanes, &columns[k], sizeof(Quad));
}

/// `rows` ≤ kLanes rows of `columns` numbers → lanes 0 .. rows − 1 of a panel, from its first
/// column on.
void pack_lanes(const float* source, std::int64_t row_stride, std::int64_t rows,
                std::int64_t columns, float* panel) {
  const std::int64_t square_rows = rows / 4 * 4;
  const std::int64_t square_columns = columns / 4 * 4;
  for (std::int64_t k = 0; k < square_columns; k += 4) {
    for (std::int64_t i = 0; i < square_rows; i += 4)
      turn_square(source + i * row_stride + k, row_stride, panel + k * kLanes + i);
    for (std::int64_t i = square_rows; i < rows; ++i)
      for (std::int64_t j = k; j < k + 4; ++j) panel[j * kLanes + i] = source[i * row_stride + j];
  }
  for (std::int64_t k = square_columns; k < columns; ++k)
    for (std::int64_t i = 0; i < rows; ++i) panel[k * kLanes + i] = source[i * row_stride + k];
}

}  // namespace

PackedMatrix::PackedMatrix(std::int64_t outputs, std::int64_t inputs)
    : outputs_(outputs), inputs_(inputs), panels_(padded(outputs) * inputs) {
  TROUPE_CHECK(outputs > 0 && inputs > 0, "packed matrix: shape [{}, {}], wanted > 0", outputs,
               inputs);
}

void PackedMatrix::pack(std::span<const float> weight, std::int64_t first_output) {
  const auto size = static_cast<std::int64_t>(weight.size());
  const std::int64_t rows = size / inputs_;
  TROUPE_CHECK(rows * inputs_ == size, "packed matrix: {} weights, wanted a multiple of {}", size,
               inputs_);
  write({first_output, rows, 0, inputs_}, weight.data(), inputs_);
}

void PackedMatrix::write(const MatrixPart& part, const float* weight, std::int64_t row_stride) {
  TROUPE_CHECK(
      part.first_output >= 0 && part.outputs >= 0 && part.first_output + part.outputs <= outputs_,
      "packed matrix: outputs {}..{}, have {}", part.first_output, part.first_output + part.outputs,
      outputs_);
  TROUPE_CHECK(
      part.first_input >= 0 && part.inputs >= 0 && part.first_input + part.inputs <= inputs_,
      "packed matrix: inputs {}..{}, have {}", part.first_input, part.first_input + part.inputs,
      inputs_);
  // Up to 16 rows at a time, so that each 64-byte line of a panel is completed while it is hot.
  for (std::int64_t row = 0; row < part.outputs;) {
    const std::int64_t output = part.first_output + row;
    const std::int64_t lane = output % kLanes;
    const std::int64_t count = std::min<std::int64_t>(kLanes - lane, part.outputs - row);
    float* panel = panels_.data() + (output / kLanes * inputs_ + part.first_input) * kLanes + lane;
    pack_lanes(weight + row * row_stride, row_stride, count, part.inputs, panel);
    row += count;
  }
}

void PackedMatrix::copy_output(std::int64_t output, std::span<float> target) const {
  TROUPE_CHECK(output >= 0 && output < outputs_, "packed matrix: output {}, have {}", output,
               outputs_);
  TROUPE_CHECK(static_cast<std::int64_t>(target.size()) == inputs_,
               "packed matrix: target holds {}, wanted {}", target.size(), inputs_);
  const float* source = panels_.data() + output / kLanes * inputs_ * kLanes + output % kLanes;
  for (std::int64_t k = 0; k < inputs_; ++k)
    target[static_cast<std::size_t>(k)] = source[k * kLanes];
}

void packed_gemm(const KernelTable& kernels, const float* input, std::ptrdiff_t input_stride,
                 std::int64_t rows, const PackedMatrix& weight, float* output,
                 std::ptrdiff_t output_stride, GemmOptions options) {
  TROUPE_CHECK(input_stride >= weight.inputs(), "gemm: input stride {}, wanted ≥ {}", input_stride,
               weight.inputs());
  TROUPE_CHECK(output_stride >= padded(weight.outputs()), "gemm: output stride {}, wanted ≥ {}",
               output_stride, padded(weight.outputs()));
  kernels.gemm(GemmCall{.input = input,
                        .input_stride = input_stride,
                        .panels = weight.panels(),
                        .panel_count = weight.panel_count(),
                        .depth = weight.inputs(),
                        .rows = rows,
                        .bias = options.bias,
                        .output = output,
                        .output_stride = output_stride,
                        .accumulate = options.accumulate});
}

}  // namespace troupe::actors
