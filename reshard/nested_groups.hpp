#pragma once

// The groups of HybridFlow's 3D hybrid engine (Sheng et al., "HybridFlow: A Flexible and Efficient
// RLHF Framework", EuroSys'25, §5): training and generation on the same ranks, with smaller tensor
// and pipeline parallelism for generation.
//
// Generation groups at a stride (kNested) make each rank's training shard a part of its generation
// shard, so that nothing is held twice and a rank receives only what it lacks. The obvious grouping
// of consecutive ranks (kVanilla) does not; it is here to be compared with.
// **Threads:** pure functions.
// **Invariants:** ranks are numbered (pp·D + dp)·tp + tp rank. The ranks of one micro data-parallel
// group together hold each of their generation shards exactly once; they share `dp`.

#include "reshard/rosters.hpp"

#include <cstdint>
#include <vector>

namespace troupe::reshard {

struct HybridMesh {
  std::int64_t pp = 1;
  std::int64_t tp = 1;
  std::int64_t dp = 1;
  std::int64_t generation_pp = 1;  ///< divides pp
  std::int64_t generation_tp = 1;  ///< divides tp
  std::int64_t ranks() const { return pp * tp * dp; }
  /// Generation replicas inside one training replica.
  std::int64_t micro_dp() const { return pp * tp / (generation_pp * generation_tp); }
  std::int64_t generation_replicas() const { return micro_dp() * dp; }
  result<void> validate() const;
};

enum class Grouping : std::uint8_t { kNested, kVanilla };

/// A rank's place among those that generate.
struct GenerationPlace {
  std::int64_t dp = 0;     ///< as in training
  std::int64_t micro = 0;  ///< index inside the micro data-parallel group
  std::int64_t pp = 0;
  std::int64_t tp = 0;
  auto operator<=>(const GenerationPlace&) const = default;
};

GenerationPlace generation_place(const HybridMesh& mesh, Grouping grouping, std::int64_t rank);

using RankGroups = std::vector<std::vector<std::int64_t>>;

/// Ranks that generate as one tensor-parallel group, in order of their part; groups by first rank.
RankGroups generation_tp_groups(const HybridMesh& mesh, Grouping grouping);
RankGroups generation_pp_groups(const HybridMesh& mesh, Grouping grouping);
/// Ranks that gather each other's training shards.
RankGroups micro_dp_groups(const HybridMesh& mesh, Grouping grouping);

/// The layers of each generation stage: those of pp / generation_pp training stages. Errors:
/// kUnsupported when they are not one run of layers, as with interleaved stages.
result<StageLayers> generation_stages(const HybridMesh& mesh, const StageLayers& training);

/// What each rank holds to generate, with merged matrices. `training` are the layers of the
/// training stages.
result<Roster> generation_roster(const ModelShape& shape, const HybridMesh& mesh, Grouping grouping,
                                 const StageLayers& training, const RankNumbers& numbers = {});

}  // namespace troupe::reshard
