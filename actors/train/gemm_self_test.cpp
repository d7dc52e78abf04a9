#include "actors/train/train_engine.hpp"
#include "runtime/base/log.hpp"

#include <torch/types.h>

#include <algorithm>
#include <chrono>

namespace troupe::actors {

double gemm_gigaflops() {
  constexpr std::int64_t kSize = 256;
  constexpr int kRuns = 5;
  const at::NoGradGuard no_gradient;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor a = at::ones({kSize, kSize});
  const at::Tensor b = at::ones({kSize, kSize});
  at::Tensor c = at::empty({kSize, kSize});
  double best = 0;
  // The first run loads and warms the library; the best of the others is the machine's.
  for (int run = 0; run <= kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    at::mm_out(c, a, b);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (run > 0) best = std::max(best, 2.0 * kSize * kSize * kSize / taken.count() / 1e9);
  }
  at::set_num_threads(threads);
  return best;
}

double gemm_self_test() {
  const double rate = gemm_gigaflops();
  if (rate < kSlowGemmGigaflops)
    log::warn(
        "matrix products run at {:.1f} GFLOP/s on one core (below {:.0f}): LibTorch found an "
        "unoptimised BLAS; install one: apt-get install libopenblas0-openmp",
        rate, kSlowGemmGigaflops);
  return rate;
}

}  // namespace troupe::actors
