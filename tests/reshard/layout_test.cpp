// Proves that layouts put every row and column where the engines do: the worked examples of each
// scheme (Megatron, merged rollout matrices, FSDP by rows and flat, pipeline stages, experts,
// latent attention), written out as numbers.

#include "reshard/rosters.hpp"
#include "tests/reshard/memory_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace troupe::reshard {
namespace {

using reshard::testing::at;
using reshard::testing::boxes_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kLayer = "model.layers.0.";

ModelShape grouped_shape() {
  return {.vocab = 10,
          .hidden = 6,
          .intermediate = 8,
          .layers = 1,
          .heads = 8,
          .kv_heads = 2,
          .head_dim = 4,
          .qkv_bias = true};
}

Roster made(result<Roster> roster) {
  EXPECT_TRUE(roster) << roster.error().message;
  return roster ? std::move(*roster) : Roster{};
}

/// `q[0,12) k[0,4)`: rows of q, k and v of one rank in the order of their offsets.
std::string qkv_rows(const Roster& roster, std::size_t rank, const std::string& suffix = "weight") {
  std::string text;
  for (const Segment& s : roster.ranks[rank].segments) {
    const std::string& name = roster.tensors[at(s.tensor)].name;
    for (const char letter : {'q', 'k', 'v'}) {
      if (name != fmt::format("{}self_attn.{}_proj.{}", kLayer, letter, suffix)) continue;
      text += fmt::format("{}{}[{},{})", text.empty() ? "" : " ", letter, s.box.row_begin,
                          s.box.row_end);
    }
  }
  return text;
}

TEST(Layout, MegatronCutsTheInterleavedRowsEvenlyThroughHeads) {
  const Roster roster = made(train_roster(
      grouped_shape(), {.tp = 4, .style = CutStyle::kMegatron, .vocab_multiple = 512}));
  for (const char* suffix : {"weight", "bias"}) {
    EXPECT_EQ(qkv_rows(roster, 0, suffix), "q[0,12)");
    EXPECT_EQ(qkv_rows(roster, 1, suffix), "q[12,16) k[0,4) v[0,4)");
    EXPECT_EQ(qkv_rows(roster, 2, suffix), "q[16,28)");
    EXPECT_EQ(qkv_rows(roster, 3, suffix), "q[28,32) k[4,8) v[4,8)");
  }
}

TEST(Layout, MegatronWithFewRanksKeepsGroupsInterleaved) {
  const Roster roster =
      made(train_roster(grouped_shape(), {.tp = 1, .style = CutStyle::kMegatron}));
  EXPECT_EQ(qkv_rows(roster, 0), "q[0,16) k[0,4) v[0,4) q[16,32) k[4,8) v[4,8)");
}

TEST(Layout, MegatronMaySplitAKvHead) {
  ModelShape shape = grouped_shape();
  shape.heads = 16;
  shape.kv_heads = 1;
  const Roster roster = made(train_roster(shape, {.tp = 8, .style = CutStyle::kMegatron}));
  // 72 fused rows in parts of 9: 64 of q, then 4 of k and 4 of v.
  EXPECT_EQ(qkv_rows(roster, 6), "q[54,63)");
  EXPECT_EQ(qkv_rows(roster, 7), "q[63,64) k[0,4) v[0,4)");
  shape.kv_heads = 2;
  shape.heads = 8;
  EXPECT_EQ(qkv_rows(made(train_roster(shape, {.tp = 8, .style = CutStyle::kMegatron})), 3),
            "k[2,4) v[0,4)");
}

TEST(Layout, MergedRanksReplicateKvHeads) {
  const Roster four = made(rollout_roster(grouped_shape(), {.tp = 4}));
  EXPECT_EQ(qkv_rows(four, 0), "q[0,8) k[0,4) v[0,4)");
  EXPECT_EQ(qkv_rows(four, 1), "q[8,16) k[0,4) v[0,4)");
  EXPECT_EQ(qkv_rows(four, 2), "q[16,24) k[4,8) v[4,8)");
  EXPECT_EQ(qkv_rows(four, 3), "q[24,32) k[4,8) v[4,8)");
  const Roster eight = made(rollout_roster(grouped_shape(), {.tp = 8}));
  EXPECT_EQ(qkv_rows(eight, 3, "bias"), "q[12,16) k[0,4) v[0,4)");
  const Roster one = made(rollout_roster(grouped_shape(), {}));
  EXPECT_EQ(qkv_rows(one, 0), "q[0,32) k[0,8) v[0,8)");
}

TEST(Layout, GateAndUpAreStackedAndOutputsCutByColumns) {
  const Roster roster = made(train_roster(grouped_shape(), {.tp = 2}));
  EXPECT_THAT(boxes_of(roster, 1, kLayer + "mlp.gate_proj.weight"), ElementsAre(Box{4, 8, 0, 6}));
  EXPECT_THAT(boxes_of(roster, 1, kLayer + "mlp.up_proj.weight"), ElementsAre(Box{4, 8, 0, 6}));
  EXPECT_THAT(boxes_of(roster, 1, kLayer + "mlp.down_proj.weight"), ElementsAre(Box{0, 6, 4, 8}));
  EXPECT_THAT(boxes_of(roster, 1, kLayer + "self_attn.o_proj.weight"),
              ElementsAre(Box{0, 6, 16, 32}));
  EXPECT_THAT(boxes_of(roster, 1, kLayer + "input_layernorm.weight"), ElementsAre(Box{0, 6, 0, 1}));
  std::int64_t gate = -1;
  for (const Segment& s : roster.ranks[1].segments) {
    const std::string& name = roster.tensors[at(s.tensor)].name;
    if (name == kLayer + "mlp.gate_proj.weight") gate = s.offset;
    if (name == kLayer + "mlp.up_proj.weight") {
      EXPECT_EQ(s.offset, gate + 4 * 6) << "up after gate";
    }
    if (name == kLayer + "mlp.down_proj.weight") {
      EXPECT_EQ(s.row_stride, 4);
    }
  }
}

TEST(Layout, PaddedVocabularyRowsHaveNoSegments) {
  ModelShape shape = grouped_shape();
  shape.vocab = 151936;
  shape.heads = shape.kv_heads = 8;
  const auto rows = [&shape](const Roster& roster, std::size_t rank) {
    const auto boxes = boxes_of(roster, rank, "model.embed_tokens.weight");
    return boxes.empty() ? Range{} : Range{boxes[0].row_begin, boxes[0].row_end};
  };
  const auto megatron = [&shape](std::int64_t tp) {
    return made(
        train_roster(shape, {.tp = tp, .style = CutStyle::kMegatron, .vocab_multiple = 128 * tp}));
  };
  EXPECT_EQ(rows(megatron(4), 3), (Range{3 * 38016, 151936}));
  EXPECT_EQ(rows(megatron(4), 3).size(), 37888);
  EXPECT_EQ(rows(megatron(8), 7), (Range{7 * 19072, 151936})) << "152576 rows in all";
  EXPECT_EQ(rows(made(rollout_roster(shape, {.tp = 8})), 7), (Range{7 * 18992, 151936}));
  shape.vocab = 65;
  const Roster tiny = megatron(4);
  EXPECT_EQ(rows(tiny, 0), (Range{0, 65}));
  EXPECT_EQ(rows(tiny, 1).size(), 0) << "all of it padding";
}

TEST(Layout, UnpaddedVocabularyIsCutUnevenly) {
  const Roster roster = made(train_roster(grouped_shape(), {.tp = 4}));
  std::vector<std::int64_t> sizes;
  for (std::size_t r = 0; r < 4; ++r)
    sizes.push_back(boxes_of(roster, r, "lm_head.weight").at(0).rows());
  EXPECT_THAT(sizes, ElementsAre(3, 3, 2, 2));
}

TEST(Layout, TiedEmbeddingHasASecondHolderOnTheLastStage) {
  ModelShape shape = grouped_shape();
  shape.tied = true;
  shape.layers = 3;
  const Roster piped = made(train_roster(shape, {.pp = 3}));
  EXPECT_THAT(boxes_of(piped, 0, "model.embed_tokens.weight"), ElementsAre(Box{0, 10, 0, 6}));
  EXPECT_THAT(boxes_of(piped, 1, "model.embed_tokens.weight"), IsEmpty());
  EXPECT_THAT(boxes_of(piped, 2, "model.embed_tokens.weight"), ElementsAre(Box{0, 10, 0, 6}));
  const Roster alone = made(train_roster(shape, {}));
  EXPECT_EQ(boxes_of(alone, 0, "model.embed_tokens.weight").size(), 1U) << "once, not twice";
  const Roster stored = made(rollout_roster(shape, {.stored_head = true}));
  EXPECT_EQ(boxes_of(stored, 0, "lm_head.weight").size(), 1U);
}

TEST(Layout, ACriticHasAValueHeadAndNoOther) {
  ModelShape shape = grouped_shape();
  shape.tied = true;
  shape.value_head = true;
  shape.layers = 2;
  const Roster roster = made(train_roster(shape, {.pp = 2}));
  EXPECT_THAT(boxes_of(roster, 1, "value_head.weight"), ElementsAre(Box{0, 1, 0, 6}));
  EXPECT_THAT(boxes_of(roster, 1, "model.embed_tokens.weight"), IsEmpty());
}

TEST(Stages, FollowEveryRule) {
  EXPECT_EQ(*even_stages(8, 2), (StageLayers{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(*even_stages(8, 2, 2), (StageLayers{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(*even_stages(5, 2), (StageLayers{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(*uneven_stages(8, 4, {.first_layers = 1, .last_layers = 1}),
            (StageLayers{{0}, {1, 2, 3}, {4, 5, 6}, {7}}));
  EXPECT_EQ(*uneven_stages(7, 3, {.last_layers = 1}), (StageLayers{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_THAT(uneven_stages(8, 4, {.first_layers = 1}).error().message,
              HasSubstr("leave 7 for 3 stages"));
  EXPECT_THAT(check_stages({{0, 1}, {1}}, 2).error().message,
              HasSubstr("layer 1 belongs to stages 0 and 1"));
  EXPECT_THAT(check_stages({{0}, {2}}, 3).error().message,
              HasSubstr("layer 1 belongs to no stage"));
  EXPECT_THAT(check_stages({{0}, {3}}, 3).error().message, HasSubstr("layer 3 of 3"));
}

/// Rows that each of `count` shards has of a tensor of `rows` rows.
std::vector<std::int64_t> shard_rows(std::int64_t rows, std::int64_t count) {
  const LocalModel model{
      .tensors = {{.rows = rows, .cols = 2, .pieces = {{0, {0, rows, 0, 2}, 0}}}}};
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < count; ++i) {
    const RankLayout layout = store_rows(model, {}, {i, count});
    EXPECT_EQ(layout.buffer_elements.at(0), (rows + count - 1) / count * 2);
    sizes.push_back(layout.segments.empty() ? 0 : layout.segments[0].box.rows());
  }
  return sizes;
}

TEST(Fsdp, CutsRowsByCeilingAndLeavesLateRanksEmpty) {
  EXPECT_THAT(shard_rows(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(shard_rows(9, 4), ElementsAre(3, 3, 3, 0));
  EXPECT_THAT(shard_rows(8, 4), ElementsAre(2, 2, 2, 2));
}

TEST(Fsdp, InsideTensorParallelismIsStrided) {
  ModelShape shape = grouped_shape();
  shape.intermediate = 12;
  const Roster roster = made(train_roster(
      shape, {.tp = 2, .dp = 2, .style = CutStyle::kUnfused, .shard = ShardStyle::kRows}));
  const std::string gate = kLayer + "mlp.gate_proj.weight";
  EXPECT_THAT(boxes_of(roster, 0, gate), ElementsAre(Box{0, 3, 0, 6}));
  EXPECT_THAT(boxes_of(roster, 1, gate), ElementsAre(Box{6, 9, 0, 6}));
  EXPECT_THAT(boxes_of(roster, 2, gate), ElementsAre(Box{3, 6, 0, 6}));
  EXPECT_THAT(boxes_of(roster, 3, gate), ElementsAre(Box{9, 12, 0, 6}));
}

TEST(Fsdp, ReplicatesShardsOutsideTheShardGroup) {
  const Roster roster =
      made(train_roster(grouped_shape(), {.dp = 4, .shard = ShardStyle::kRows, .shard_ranks = 2}));
  EXPECT_EQ(roster.ranks[0].segments, roster.ranks[2].segments);
  EXPECT_EQ(roster.ranks[1].segments, roster.ranks[3].segments);
  EXPECT_NE(roster.ranks[0].segments, roster.ranks[1].segments);
}

TEST(Fsdp, FlatShardsCutInsideRows) {
  LocalModel model;
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes{{3, 5}, {4, 1}, {2, 7}};
  for (std::int32_t t = 0; t < 3; ++t) {
    const auto [rows, cols] = shapes[at(t)];
    model.tensors.push_back({.rows = rows, .cols = cols, .pieces = {{t, {0, rows, 0, cols}, 0}}});
  }
  const auto boxes = [&model](std::int64_t index, std::int64_t alignment) {
    const RankLayout layout = store_flat(model, {}, {index, 4}, alignment);
    EXPECT_EQ(layout.buffer_elements.at(0), alignment == 1 ? 9 : 10);
    std::vector<std::pair<std::int32_t, Box>> list;
    for (const Segment& s : layout.segments) list.emplace_back(s.tensor, s.box);
    return list;
  };
  using List = std::vector<std::pair<std::int32_t, Box>>;
  EXPECT_EQ(boxes(0, 1), (List{{0, {0, 1, 0, 5}}, {0, {1, 2, 0, 4}}}));
  EXPECT_EQ(boxes(1, 1), (List{{0, {1, 2, 4, 5}}, {0, {2, 3, 0, 5}}, {1, {0, 3, 0, 1}}}));
  EXPECT_EQ(boxes(2, 1), (List{{1, {3, 4, 0, 1}}, {2, {0, 1, 0, 7}}, {2, {1, 2, 0, 1}}}));
  EXPECT_EQ(boxes(3, 1), (List{{2, {1, 2, 1, 7}}}));
  // Aligned to 8 the starts are 0, 16 and 24, and 38 numbers are padded to 40.
  EXPECT_EQ(boxes(1, 8), (List{{0, {2, 3, 0, 5}}, {1, {0, 4, 0, 1}}}));
  EXPECT_EQ(boxes(2, 8), (List{{2, {0, 1, 0, 6}}}));
}

ModelShape expert_shape() {
  ModelShape shape = grouped_shape();
  shape.qkv_bias = false;
  shape.layers = 2;
  shape.expert = {.experts = 8,
                  .intermediate = 4,
                  .shared_intermediate = 4,
                  .dense_layers = 1,
                  .router_bias = true};
  shape.dtype = DType::kBf16;
  return shape;
}

std::set<std::int64_t> experts_held(const Roster& roster, std::size_t rank) {
  std::set<std::int64_t> held;
  for (std::int64_t e = 0; e < 8; ++e) {
    if (!boxes_of(roster, rank, fmt::format("model.layers.1.mlp.experts.{}.up_proj.weight", e))
             .empty())
      held.insert(e);
  }
  return held;
}

TEST(Experts, GoToRanksOfAStageInLine) {
  const Roster roster = made(train_roster(
      expert_shape(), {.tp = 2, .dp = 4, .style = CutStyle::kMegatron, .ep = 4, .expert_tp = 2}));
  EXPECT_THAT(experts_held(roster, 0), ElementsAre(0, 1));
  EXPECT_THAT(experts_held(roster, 1), ElementsAre(0, 1));
  EXPECT_THAT(experts_held(roster, 6), ElementsAre(6, 7));
  EXPECT_THAT(boxes_of(roster, 7, "model.layers.1.mlp.experts.6.down_proj.weight"),
              ElementsAre(Box{0, 6, 2, 4}));
  EXPECT_THAT(boxes_of(roster, 7, "model.layers.1.mlp.experts.6.gate_proj.weight"),
              ElementsAre(Box{2, 4, 0, 6}));
}

TEST(Experts, OfRolloutAreLinearOrRoundRobin) {
  RolloutMesh mesh{.tp = 4, .expert_parallel = true};
  EXPECT_THAT(experts_held(made(rollout_roster(expert_shape(), mesh)), 1), ElementsAre(2, 3));
  mesh.expert_order = ExpertOrder::kRoundRobin;
  EXPECT_THAT(experts_held(made(rollout_roster(expert_shape(), mesh)), 1), ElementsAre(1, 5));
  EXPECT_THAT(experts_of(7, {0, 3}, ExpertOrder::kLinear), ElementsAre(0, 1, 2));
  EXPECT_THAT(experts_of(7, {2, 3}, ExpertOrder::kLinear), ElementsAre(5, 6));
}

TEST(Experts, RouterBiasIsF32InABufferOfItsOwn) {
  const Roster roster = made(rollout_roster(expert_shape(), {}));
  ASSERT_EQ(roster.ranks[0].buffer_elements.size(), 2U);
  EXPECT_EQ(roster.ranks[0].buffer_elements[1], 8);
  EXPECT_TRUE(validate(roster, Side::kTarget));
}

TEST(Latent, DownProjectionsAreWholeAndUpProjectionsCutByHead) {
  ModelShape shape = grouped_shape();
  shape.qkv_bias = false;
  shape.latent = {.q_rank = 3, .kv_rank = 5, .nope_dim = 2, .rope_dim = 1, .v_dim = 4};
  const Roster roster = made(train_roster(shape, {.tp = 4, .style = CutStyle::kMegatron}));
  const std::string attention = kLayer + "self_attn.";
  EXPECT_THAT(boxes_of(roster, 1, attention + "q_a_proj.weight"), ElementsAre(Box{0, 3, 0, 6}));
  EXPECT_THAT(boxes_of(roster, 1, attention + "kv_a_proj_with_mqa.weight"),
              ElementsAre(Box{0, 6, 0, 6}));
  EXPECT_THAT(boxes_of(roster, 1, attention + "q_b_proj.weight"), ElementsAre(Box{6, 12, 0, 3}));
  EXPECT_THAT(boxes_of(roster, 1, attention + "kv_b_proj.weight"), ElementsAre(Box{12, 24, 0, 5}));
  EXPECT_THAT(boxes_of(roster, 1, attention + "o_proj.weight"), ElementsAre(Box{0, 6, 8, 16}));
}

TEST(Layout, RefusesWhatDoesNotDivideAndNamesBothNumbers) {
  const auto message = [](const result<Roster>& roster) {
    return roster ? std::string("accepted") : roster.error().message;
  };
  ModelShape shape = grouped_shape();
  EXPECT_THAT(message(train_roster(shape, {.tp = 3})), HasSubstr("8 heads do not divide by tp 3"));
  shape.kv_heads = 4;
  shape.heads = 24;
  EXPECT_THAT(message(train_roster(shape, {.tp = 6})),
              HasSubstr("tp 6 is no multiple of 4 kv heads"));
  shape = grouped_shape();
  EXPECT_THAT(message(rollout_roster(shape, {.tp = 8, .vocab_multiple = 4})),
              HasSubstr("12 padded vocabulary rows do not divide by tp 8"));
  EXPECT_THAT(message(train_roster(shape, {.dp = 3, .shard_ranks = 2})),
              HasSubstr("dp 3 does not divide by shard ranks 2"));
  EXPECT_THAT(message(train_roster(expert_shape(), {.dp = 4, .ep = 3})), HasSubstr("4 ranks"));
  EXPECT_THAT(message(train_roster(expert_shape(), {.dp = 4, .ep = 2, .shard = ShardStyle::kRows})),
              HasSubstr("fsdp of experts with ep 2"));
  shape.kv_heads = 3;
  EXPECT_THAT(message(train_roster(shape, {})), HasSubstr("8 heads do not divide by 3 kv heads"));
}

}  // namespace
}  // namespace troupe::reshard
