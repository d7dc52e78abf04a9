// Proves the claims of nested grouping by counting the bytes of plans, not by formula: colocated
// ranks hold their training shard and are given their generation shard; what moves, what is held
// twice and how much a rank holds at most are read off the operations and segments. The figures
// that must come out are those of the HybridFlow paper, for its scheme and those it compares with.

#include "reshard/nested_groups.hpp"

#include "reshard/plan.hpp"
#include "tests/reshard/memory_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace troupe::reshard {
namespace {

using reshard::testing::at;
using reshard::testing::expect_same_as_gathering;
using reshard::testing::only_tensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Everything divides by 8, so that fractions are exact.
ModelShape even_shape() {
  return {.vocab = 16,
          .hidden = 8,
          .intermediate = 16,
          .layers = 4,
          .heads = 8,
          .kv_heads = 8,
          .head_dim = 2};
}

/// The matrices of the layers: what tensor and pipeline parallelism cut evenly.
bool is_cut(const TensorInfo& tensor) { return tensor.name.find("_proj") != std::string::npos; }

std::int64_t held_bytes(const Roster& roster, std::size_t rank) {
  std::int64_t bytes = 0;
  for (const Segment& s : roster.ranks[rank].segments)
    bytes += s.box.elements() * element_bytes(roster.tensors[at(s.tensor)].dtype);
  return bytes;
}

/// Counted bytes of one move, the worst over the ranks.
struct Count {
  std::int64_t model = 0;       ///< M
  std::int64_t received = 0;    ///< from other ranks
  std::int64_t redundant = 0;   ///< of the training shard, not part of the generation shard
  std::int64_t generation = 0;  ///< of the generation shard
};

Count count(const Roster& source, const Roster& target) {
  const auto planned = plan(source, target);
  EXPECT_TRUE(planned) << planned.error().message;
  Count worst;
  if (!planned) return worst;
  expect_same_as_gathering(*planned, source, target);
  for (const TensorInfo& tensor : source.tensors) worst.model += tensor.bytes();
  for (std::size_t r = 0; r < source.ranks.size(); ++r) {
    std::int64_t received = 0, kept = 0;
    for (const std::int32_t i : planned->receives_of(source.ranks[r].rank)) {
      const Op& op = planned->ops[at(i)];
      (op.kind == OpKind::kLocal ? kept : received) += planned->bytes_of(op);
    }
    worst.received = std::max(worst.received, received);
    worst.redundant = std::max(worst.redundant, held_bytes(source, r) - kept);
    worst.generation = std::max(worst.generation, held_bytes(target, r));
  }
  return worst;
}

StageLayers stages_of(const HybridMesh& mesh) { return *even_stages(even_shape().layers, mesh.pp); }

Roster training(const HybridMesh& mesh, CutStyle style = CutStyle::kMerged) {
  auto roster =
      train_roster(even_shape(), {.tp = mesh.tp, .dp = mesh.dp, .pp = mesh.pp, .style = style});
  EXPECT_TRUE(roster) << roster.error().message;
  return only_tensors(*roster, is_cut);
}

Roster generation(const HybridMesh& mesh, Grouping grouping) {
  auto roster = generation_roster(even_shape(), mesh, grouping, stages_of(mesh));
  EXPECT_TRUE(roster) << roster.error().message;
  return only_tensors(*roster, is_cut);
}

/// The whole model on each rank, as a gather over all of them leaves it.
Roster everything(const HybridMesh& mesh) {
  auto roster = rollout_roster(even_shape(), {.replicas = mesh.ranks()});
  EXPECT_TRUE(roster) << roster.error().message;
  return only_tensors(*roster, is_cut);
}

/// 1-based, as the paper numbers them.
std::string text_of(RankGroups groups) {
  for (auto& group : groups)
    for (auto& rank : group) ++rank;
  std::string text;
  for (const auto& group : groups) text += fmt::format("{{{}}}", fmt::join(group, ","));
  return text;
}

TEST(NestedGroups, FourTensorRanksToTwo) {
  const HybridMesh mesh{.tp = 4, .dp = 2, .generation_tp = 2};
  EXPECT_EQ(text_of(generation_tp_groups(mesh, Grouping::kNested)), "{1,3}{2,4}{5,7}{6,8}");
  EXPECT_EQ(text_of(micro_dp_groups(mesh, Grouping::kNested)), "{1,2}{3,4}{5,6}{7,8}");
  EXPECT_EQ(text_of(generation_tp_groups(mesh, Grouping::kVanilla)), "{1,2}{3,4}{5,6}{7,8}");
  EXPECT_EQ(text_of(micro_dp_groups(mesh, Grouping::kVanilla)), "{1,3}{2,4}{5,7}{6,8}");
  EXPECT_EQ(mesh.generation_replicas(), 4);
  const Count nested = count(training(mesh), generation(mesh, Grouping::kNested));
  EXPECT_EQ(nested.received, nested.model / 4);
  EXPECT_EQ(nested.redundant, 0);
  EXPECT_EQ(nested.generation, nested.model / 2);
  const Count vanilla = count(training(mesh), generation(mesh, Grouping::kVanilla));
  EXPECT_EQ(vanilla.received, vanilla.model / 2);
  EXPECT_EQ(vanilla.redundant, vanilla.model / 4);
}

TEST(NestedGroups, EightTensorRanksToTwo) {
  const HybridMesh mesh{.tp = 8, .dp = 2, .generation_tp = 2};
  EXPECT_THAT(text_of(generation_tp_groups(mesh, Grouping::kNested)),
              HasSubstr("{1,5}{2,6}{3,7}{4,8}"));
  EXPECT_THAT(text_of(micro_dp_groups(mesh, Grouping::kNested)), HasSubstr("{1,2,3,4}{5,6,7,8}"));
  const Count nested = count(training(mesh), generation(mesh, Grouping::kNested));
  EXPECT_EQ(nested.received, 3 * nested.model / 8);
  EXPECT_EQ(nested.redundant, 0);
  const Count vanilla = count(training(mesh), generation(mesh, Grouping::kVanilla));
  EXPECT_EQ(vanilla.received, vanilla.model / 2);
  EXPECT_EQ(vanilla.redundant, vanilla.model / 8);
}

TEST(NestedGroups, PipelineStagesFoldIntoOne) {
  const HybridMesh mesh{.pp = 2, .tp = 4, .dp = 2, .generation_tp = 2};
  EXPECT_EQ(text_of(generation_tp_groups(mesh, Grouping::kNested)),
            "{1,3}{2,4}{5,7}{6,8}{9,11}{10,12}{13,15}{14,16}");
  EXPECT_EQ(text_of(micro_dp_groups(mesh, Grouping::kNested)),
            "{1,2,9,10}{3,4,11,12}{5,6,13,14}{7,8,15,16}");
  EXPECT_EQ(mesh.micro_dp(), 4);
  const Count nested = count(training(mesh), generation(mesh, Grouping::kNested));
  EXPECT_EQ(nested.received, 3 * nested.model / 8);
  EXPECT_EQ(nested.redundant, 0);
}

TEST(NestedGroups, EqualTensorRanksLeaveNothingToNest) {
  const HybridMesh mesh{.pp = 2, .tp = 4, .generation_tp = 4};
  for (const Grouping grouping : {Grouping::kNested, Grouping::kVanilla}) {
    EXPECT_EQ(text_of(micro_dp_groups(mesh, grouping)), "{1,5}{2,6}{3,7}{4,8}");
    const Count counted = count(training(mesh), generation(mesh, grouping));
    EXPECT_EQ(counted.received, counted.model / 8);
    EXPECT_EQ(counted.redundant, 0);
  }
}

TEST(NestedGroups, GenerationMayKeepStages) {
  const HybridMesh mesh{.pp = 4, .tp = 2, .generation_pp = 2, .generation_tp = 1};
  EXPECT_EQ(text_of(generation_pp_groups(mesh, Grouping::kNested)), "{1,5}{2,6}{3,7}{4,8}");
  const Count nested = count(training(mesh), generation(mesh, Grouping::kNested));
  EXPECT_EQ(nested.received, 3 * nested.model / 8);
  EXPECT_EQ(nested.generation, nested.model / 2);
  EXPECT_EQ(nested.redundant, 0);
}

TEST(NestedGroups, EveryMeshReceivesWhatItLacksAndNoMore) {
  int meshes = 0;
  for (const std::int64_t pp : {1, 2, 4})
    for (const std::int64_t tp : {1, 2, 4, 8})
      for (const std::int64_t dp : {1, 2})
        for (std::int64_t generation_pp = 1; generation_pp <= pp; generation_pp *= 2)
          for (std::int64_t generation_tp = 1; generation_tp <= tp; generation_tp *= 2) {
            const HybridMesh mesh{pp, tp, dp, generation_pp, generation_tp};
            SCOPED_TRACE(
                fmt::format("p{} t{} d{} to p{} t{}", pp, tp, dp, generation_pp, generation_tp));
            const Count nested = count(training(mesh), generation(mesh, Grouping::kNested));
            const std::int64_t parts = generation_pp * generation_tp;
            EXPECT_EQ(nested.received * parts * tp * pp, (tp * pp - parts) * nested.model);
            EXPECT_EQ(nested.generation * parts, nested.model);
            EXPECT_EQ(nested.redundant, 0);
            ++meshes;
          }
  EXPECT_EQ(meshes, 120);
}

TEST(NestedGroups, InterleavedQkvNestsAsWell) {
  const HybridMesh mesh{.tp = 4, .dp = 2, .generation_tp = 2};
  const Count nested =
      count(training(mesh, CutStyle::kMegatron), generation(mesh, Grouping::kNested));
  EXPECT_EQ(nested.received, nested.model / 4);
  EXPECT_EQ(nested.redundant, 0);
}

TEST(NestedGroups, GatheringSchemesMoveMore) {
  const HybridMesh mesh{.tp = 4, .dp = 2, .generation_tp = 2};
  // A gather over the tensor ranks, before each keeps its part.
  const Count gathered = count(training(mesh), everything(mesh));
  EXPECT_EQ(gathered.received, 3 * gathered.model / 4);
  EXPECT_EQ(gathered.generation, gathered.model) << "the peak";
  // ZeRO-3: every rank has an eighth of each tensor and gathers the rest.
  auto sharded = train_roster(even_shape(), {.dp = 8, .shard = ShardStyle::kRows});
  ASSERT_TRUE(sharded) << sharded.error().message;
  const Count zero = count(only_tensors(*sharded, is_cut), everything(mesh));
  EXPECT_EQ(zero.received, 7 * zero.model / 8);
  const Count nested = count(training(mesh), generation(mesh, Grouping::kNested));
  EXPECT_LT(nested.received, gathered.received);
}

TEST(NestedGroups, RefuseStagesThatInterleave) {
  const HybridMesh mesh{.pp = 4, .generation_pp = 2};
  EXPECT_THAT(generation_stages(mesh, *even_stages(8, 4, 2)).error().message,
              HasSubstr("generation stage 0 would have layers 1 and 4 and none between"));
  const HybridMesh one{.pp = 4};
  EXPECT_THAT(generation_stages(one, *even_stages(8, 4, 2))->at(0),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7))
      << "one stage takes them all";
  EXPECT_THAT((HybridMesh{.tp = 4, .generation_tp = 3}.validate().error().message),
              HasSubstr("tp 4 does not divide by generation tp 3"));
  EXPECT_THAT((HybridMesh{.pp = 3, .generation_pp = 2}.validate().error().message),
              HasSubstr("pp 3 does not divide by generation pp 2"));
}

}  // namespace
}  // namespace troupe::reshard
