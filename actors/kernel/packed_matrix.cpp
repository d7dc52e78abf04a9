#include "actors/kernel/packed_matrix.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>

namespace troupe::actors {

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
    const float* source = weight + row * row_stride;
    for (std::int64_t k = 0; k < part.inputs; ++k)
      for (std::int64_t i = 0; i < count; ++i) panel[k * kLanes + i] = source[i * row_stride + k];
    row += count;
  }
}

void PackedMatrix::copy_output(std::int64_t output, std::span<float> target) const {
  TROUPE_CHECK(output >= 0 && output < outputs_, "packed matrix: output {}, have {}", output,
               outputs_);
  TROUPE_CHECK(static_cast<std::int64_t>(target.size()) == inputs_,
               "packed matrix: target holds {}, wanted {}", target.size(), inputs_);
  const float* source = panels_.data() + output / kLanes * inputs_ * kLanes + output % kLanes;
  for (std::int64_t k = 0; k < inputs_; ++k) target[static_cast<std::size_t>(k)] = source[k * 16];
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
