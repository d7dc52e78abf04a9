#pragma once

// AdamW and the gradient norm over flat f32 buffers. Torch-free.
//
// **Threads:** pure functions of their arguments.
// **Invariants:** equal inputs give equal bits; torch::optim::AdamW is the oracle in the tests.
// **Cost:** one pass over weights, gradients and both moments: memory bandwidth.

#include "actors/train/train_options.hpp"

#include <cstdint>
#include <span>

namespace troupe::actors {

/// √Σ g², summed in f64. NaN or infinite when any gradient is.
double gradient_norm(std::span<const float> gradients);

/// Factor that brings `norm` down to `norm_max`: min(1, norm_max / (norm + 1e-6)); 1 when
/// norm_max ≤ 0 (torch.nn.utils.clip_grad_norm_).
double clip_factor(double norm, double norm_max);

struct AdamwStep {
  double lr = 0;              ///< of this step, after the schedule
  double gradient_scale = 1;  ///< the clip factor
  std::int64_t step = 1;      ///< 1-based, for bias correction
  bool decay = true;          ///< false: weight decay 0 for these parameters
};

/// One step on one run of parameters; all spans have the same length. See OptimizerOptions.
void adamw(const OptimizerOptions& options, const AdamwStep& step, std::span<float> weights,
           std::span<const float> gradients, std::span<float> first_moment,
           std::span<float> second_moment);

}  // namespace troupe::actors
