#include "reshard/rosters.hpp"

#include <initializer_list>
#include <utility>

namespace troupe::reshard {
namespace {

result<void> check_counts(std::string_view side,
                          std::initializer_list<std::pair<std::string_view, std::int64_t>> counts) {
  constexpr std::int64_t kCountMax = std::int64_t{1} << 20;
  for (const auto& [name, count] : counts) {
    if (count < 1 || count > kCountMax)
      return fail(ErrorCode::kInvalidArgument, "{} mesh: {} is {}, wanted 1 to {}", side, name,
                  count, kCountMax);
  }
  return {};
}

result<void> check_train(const ModelShape& shape, const TrainMesh& mesh) {
  TROUPE_TRY_VOID(check_counts("train", {{"tp", mesh.tp},
                                         {"dp", mesh.dp},
                                         {"pp", mesh.pp},
                                         {"ep", mesh.ep},
                                         {"expert tp", mesh.expert_tp}}));
  const std::int64_t stage_ranks = mesh.tp * mesh.dp;
  if (stage_ranks % (mesh.ep * mesh.expert_tp) != 0)
    return fail(ErrorCode::kInvalidArgument,
                "train mesh: {} ranks of a stage do not divide by ep {} x expert tp {}",
                stage_ranks, mesh.ep, mesh.expert_tp);
  if (mesh.ep > 1 && shape.expert.experts % mesh.ep != 0)
    return fail(ErrorCode::kInvalidArgument, "train mesh: {} experts do not divide by ep {}",
                shape.expert.experts, mesh.ep);
  if (mesh.shard_ranks < 0 || (mesh.shard_ranks > 0 && mesh.dp % mesh.shard_ranks != 0))
    return fail(ErrorCode::kInvalidArgument, "train mesh: dp {} does not divide by shard ranks {}",
                mesh.dp, mesh.shard_ranks);
  const bool experts_follow_tp = mesh.ep == 1 && mesh.expert_tp == mesh.tp;
  if (mesh.shard != ShardStyle::kWhole && shape.expert.experts > 0 && !experts_follow_tp)
    return fail(ErrorCode::kUnsupported,
                "train mesh: fsdp of experts with ep {} and expert tp {}, wanted 1 and tp {}",
                mesh.ep, mesh.expert_tp, mesh.tp);
  if (!mesh.stages.empty() && std::cmp_not_equal(mesh.stages.size(), mesh.pp))
    return fail(ErrorCode::kInvalidArgument, "train mesh: {} stages of layers for pp {}",
                mesh.stages.size(), mesh.pp);
  return {};
}

result<void> check_numbers(const RankNumbers& numbers) {
  if (numbers.first_rank >= 0 && numbers.first_node >= 0 && numbers.ranks_per_node >= 1) return {};
  return fail(ErrorCode::kInvalidArgument,
              "rank numbers: first rank {}, first node {}, {} ranks per node", numbers.first_rank,
              numbers.first_node, numbers.ranks_per_node);
}

RankLayout store_train(const LocalModel& local, const TrainMesh& mesh, std::int64_t index,
                       RankPlace place) {
  const std::int64_t dp_index = index / mesh.tp % mesh.dp;
  const std::int64_t count = mesh.shard_ranks > 0 ? mesh.shard_ranks : mesh.dp;
  const Shard shard{.index = dp_index % count, .count = count};
  switch (mesh.shard) {
    case ShardStyle::kRows:
      return store_rows(local, place, shard, mesh.storage);
    case ShardStyle::kFlat:
      return store_flat(local, place, shard, mesh.flat_alignment);
    case ShardStyle::kWhole:
      break;
  }
  return store_whole(local, place, mesh.storage);
}

}  // namespace

RankPlace rank_place(const RankNumbers& numbers, std::int64_t index) {
  return {.rank = numbers.first_rank + static_cast<std::int32_t>(index),
          .node = numbers.first_node + static_cast<std::int32_t>(index / numbers.ranks_per_node)};
}

std::vector<std::int64_t> experts_of(std::int64_t experts, Shard part, ExpertOrder order) {
  std::vector<std::int64_t> own;
  if (order == ExpertOrder::kRoundRobin) {
    for (std::int64_t e = part.index; e < experts; e += part.count) own.push_back(e);
    return own;
  }
  const Range range = even_part(experts, part.count, part.index);
  for (std::int64_t e = range.begin; e < range.end; ++e) own.push_back(e);
  return own;
}

result<RankCut> train_cut(const ModelShape& shape, const TrainMesh& mesh, std::int64_t index) {
  TROUPE_TRY_VOID(check_train(shape, mesh));
  if (index < 0 || index >= mesh.ranks())
    return fail(ErrorCode::kInvalidArgument, "train mesh: rank {} of {}", index, mesh.ranks());
  StageLayers stages = mesh.stages;
  if (stages.empty()) {
    TROUPE_TRY(stages, even_stages(shape.layers, mesh.pp));
  }
  TROUPE_TRY_VOID(check_stages(stages, shape.layers));
  const std::int64_t in_stage = index % (mesh.tp * mesh.dp);
  const std::int64_t stage = index / (mesh.tp * mesh.dp);
  const Shard ep{.index = in_stage / mesh.expert_tp % mesh.ep, .count = mesh.ep};
  RankCut cut{.style = mesh.style,
              .tp = mesh.tp,
              .tp_index = index % mesh.tp,
              .vocab_multiple = mesh.vocab_multiple,
              .layers = stages[static_cast<std::size_t>(stage)],
              .first_stage = stage == 0,
              .last_stage = stage == mesh.pp - 1,
              .expert_tp = mesh.expert_tp,
              .expert_tp_index = in_stage % mesh.expert_tp,
              .experts = experts_of(shape.expert.experts, ep, ExpertOrder::kLinear)};
  TROUPE_TRY_VOID(check_cut(shape, cut));
  return cut;
}

result<RankCut> rollout_cut(const ModelShape& shape, const RolloutMesh& mesh, std::int64_t index) {
  TROUPE_TRY_VOID(
      check_counts("rollout", {{"replicas", mesh.replicas}, {"dp", mesh.dp}, {"tp", mesh.tp}}));
  if (index < 0 || index >= mesh.ranks())
    return fail(ErrorCode::kInvalidArgument, "rollout mesh: rank {} of {}", index, mesh.ranks());
  const Shard in_replica{.index = index % (mesh.dp * mesh.tp), .count = mesh.dp * mesh.tp};
  RankCut cut{.style = CutStyle::kMerged,
              .tp = mesh.tp,
              .tp_index = index % mesh.tp,
              .vocab_multiple = mesh.vocab_multiple,
              .stored_head = mesh.stored_head};
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) cut.layers.push_back(layer);
  if (mesh.expert_parallel) {
    cut.experts = experts_of(shape.expert.experts, in_replica, mesh.expert_order);
  } else {
    cut.expert_tp = in_replica.count;
    cut.expert_tp_index = in_replica.index;
    cut.experts = experts_of(shape.expert.experts, {}, ExpertOrder::kLinear);
  }
  TROUPE_TRY_VOID(check_cut(shape, cut));
  return cut;
}

