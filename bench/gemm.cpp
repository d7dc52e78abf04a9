// Speed of the packed fixed-order GEMM over the number of rows, and of its fallbacks.
//
// Prints GFLOP/s per shape and row count. `--check` fails when, at the shape that is far larger
// than the caches, 8 rows are not at least 2× as fast per row as 1 (weights re-read per row).

#include "actors/kernel/packed_matrix.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;

/// Best seconds of one call over a short time.
double seconds_per_call(const KernelTable& kernels, std::int64_t rows, const PackedMatrix& weight) {
  const std::int64_t in_stride = padded(weight.inputs());
  const std::int64_t out_stride = padded(weight.outputs());
  AlignedBuffer input(rows * in_stride);
  AlignedBuffer output(rows * out_stride);
  for (std::int64_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i % 13) * 0.1f;
  double best = 1e9;
  double spent = 0.0;
  while (spent < 0.15) {
    const auto begin = std::chrono::steady_clock::now();
    packed_gemm(kernels, input.data(), in_stride, rows, weight, output.data(), out_stride);
    const double took = seconds(std::chrono::steady_clock::now() - begin);
    best = std::min(best, took);
    spent += took;
  }
  return best;
}

struct Shape {
  std::int64_t inputs;
  std::int64_t outputs;
};

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::string_view(argv[1]) == "--check";
  bool ok = true;
  std::vector<KernelPath> paths;
  for (const KernelPath path : {KernelPath::kAvx512, KernelPath::kAvx2, KernelPath::kPortable})
    if (kernel_path_available(path)) paths.push_back(path);
  for (const Shape shape : {Shape{64, 172}, Shape{128, 384}, Shape{128, 1024}, Shape{576, 1536},
                            Shape{1536, 576}, Shape{576, 49152}}) {
    PackedMatrix weight(shape.outputs, shape.inputs);
    Rng rng(1);
    std::vector<float> row(static_cast<std::size_t>(shape.inputs));
    for (std::int64_t o = 0; o < shape.outputs; ++o) {
      for (float& w : row) w = static_cast<float>(rng.uniform() - 0.5);
      weight.pack(row, o);
    }
    for (const KernelPath path : paths) {
      if (path == KernelPath::kPortable && shape.outputs * shape.inputs > 200'000) continue;
      fmt::print("{:>5} -> {:<6} {:<9}", shape.inputs, shape.outputs, kernel_path_name(path));
      double one_row = 0.0;
      for (const std::int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}) {
        if (shape.outputs > 40'000 && rows > 64) continue;
        const double s = seconds_per_call(kernel_table(path), rows, weight);
        const double flops = 2.0 * static_cast<double>(rows * shape.inputs * shape.outputs);
        fmt::print(" {:>4}:{:<6.1f}", rows, flops / s * 1e-9);
        if (rows == 1) one_row = s;
        if (rows == 8 && shape.outputs > 40'000 && one_row * 8 < 2 * s) ok = false;
      }
      fmt::print(" GFLOP/s by rows\n");
    }
  }
  fmt::print("8 rows at least 2x as fast per row as 1 row: {}\n", ok ? "yes" : "NO");
  return check && !ok ? 1 : 0;
}
