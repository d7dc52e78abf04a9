#include "actors/train/train_options.hpp"

#include "reshard/stages.hpp"

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

/// kConfig naming both numbers unless `whole` is a multiple of `parts`.
result<void> divides(std::string_view what, std::int64_t whole, std::string_view by,
                     std::int64_t parts) {
  if (whole % parts == 0) return {};
  return fail(ErrorCode::kConfig, "train engine: {} {} do not divide by {} {}", whole, what, by,
              parts);
}

result<void> check_stages(const ModelConfig& model, const ParallelOptions& p) {
  const std::int64_t runs = std::int64_t{p.pp} * p.virtual_stages;
  if (p.stage_layers.empty()) {
    if (runs <= model.layer_count) return {};
    return fail(ErrorCode::kConfig, "train engine: {} pipeline runs (pp {} × {}) for {} layers",
                runs, p.pp, p.virtual_stages, model.layer_count);
  }
  const auto given = static_cast<std::int64_t>(p.stage_layers.size());
  if (given != runs)
    return fail(ErrorCode::kConfig,
                "train engine: stage_layers has {} numbers, wanted pp {} × virtual_stages {}",
                given, p.pp, p.virtual_stages);
  std::int64_t sum = 0;
  for (const std::int64_t layers : p.stage_layers) {
    TROUPE_TRY_VOID(require(layers > 0 && layers <= model.layer_count, "stage_layers entry", layers,
                            "1 up to the model's layers"));
    sum += layers;
  }
  if (sum == model.layer_count) return {};
  return fail(ErrorCode::kConfig, "train engine: stage_layers sum to {}, the model has {} layers",
              sum, model.layer_count);
}

}  // namespace

result<void> check_parallel(const ModelConfig& model, const ParallelOptions& p, int ranks) {
  constexpr int kVirtualStagesMax = 64;
  TROUPE_TRY_VOID(require(p.tp > 0, "tp", p.tp, "1 or more"));
  TROUPE_TRY_VOID(require(p.pp > 0, "pp", p.pp, "1 or more"));
  TROUPE_TRY_VOID(require(p.virtual_stages > 0 && p.virtual_stages <= kVirtualStagesMax,
                          "virtual_stages", p.virtual_stages, "1 to 64"));
  TROUPE_TRY_VOID(require(p.pp > 1 || p.virtual_stages == 1, "virtual_stages without pp",
                          p.virtual_stages, "1"));
  TROUPE_TRY_VOID(divides("ranks", ranks, "tp × pp =", std::int64_t{p.tp} * p.pp));
  const std::int64_t data_parts = ranks / (std::int64_t{p.tp} * p.pp);
  TROUPE_TRY_VOID(require(p.shard_ranks >= 0, "shard_ranks", p.shard_ranks, "0 or more"));
  if (p.shard_ranks > 0)
    TROUPE_TRY_VOID(divides("data-parallel ranks", data_parts, "shard_ranks", p.shard_ranks));
  TROUPE_TRY_VOID(divides("heads", model.head_count, "tp", p.tp));
  TROUPE_TRY_VOID(divides("mlp columns", model.intermediate_size, "tp", p.tp));
  if (model.vocab_size < p.tp)
    return fail(ErrorCode::kConfig, "train engine: {} tokens of vocabulary for tp {}",
                model.vocab_size, p.tp);
  if (p.tp <= model.kv_head_count)
    TROUPE_TRY_VOID(divides("kv heads", model.kv_head_count, "tp", p.tp));
  else if (p.tp % model.kv_head_count != 0)
    return fail(ErrorCode::kConfig, "train engine: tp {} is no multiple of {} kv heads", p.tp,
                model.kv_head_count);
  return check_stages(model, p);
}

std::vector<LayerRun> layer_runs(const ModelConfig& model, const ParallelOptions& parallel) {
  const std::int64_t count = std::int64_t{parallel.pp} * parallel.virtual_stages;
  std::vector<LayerRun> runs;
  std::int64_t begin = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t layers = parallel.stage_layers.empty()
                                    ? reshard::even_part(model.layer_count, count, r).size()
                                    : parallel.stage_layers[static_cast<std::size_t>(r)];
    runs.push_back({.begin = begin, .end = begin + layers});
    begin += layers;
  }
  return runs;
}

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
