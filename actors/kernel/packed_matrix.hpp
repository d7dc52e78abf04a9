#pragma once

// A weight matrix re-ordered once into panels of 16 output columns, so that a GEMM reads it
// front to back: panel p holds, for each input k, the 16 weights of outputs 16p .. 16p+15.
//
// **Ownership:** owns its numbers (64-byte aligned).
// **Threads:** const access from any thread.
// **Invariants:** outputs past the last real one are zero.

#include "actors/kernel/aligned_buffer.hpp"
#include "actors/kernel/kernel_table.hpp"

#include <cstdint>
#include <span>

namespace troupe::actors {

/// Outputs [first_output, first_output + outputs) × inputs [first_input, first_input + inputs).
struct MatrixPart {
  std::int64_t first_output = 0;
  std::int64_t outputs = 0;
  std::int64_t first_input = 0;
  std::int64_t inputs = 0;
};

class PackedMatrix {
 public:
  PackedMatrix() = default;
  /// Room for a [outputs, inputs] weight, all zero.
  PackedMatrix(std::int64_t outputs, std::int64_t inputs);

  /// Packs weight [rows, inputs] (row-major) as outputs first_output .. first_output + rows − 1.
  void pack(std::span<const float> weight, std::int64_t first_output);
  /// Packs a part from row-major numbers whose rows are `row_stride` apart.
  void write(const MatrixPart& part, const float* weight, std::int64_t row_stride);

  /// The weights of one output, [inputs]: an embedding row of a tied head.
  void copy_output(std::int64_t output, std::span<float> target) const;

  std::int64_t outputs() const { return outputs_; }
  std::int64_t inputs() const { return inputs_; }
  std::int64_t panel_count() const { return padded(outputs_) / kLanes; }
  std::int64_t bytes() const { return panels_.size() * static_cast<std::int64_t>(sizeof(float)); }
  const float* panels() const { return panels_.data(); }

 private:
  std::int64_t outputs_ = 0;
  std::int64_t inputs_ = 0;
  AlignedBuffer panels_;
};

struct GemmOptions {
  const float* bias = nullptr;  ///< [padded(outputs)]
  bool accumulate = false;      ///< add to what `output` holds
};

/// input [rows, K] with stride → output [rows, padded(N)] with stride; see GemmCall for the order.
void packed_gemm(const KernelTable& kernels, const float* input, std::ptrdiff_t input_stride,
                 std::int64_t rows, const PackedMatrix& weight, float* output,
                 std::ptrdiff_t output_stride, GemmOptions options = {});

}  // namespace troupe::actors
