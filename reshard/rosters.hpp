#pragma once

// Rosters of whole meshes: a trainer's, a rollout engine's.
//
// **Threads:** pure functions.
// **Invariants:** trainer ranks are numbered (pp·D + dp)·tp + tp rank, the order of the mesh
// {pp, dp, tp}; rollout ranks (replica·dp + dp rank)·tp + tp rank. Both start at
// `RankNumbers::first_rank`.

#include "reshard/stages.hpp"
#include "reshard/storage.hpp"

#include <cstdint>

namespace troupe::reshard {

/// Rank i of a side is rank first_rank + i on node first_node + i / ranks_per_node.
struct RankNumbers {
  std::int32_t first_rank = 0;
  std::int32_t first_node = 0;
  std::int32_t ranks_per_node = 8;
};

RankPlace rank_place(const RankNumbers& numbers, std::int64_t index);

enum class ShardStyle : std::uint8_t { kWhole, kRows, kFlat };

struct TrainMesh {
  std::int64_t tp = 1;
  std::int64_t dp = 1;
  std::int64_t pp = 1;
  StageLayers stages = {};  ///< empty: `even_stages(L, pp)`
  CutStyle style = CutStyle::kMerged;
  std::int64_t vocab_multiple = 0;  ///< Megatron: 128·tp
  /// Experts over the ranks of one stage, (expert dp, ep, expert tp) with expert tp fastest.
  std::int64_t ep = 1;
  std::int64_t expert_tp = 1;
  ShardStyle shard = ShardStyle::kWhole;
  std::int64_t shard_ranks = 0;     ///< 0: all of dp; else contiguous groups inside dp (HSDP)
  std::int64_t flat_alignment = 1;  ///< elements
  StorageOptions storage = {};      ///< not for kFlat
  std::int64_t ranks() const { return tp * dp * pp; }
};

enum class ExpertOrder : std::uint8_t { kLinear, kRoundRobin };

struct RolloutMesh {
  std::int64_t replicas = 1;
  std::int64_t dp = 1;  ///< attention copies inside a replica
  std::int64_t tp = 1;
  bool expert_parallel = false;  ///< experts over dp·tp ranks; else each is cut over them
  ExpertOrder expert_order = ExpertOrder::kLinear;
  std::int64_t vocab_multiple = 64;
  bool stored_head = false;  ///< see RankCut
  StorageOptions storage = {};
  std::int64_t ranks() const { return replicas * dp * tp; }
};

/// The experts of `part` when they go to `parts` ranks.
std::vector<std::int64_t> experts_of(std::int64_t experts, Shard part, ExpertOrder order);

/// What rank `index` of the mesh has. Errors: kInvalidArgument, kUnsupported.
result<RankCut> train_cut(const ModelShape& shape, const TrainMesh& mesh, std::int64_t index);
result<RankCut> rollout_cut(const ModelShape& shape, const RolloutMesh& mesh, std::int64_t index);

result<Roster> train_roster(const ModelShape& shape, const TrainMesh& mesh,
                            const RankNumbers& numbers = {});
result<Roster> rollout_roster(const ModelShape& shape, const RolloutMesh& mesh,
                              const RankNumbers& numbers = {});

}  // namespace troupe::reshard
