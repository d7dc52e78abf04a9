#include "actors/train/pipeline_schedule.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>

namespace troupe::actors {
namespace {

/// Step number `index` of the forward (or backward) order over full groups of micro-batches.
PipelineStep nth(const PipelineShape& shape, int stage, bool forward, std::int64_t index) {
  const std::int64_t group_steps = shape.runs();
  const std::int64_t in_group = index % group_steps;
  const auto turn = static_cast<int>(in_group / shape.stages);
  const int lap = forward ? turn : shape.virtual_stages - 1 - turn;
  return {.forward = forward,
          .run = lap * shape.stages + stage,
          .micro_batch = index / group_steps * shape.stages + in_group % shape.stages};
}

std::int64_t warm_up(const PipelineShape& shape, int stage) {
  const std::int64_t after = shape.stages - stage - 1;
  if (shape.virtual_stages == 1) return after;
  return 2 * after + std::int64_t{shape.virtual_stages - 1} * shape.stages;
}

/// Micro-batches with those that fill up the last group.
std::int64_t filled(const PipelineShape& shape, std::int64_t micro_batches) {
  return (micro_batches + shape.stages - 1) / shape.stages * shape.stages;
}

void check(const PipelineShape& shape, int stage) {
  TROUPE_CHECK(shape.stages > 0 && shape.virtual_stages > 0 && stage >= 0 && stage < shape.stages,
               "pipeline: stage {} of {} × {}", stage, shape.stages, shape.virtual_stages);
}

}  // namespace

std::vector<PipelineStep> training_steps(const PipelineShape& shape, int stage,
                                         std::int64_t micro_batches) {
  check(shape, stage);
  std::vector<PipelineStep> steps;
  const auto add = [&](bool forward, std::int64_t index) {
    const PipelineStep step = nth(shape, stage, forward, index);
    if (step.micro_batch < micro_batches) steps.push_back(step);
  };
  const std::int64_t total = filled(shape, micro_batches) * shape.virtual_stages;
  const std::int64_t ahead = std::min(warm_up(shape, stage), total);
  for (std::int64_t i = 0; i < ahead; ++i) add(true, i);
  for (std::int64_t i = ahead; i < total; ++i) {
    add(true, i);
    add(false, i - ahead);
  }
  for (std::int64_t i = total - ahead; i < total; ++i) add(false, i);
  return steps;
}

std::vector<PipelineStep> forward_steps(const PipelineShape& shape, int stage,
                                        std::int64_t micro_batches) {
  check(shape, stage);
  std::vector<PipelineStep> steps;
  const std::int64_t total = filled(shape, micro_batches) * shape.virtual_stages;
  for (std::int64_t i = 0; i < total; ++i)
    if (const PipelineStep step = nth(shape, stage, true, i); step.micro_batch < micro_batches)
      steps.push_back(step);
  return steps;
}

std::int64_t in_flight_max(const PipelineShape& shape, int stage) {
  return warm_up(shape, stage) + 1;
}

}  // namespace troupe::actors