result<Roster> train_roster(const ModelShape& shape, const TrainMesh& mesh,
                            const RankNumbers& numbers) {
  TROUPE_TRY_VOID(shape.validate());
  TROUPE_TRY_VOID(check_numbers(numbers));
  TROUPE_TRY_VOID(check_train(shape, mesh));
  const ModelTensors model = model_tensors(shape);
  Roster roster{.tensors = model.tensors, .ranks = {}};
  for (std::int64_t index = 0; index < mesh.ranks(); ++index) {
    TROUPE_TRY(const RankCut cut, train_cut(shape, mesh, index));
    roster.ranks.push_back(
        store_train(local_model(shape, model, cut), mesh, index, rank_place(numbers, index)));
  }
  return roster;
}

result<Roster> rollout_roster(const ModelShape& shape, const RolloutMesh& mesh,
                              const RankNumbers& numbers) {
  TROUPE_TRY_VOID(shape.validate());
  TROUPE_TRY_VOID(check_numbers(numbers));
  TROUPE_TRY_VOID(rollout_cut(shape, mesh, 0));
  const ModelTensors model = tensors_for(shape, mesh.stored_head);
  Roster roster{.tensors = model.tensors, .ranks = {}};
  for (std::int64_t index = 0; index < mesh.ranks(); ++index) {
    TROUPE_TRY(const RankCut cut, rollout_cut(shape, mesh, index));
    roster.ranks.push_back(
        store_whole(local_model(shape, model, cut), rank_place(numbers, index), mesh.storage));
  }
  return roster;
}

}  // namespace troupe::reshard
