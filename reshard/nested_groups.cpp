#include "reshard/nested_groups.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::reshard {
namespace {

/// Ranks by everything of their place that `key` keeps, each list in order of what it drops.
template <class Key>
RankGroups group_by(const HybridMesh& mesh, Grouping grouping, Key key) {
  std::map<GenerationPlace, std::vector<std::pair<GenerationPlace, std::int64_t>>> groups;
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const GenerationPlace place = generation_place(mesh, grouping, rank);
    groups[key(place)].emplace_back(place, rank);
  }
  RankGroups lists;
  for (auto& [ignored, members] : groups) {
    std::sort(members.begin(), members.end());
    auto& list = lists.emplace_back();
    for (const auto& member : members) list.push_back(member.second);
  }
  std::sort(lists.begin(), lists.end());
  return lists;
}

}  // namespace

result<void> HybridMesh::validate() const {
  if (pp < 1 || tp < 1 || dp < 1 || generation_pp < 1 || generation_tp < 1)
    return fail(ErrorCode::kInvalidArgument,
                "hybrid mesh: pp {}, tp {}, dp {} to generation pp {}, tp {}", pp, tp, dp,
                generation_pp, generation_tp);
  if (pp % generation_pp != 0)
    return fail(ErrorCode::kInvalidArgument,
                "hybrid mesh: pp {} does not divide by generation pp {}", pp, generation_pp);
  if (tp % generation_tp != 0)
    return fail(ErrorCode::kInvalidArgument,
                "hybrid mesh: tp {} does not divide by generation tp {}", tp, generation_tp);
  return {};
}

GenerationPlace generation_place(const HybridMesh& mesh, Grouping grouping, std::int64_t rank) {
  const std::int64_t tp = rank % mesh.tp;
  const std::int64_t dp = rank / mesh.tp % mesh.dp;
  const std::int64_t pp = rank / (mesh.tp * mesh.dp);
  const std::int64_t tp_parts =
      mesh.tp / mesh.generation_tp;  // training parts in one of generation
  const std::int64_t pp_parts = mesh.pp / mesh.generation_pp;
  if (grouping == Grouping::kNested)
    return {.dp = dp,
            .micro = pp % pp_parts * tp_parts + tp % tp_parts,
            .pp = pp / pp_parts,
            .tp = tp / tp_parts};
  return {.dp = dp,
          .micro = pp / mesh.generation_pp * tp_parts + tp / mesh.generation_tp,
          .pp = pp % mesh.generation_pp,
          .tp = tp % mesh.generation_tp};
}

RankGroups generation_tp_groups(const HybridMesh& mesh, Grouping grouping) {
  return group_by(mesh, grouping, [](GenerationPlace place) {
    place.tp = 0;
    return place;
  });
}

RankGroups generation_pp_groups(const HybridMesh& mesh, Grouping grouping) {
  return group_by(mesh, grouping, [](GenerationPlace place) {
    place.pp = 0;
    return place;
  });
}

RankGroups micro_dp_groups(const HybridMesh& mesh, Grouping grouping) {
  return group_by(mesh, grouping, [](GenerationPlace place) {
    place.micro = 0;
    return place;
  });
}

result<StageLayers> generation_stages(const HybridMesh& mesh, const StageLayers& training) {
  TROUPE_TRY_VOID(mesh.validate());
  if (std::cmp_not_equal(training.size(), mesh.pp))
    return fail(ErrorCode::kInvalidArgument, "hybrid mesh: {} stages of layers for pp {}",
                training.size(), mesh.pp);
  const auto parts = static_cast<std::size_t>(mesh.pp / mesh.generation_pp);
  StageLayers stages(static_cast<std::size_t>(mesh.generation_pp));
  for (std::size_t p = 0; p < training.size(); ++p) {
    auto& layers = stages[p / parts];
    layers.insert(layers.end(), training[p].begin(), training[p].end());
  }
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    auto& layers = stages[stage];
    std::sort(layers.begin(), layers.end());
    const auto gap = std::adjacent_find(layers.begin(), layers.end(),
                                        [](std::int64_t a, std::int64_t b) { return b != a + 1; });
    if (gap != layers.end())
      return fail(ErrorCode::kUnsupported,
                  "hybrid mesh: generation stage {} would have layers {} and {} and none between",
                  stage, *gap, *(gap + 1));
  }
  return stages;
}

result<Roster> generation_roster(const ModelShape& shape, const HybridMesh& mesh, Grouping grouping,
                                 const StageLayers& training, const RankNumbers& numbers) {
  TROUPE_TRY_VOID(shape.validate());
  TROUPE_TRY_VOID(check_stages(training, shape.layers));
  TROUPE_TRY(const StageLayers stages, generation_stages(mesh, training));
  const ModelTensors model = model_tensors(shape);
  Roster roster{.tensors = model.tensors, .ranks = {}};
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const GenerationPlace place = generation_place(mesh, grouping, rank);
    RankCut cut{.style = CutStyle::kMerged,
                .tp = mesh.generation_tp,
                .tp_index = place.tp,
                .layers = stages[static_cast<std::size_t>(place.pp)],
                .first_stage = place.pp == 0,
                .last_stage = place.pp == mesh.generation_pp - 1,
                .expert_tp = mesh.generation_tp,
                .expert_tp_index = place.tp,
                .experts = experts_of(shape.expert.experts, {}, ExpertOrder::kLinear)};
    TROUPE_TRY_VOID(check_cut(shape, cut));
    roster.ranks.push_back(store_whole(local_model(shape, model, cut), rank_place(numbers, rank)));
  }
  return roster;
}

}  // namespace troupe::reshard
