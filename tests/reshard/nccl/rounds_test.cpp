// Proves that the rounds carry a plan out: every operation exactly once, within the buckets, in the
// plan's order per pair, the same on both ends, and never handed on before it has arrived. Random
// models and boxes; the rounds of all ranks are executed on real buffers and compared with
// gathering every tensor and slicing it.

#include "reshard/nccl/rounds.hpp"

#include "runtime/base/rng.hpp"
#include "tests/reshard/memory_world.hpp"
#include "tests/reshard/random_case.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace troupe::reshard::nccl {
namespace {

using reshard::testing::at;
using reshard::testing::Bytes;
using reshard::testing::Case;
using reshard::testing::CaseMaker;
using reshard::testing::Memory;

std::set<std::int32_t> all_ranks(const PublicationPlan& plan) {
  std::set<std::int32_t> ranks;
  for (const RankLayout& rank : plan.source().ranks) ranks.insert(rank.rank);
  for (const RankLayout& rank : plan.target().ranks) ranks.insert(rank.rank);
  return ranks;
}

Region part_of(Region region, const Op& op, const Box& box) {
  region.offset +=
      (box.row_begin - op.row_begin) * region.row_stride + box.col_begin - op.col_begin;
  region.rows = box.rows();
  region.cols = box.cols();
  return region;
}

void copy_cut(const PublicationPlan& plan, std::int32_t index, const Box& box, Memory& source,
              Memory& target) {
  const Op& op = plan.op(index);
  Memory& from = op.hands_on() ? target : source;
  const Region in = part_of(source_region(op, *from.layouts.at(op.source_rank)), op, box);
  const Region out = part_of(target_region(op, *target.layouts.at(op.target_rank)), op, box);
  reshard::testing::copy_region(from.buffers[op.source_rank][at(in.buffer)], in,
                                target.buffers[op.target_rank][at(out.buffer)], out,
                                element_bytes(plan.tensor_of(op).dtype));
}

void check_case(const Case& one, std::int64_t bucket) {
  const auto made = PublicationPlan::make(one.source, one.target, one.options);
  ASSERT_TRUE(made) << made.error().to_string();
  const PublicationPlan& plan = **made;
  std::map<std::int32_t, std::vector<Round>> of_rank;
  std::map<std::int32_t, std::vector<Message>> by_round;
  for (const std::int32_t rank : all_ranks(plan)) {
    auto rounds = cut_rounds(plan, rank, bucket);
    ASSERT_TRUE(rounds);
    of_rank[rank] = *std::move(rounds);
    for (const Round& round : of_rank[rank]) {
      std::int64_t sent = 0, received = 0;
      for (const Message& message : round.sends) {
        EXPECT_EQ(message.source, rank);
        sent += message.bytes;
        by_round[round.index].push_back(message);
      }
      for (const Message& message : round.receives) received += message.bytes;
      EXPECT_LE(std::max(sent, received), bucket);
      EXPECT_GT(sent + received, 0);
      if (round.hands_on >= 0) {
        EXPECT_LE(round.hands_on, round.index - 2);
      }
    }
  }
  // What one end sends the other receives.
  for (const auto& [rank, rounds] : of_rank) {
    for (const Round& round : rounds) {
      for (const Message& message : round.receives) {
        const auto& sent = by_round[round.index];
        EXPECT_NE(std::find(sent.begin(), sent.end(), message), sent.end());
      }
    }
  }
  // The order of the plan, per pair.
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> last;
  for (const auto& [index, messages] : by_round) {
    for (const Message& message : messages) {
      std::int32_t& before = last.try_emplace({message.source, message.target}, -1).first->second;
      for (const Cut& cut : message.cuts) {
        EXPECT_GE(cut.op, before);
        before = cut.op;
      }
    }
  }
  // Carried out, each number lands once, and from where it already is.
  Memory source = reshard::testing::empty_memory(plan.source());
  Memory target = reshard::testing::empty_memory(plan.target());
  reshard::testing::fill(source, 1);
  std::vector<std::int64_t> left;
  for (std::size_t i = 0; i < plan.plan().ops.size(); ++i) {
    const Op& op = plan.plan().ops[i];
    left.push_back(op.elements());
    if (op.source_rank != op.target_rank) continue;
    copy_cut(plan, static_cast<std::int32_t>(i), op.box(), source, target);
    left.back() = 0;
  }
  for (const auto& [index, messages] : by_round) {
    for (const Message& message : messages) {
      for (const Cut& cut : message.cuts) {
        const Op& op = plan.op(cut.op);
        if (op.after >= 0) {
          EXPECT_EQ(left[at(op.after)], 0) << "handed on before it came";
        }
        copy_cut(plan, cut.op, cut.box, source, target);
        left[at(cut.op)] -= cut.box.elements();
      }
    }
  }
  for (const std::int64_t elements : left) EXPECT_EQ(elements, 0);
  const Memory wanted = reshard::testing::gather_then_slice(source, plan.target(), one.options);
  EXPECT_EQ(target.buffers, wanted.buffers);
}

TEST(Rounds, CarryRandomPlansOutExactly) {
  constexpr std::uint64_t kSeed = 41;
  for (std::uint64_t i = 0; i < 300; ++i) {
    SCOPED_TRACE("seed " + std::to_string(kSeed + i));
    CaseMaker maker(kSeed + i);
    const Case one = i % 3 == 0 ? maker.box_case() : maker.model_case();
    Rng rng(kSeed + i);
    const std::int64_t bucket = std::int64_t{8} << rng.below(9);
    check_case(one, bucket);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Rounds, OneBigBucketIsOneRoundPerHandOn) {
  Roster source{.tensors = {{.name = "w", .dtype = DType::kF32, .rows = 64, .cols = 8, .layer = 0}},
                .ranks = {}};
  Roster target = source;
  source.ranks.push_back(
      {.rank = 0, .node = 0, .segments = {{0, {0, 64, 0, 8}, 0, 0, 8}}, .buffer_elements = {512}});
  for (std::int32_t rank = 1; rank <= 2; ++rank)
    target.ranks.push_back({.rank = rank,
                            .node = 1,
                            .segments = {{0, {0, 64, 0, 8}, 0, 0, 8}},
                            .buffer_elements = {512}});
  const auto plan = PublicationPlan::make(source, target);
  ASSERT_TRUE(plan);
  const auto sender = cut_rounds(**plan, 0, 1 << 20);
  ASSERT_TRUE(sender);
  ASSERT_EQ(sender->size(), 1U) << "one copy crosses to the node, and is handed on there";
  EXPECT_EQ(sender->front().sends.front().bytes, 2048);
  const auto first = cut_rounds(**plan, sender->front().sends.front().target, 1 << 20);
  ASSERT_TRUE(first);
  ASSERT_EQ(first->size(), 2U);
  EXPECT_EQ(first->back().index, 2);
  EXPECT_EQ(first->back().hands_on, 0);
  EXPECT_EQ(cut_rounds(**plan, 0, 4).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::reshard::nccl
