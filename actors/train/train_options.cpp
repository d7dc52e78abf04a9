#include "actors/train/train_options.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troupe::actors {
namespace {

/// kConfig unless `good`.
template <class Value>
result<void> require(bool good, std::string_view name, Value value, std::string_view wanted) {
  if (good) return {};
  return fail(ErrorCode::kConfig, "train engine: {} is {}, wanted {}", name, value, wanted);
}

result<void> check_schedule(const OptimizerOptions& o) {
  TROUPE_TRY_VOID(require(o.warmup_steps >= 0, "warmup_steps", o.warmup_steps, "0 or more"));
  TROUPE_TRY_VOID(require(o.lr_min_ratio >= 0 && o.lr_min_ratio <= 1, "lr_min_ratio",
                          o.lr_min_ratio, "0 to 1"));
  if (o.schedule == LrSchedule::kConstant) return {};
  if (o.total_steps > o.warmup_steps) return {};
  return fail(ErrorCode::kConfig,
              "train engine: total_steps is {}, but a decaying schedule needs more than the {} "
              "warm-up steps",
              o.total_steps, o.warmup_steps);
}

}  // namespace

result<LrSchedule> lr_schedule_from_name(std::string_view name) {
  if (name == "constant") return LrSchedule::kConstant;
  if (name == "linear") return LrSchedule::kLinear;
  if (name == "cosine") return LrSchedule::kCosine;
  return fail(ErrorCode::kConfig, "lr schedule is '{}', wanted constant, linear or cosine", name);
}

double learning_rate(const OptimizerOptions& options, std::int64_t step) {
  if (step < options.warmup_steps)
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  if (options.schedule == LrSchedule::kConstant) return options.lr;
  const double progress =
      std::clamp(static_cast<double>(step - options.warmup_steps) /
                     static_cast<double>(options.total_steps - options.warmup_steps),
                 0.0, 1.0);
  const double left = options.schedule == LrSchedule::kLinear
                          ? 1.0 - progress
                          : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return options.lr * (options.lr_min_ratio + (1.0 - options.lr_min_ratio) * left);
}

result<void> check_options(const TrainEngineOptions& options) {
  const OptimizerOptions& o = options.optimizer;
  TROUPE_TRY_VOID(require(std::isfinite(o.lr) && o.lr >= 0, "lr", o.lr, "0 or more"));
  TROUPE_TRY_VOID(require(o.beta1 >= 0 && o.beta1 < 1, "beta1", o.beta1, "0 to below 1"));
  TROUPE_TRY_VOID(require(o.beta2 >= 0 && o.beta2 < 1, "beta2", o.beta2, "0 to below 1"));
  TROUPE_TRY_VOID(require(std::isfinite(o.eps) && o.eps > 0, "eps", o.eps, "more than 0"));
  TROUPE_TRY_VOID(require(std::isfinite(o.weight_decay) && o.weight_decay >= 0, "weight_decay",
                          o.weight_decay, "0 or more"));
  TROUPE_TRY_VOID(
      require(std::isfinite(o.grad_norm_max), "grad_norm_max", o.grad_norm_max, "a number"));
  TROUPE_TRY_VOID(check_schedule(o));
  TROUPE_TRY_VOID(require(options.micro_batch_tokens_max > 0, "micro_batch_tokens_max",
                          options.micro_batch_tokens_max, "1 or more"));
  TROUPE_TRY_VOID(require(options.forward_tokens_max >= 0, "forward_tokens_max",
                          options.forward_tokens_max, "0 or more"));
  TROUPE_TRY_VOID(require(options.logit_chunk_tokens > 0, "logit_chunk_tokens",
                          options.logit_chunk_tokens, "1 or more"));
  TROUPE_TRY_VOID(require(options.threads > 0, "threads", options.threads, "1 or more"));
  return require(options.collective_timeout > Duration::zero(), "collective_timeout in ns",
                 options.collective_timeout.count(), "more than 0");
}

}  // namespace troupe::actors
