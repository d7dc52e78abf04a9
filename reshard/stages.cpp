#include "reshard/stages.hpp"

#include <algorithm>

namespace troupe::reshard {

Range even_part(std::int64_t total, std::int64_t parts, std::int64_t part) {
  const std::int64_t base = total / parts;
  const std::int64_t rest = total % parts;
  const std::int64_t begin = base * part + std::min(part, rest);
  return {begin, begin + base + (part < rest ? 1 : 0)};
}

result<StageLayers> interleaved_stages(std::span<const std::int64_t> counts, std::int64_t stages) {
  const auto runs = static_cast<std::int64_t>(counts.size());
  if (stages < 1 || runs < stages || runs % stages != 0)
    return fail(ErrorCode::kInvalidArgument, "pipeline: {} runs of layers for {} stages", runs,
                stages);
  StageLayers owned(static_cast<std::size_t>(stages));
  std::int64_t layer = 0;
  for (std::int64_t run = 0; run < runs; ++run) {
    const std::int64_t count = counts[static_cast<std::size_t>(run)];
    if (count < 0)
      return fail(ErrorCode::kInvalidArgument, "pipeline: run {} has {} layers", run, count);
    for (std::int64_t i = 0; i < count; ++i)
      owned[static_cast<std::size_t>(run % stages)].push_back(layer++);
  }
  return owned;
}

result<StageLayers> even_stages(std::int64_t layers, std::int64_t stages,
                                std::int64_t virtual_stages) {
  const std::int64_t runs = stages * virtual_stages;
  if (stages < 1 || virtual_stages < 1 || runs > layers)
    return fail(ErrorCode::kInvalidArgument, "pipeline: {} stages x {} runs for {} layers", stages,
                virtual_stages, layers);
  std::vector<std::int64_t> counts;
  for (std::int64_t run = 0; run < runs; ++run)
    counts.push_back(even_part(layers, runs, run).size());
  return interleaved_stages(counts, stages);
}

result<StageLayers> uneven_stages(std::int64_t layers, std::int64_t stages, UnevenEnds ends) {
  if (stages < 2)
    return fail(ErrorCode::kInvalidArgument, "pipeline: uneven ends need 2 stages, not {}", stages);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(stages), -1);
  counts.front() = ends.first_layers;
  counts.back() = ends.last_layers;
  const std::int64_t open = std::count(counts.begin(), counts.end(), -1);
  const std::int64_t left = layers - std::max<std::int64_t>(ends.first_layers, 0) -
                            std::max<std::int64_t>(ends.last_layers, 0);
  if (left < 0 || (open == 0 ? left != 0 : left % open != 0))
    return fail(ErrorCode::kInvalidArgument,
                "pipeline: {} layers less first {} and last {} leave {} for {} stages", layers,
                ends.first_layers, ends.last_layers, left, open);
  for (std::int64_t& count : counts) {
    if (count < 0) count = left / open;
  }
  return interleaved_stages(counts, stages);
}

result<void> check_stages(const StageLayers& stages, std::int64_t layers) {
  std::vector<std::int64_t> owner(static_cast<std::size_t>(layers), -1);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const std::int64_t layer : stages[stage]) {
      if (layer < 0 || layer >= layers)
        return fail(ErrorCode::kInvalidArgument, "pipeline: stage {} owns layer {} of {}", stage,
                    layer, layers);
      std::int64_t& known = owner[static_cast<std::size_t>(layer)];
      if (known >= 0)
        return fail(ErrorCode::kInvalidArgument, "pipeline: layer {} belongs to stages {} and {}",
                    layer, known, stage);
      known = static_cast<std::int64_t>(stage);
    }
  }
  const auto lost = std::find(owner.begin(), owner.end(), -1);
  if (lost != owner.end())
    return fail(ErrorCode::kInvalidArgument, "pipeline: layer {} belongs to no stage",
                lost - owner.begin());
  return {};
}

}  // namespace troupe::reshard
