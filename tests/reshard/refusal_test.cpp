// Proves that every malformed roster, and every pair of rosters that does not fit, is refused with
// a message that names tensor, box, rank and both values.

#include "reshard/model_shape.hpp"
#include "reshard/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::reshard {
namespace {

using ::testing::HasSubstr;

/// Tensors `w` [8, 4] and `b` [8, 1]; each of two ranks has half the rows of both.
Roster halves(std::int32_t first_rank) {
  Roster roster{.tensors = {{.name = "w", .rows = 8, .cols = 4}, {.name = "b", .rows = 8}},
                .ranks = {}};
  for (std::int32_t r = 0; r < 2; ++r) {
    const std::int64_t row = 4 * r;
    roster.ranks.push_back(
        {.rank = first_rank + r,
         .node = 0,
         .segments = {{.tensor = 0, .box = {row, row + 4, 0, 4}, .row_stride = 4},
                      {.tensor = 1, .box = {row, row + 4, 0, 1}, .offset = 16, .row_stride = 1}},
         .buffer_elements = {20}});
  }
  return roster;
}

struct Refusal {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

template <class Change>
Refusal refusal_of(Change change, const PlanOptions& options = {}) {
  Roster source = halves(0);
  Roster target = halves(2);
  change(source, target);
  const auto planned = plan(source, target, options);
  if (planned) return {.message = "accepted"};
  return {planned.error().code, planned.error().message};
}

template <class Change>
void expect_refused(ErrorCode code, const std::string& words, Change change,
                    const PlanOptions& options = {}) {
  const Refusal refusal = refusal_of(change, options);
  EXPECT_EQ(refusal.message, words);
  EXPECT_EQ(refusal.code, code) << words;
}

TEST(Refusal, OfTablesAndRanks) {
  expect_refused(ErrorCode::kInvalidArgument, "source tensor 1: has no name",
                 [](Roster& s, Roster&) { s.tensors[1].name = ""; });
  expect_refused(ErrorCode::kConflict, "target tensor w: is listed twice",
                 [](Roster&, Roster& t) { t.tensors[1].name = "w"; });
  expect_refused(ErrorCode::kInvalidArgument, "source tensor b: shape 0 x 1 holds nothing",
                 [](Roster& s, Roster&) { s.tensors[1].rows = 0; });
  expect_refused(ErrorCode::kUnsupported,
                 "source tensor w: shape 2147483648 x 4 exceeds 2147483647 on an axis",
                 [](Roster& s, Roster&) { s.tensors[0].rows = std::int64_t{1} << 31; });
  expect_refused(ErrorCode::kInvalidArgument, "target roster: has no ranks",
                 [](Roster&, Roster& t) { t.ranks.clear(); });
  expect_refused(ErrorCode::kConflict, "source rank 0: is listed twice",
                 [](Roster& s, Roster&) { s.ranks[1].rank = 0; });
  expect_refused(ErrorCode::kInvalidArgument, "source rank -1 on node 0: numbers start at 0",
                 [](Roster& s, Roster&) { s.ranks[1].rank = -1; });
  expect_refused(ErrorCode::kConflict, "rank 2: on node 5 as source, on node 0 as target",
                 [](Roster& s, Roster&) {
                   s.ranks[1].rank = 2;
                   s.ranks[1].node = 5;
                 });
  expect_refused(
      ErrorCode::kUnsupported,
      "source tensor w: shape 2147483647 x 2147483647 exceeds 144115188075855872 elements",
      [](Roster& s, Roster&) { s.tensors[0].rows = s.tensors[0].cols = INT32_MAX; });
  expect_refused(
      ErrorCode::kUnsupported,
      "target rank 3: a buffer of 144115188075855853 elements, all buffers of a side may "
      "have 144115188075855872",
      [](Roster&, Roster& t) { t.ranks[1].buffer_elements = {(std::int64_t{1} << 57) - 19}; });
  expect_refused(ErrorCode::kInvalidArgument, "target rank 3: a buffer of -1 elements",
                 [](Roster&, Roster& t) { t.ranks[1].buffer_elements = {-1}; });
}

TEST(Refusal, OfSegments) {
  const std::string place = "source rank 1: tensor w: box [4, 8) x [0, 4): ";
  expect_refused(ErrorCode::kInvalidArgument, "source rank 1: segment 0: tensor index 2 of 2",
                 [](Roster& s, Roster&) { s.ranks[1].segments[0].tensor = 2; });
  expect_refused(ErrorCode::kInvalidArgument,
                 "source rank 1: tensor w: box [4, 4) x [0, 4): is empty",
                 [](Roster& s, Roster&) { s.ranks[1].segments[0].box.row_end = 4; });
  expect_refused(ErrorCode::kInvalidArgument,
                 "source rank 1: tensor w: box [4, 9) x [0, 4): exceeds shape 8 x 4",
                 [](Roster& s, Roster&) { s.ranks[1].segments[0].box.row_end = 9; });
  expect_refused(ErrorCode::kInvalidArgument, place + "buffer 1 of 1",
                 [](Roster& s, Roster&) { s.ranks[1].segments[0].buffer = 1; });
  expect_refused(ErrorCode::kInvalidArgument, place + "row stride 3 is less than 4 columns",
                 [](Roster& s, Roster&) { s.ranks[1].segments[0].row_stride = 3; });
  const std::string outside = " leaves buffer 0 of 20 elements";
  expect_refused(ErrorCode::kInvalidArgument, place + "offset 5 with row stride 4" + outside,
                 [](Roster& s, Roster&) { s.ranks[1].segments[0].offset = 5; });
  expect_refused(ErrorCode::kInvalidArgument, place + "offset -1 with row stride 4" + outside,
                 [](Roster& s, Roster&) { s.ranks[1].segments[0].offset = -1; });
  expect_refused(ErrorCode::kInvalidArgument,
                 place + "offset 0 with row stride 9223372036854775807" + outside,
                 [](Roster& s, Roster&) { s.ranks[1].segments[0].row_stride = INT64_MAX; });
  expect_refused(ErrorCode::kInvalidArgument,
                 place + "offset 9223372036854775807 with row stride 4" + outside,
                 [](Roster& s, Roster&) { s.ranks[1].segments[0].offset = INT64_MAX; });
}

TEST(Refusal, OfNumbersHeldTwice) {
  const Segment again{.tensor = 0, .box = {3, 5, 1, 2}, .buffer = 1, .row_stride = 1};
  for (const bool of_source : {true, false}) {
    const std::string side = of_source ? "source rank 0" : "target rank 2";
    expect_refused(ErrorCode::kConflict,
                   side +
                       ": tensor w: box [3, 5) x [1, 2): overlaps box [0, 4) x [0, 4) of the same "
                       "rank",
                   [&](Roster& s, Roster& t) {
                     RankLayout& rank = (of_source ? s : t).ranks[0];
                     rank.segments.push_back(again);
                     rank.buffer_elements.push_back(2);
                   });
  }
}

TEST(Refusal, OfBufferElementsUsedTwiceByTheTarget) {
  expect_refused(
      ErrorCode::kConflict,
      "target rank 2: tensor b: box [0, 4) x [0, 1): at offset 15 of buffer 0 overlaps w "
      "[0, 4) x [0, 4) at 0",
      [](Roster&, Roster& t) { t.ranks[0].segments[1].offset = 15; });
  // Inside the span of a strided region, but between its rows.
  const auto weave = [](Roster&, Roster& t) {
    for (RankLayout& rank : t.ranks) {
      rank.buffer_elements = {20};
      rank.segments[0].row_stride = 5;
      rank.segments[1] = {.tensor = 1, .box = rank.segments[1].box, .offset = 4, .row_stride = 5};
    }
  };
  EXPECT_EQ(refusal_of(weave).message, "accepted");
  const Refusal torn = refusal_of([&weave](Roster& s, Roster& t) {
    weave(s, t);
    t.ranks[0].segments[1].offset = 1;
    t.ranks[0].segments[1].row_stride = 6;  // 1, 7, 13, 19: the second lies in a row
  });
  EXPECT_THAT(torn.message, HasSubstr("overlaps"));
  EXPECT_EQ(refusal_of([](Roster& s, Roster&) { s.ranks[0].segments[1].offset = 0; }).message,
            "accepted")
      << "a source may show one storage under two names";
}

TEST(Refusal, OfMixedElementSizesInABuffer) {
  expect_refused(
      ErrorCode::kConflict,
      "source rank 0: tensor b: box [0, 4) x [0, 1): bf16 in buffer 0 that holds f32 of w",
      [](Roster& s, Roster&) { s.tensors[1].dtype = DType::kBf16; });
}

TEST(Refusal, OfSidesThatDoNotFit) {
  expect_refused(ErrorCode::kConflict, "tensor w: the source has shape 8 x 4, the target 9 x 4",
                 [](Roster&, Roster& t) { t.tensors[0].rows = 9; });
  expect_refused(ErrorCode::kConflict,
                 "tensor w: the source has f32, the target i32; plans do not convert",
                 [](Roster&, Roster& t) { t.tensors[0].dtype = DType::kI32; });
  expect_refused(ErrorCode::kNotFound,
                 "tensor v: the target has it and the source lacks it; alias it or declare it "
                 "target_only if so meant",
                 [](Roster&, Roster& t) { t.tensors[0].name = "v"; });
  expect_refused(
      ErrorCode::kNotFound,
      "tensor v: the source has it and the target lacks it; declare it source_only if so "
      "meant",
      [](Roster& s, Roster&) { s.tensors.push_back({.name = "v", .rows = 1}); });
}

TEST(Refusal, OfBoxesThatNobodyHolds) {
  expect_refused(
      ErrorCode::kNotFound,
      "tensor w: box [4, 7) x [2, 4): no source rank holds it, target rank 3 needs it for "
      "its [4, 8) x [0, 4)",
      [](Roster& s, Roster&) {
        Segment& half = s.ranks[1].segments[0];
        half.box = {4, 7, 0, 2};
        s.ranks[1].segments.push_back(
            {.tensor = 0, .box = {7, 8, 0, 4}, .buffer = 1, .row_stride = 4});
        s.ranks[1].buffer_elements.push_back(4);
      });
  expect_refused(ErrorCode::kNotFound, "tensor b: box [0, 4) x [0, 1): no target rank holds it",
                 [](Roster&, Roster& t) { t.ranks[0].segments.pop_back(); });
  expect_refused(ErrorCode::kNotFound, "tensor w: box [0, 4) x [0, 4): no target rank holds it",
                 [](Roster&, Roster& t) {
                   for (RankLayout& rank : t.ranks) rank.segments.erase(rank.segments.begin());
                 });
}

TEST(Refusal, OfFalseDeclarations) {
  const auto nothing = [](Roster&, Roster&) {};
  expect_refused(ErrorCode::kNotFound, "tensor x: declared source_only, the source lacks it",
                 nothing, {.source_only = {"x"}});
  expect_refused(ErrorCode::kConflict, "tensor w: declared source_only, the target has it", nothing,
                 {.source_only = {"w"}});
  expect_refused(ErrorCode::kNotFound, "tensor x: declared target_only, the target lacks it",
                 nothing, {.target_only = {"x"}});
  expect_refused(ErrorCode::kConflict, "tensor w: declared target_only, the source has it", nothing,
                 {.target_only = {"w"}});
  expect_refused(ErrorCode::kNotFound, "tensor w: alias of x, which the source lacks", nothing,
                 {.aliases = {{"w", "x"}}});
  expect_refused(ErrorCode::kNotFound, "tensor x: alias of w, but the target lacks it", nothing,
                 {.aliases = {{"x", "w"}}});
  expect_refused(ErrorCode::kConflict, "tensor w: alias of b, and fed otherwise as well", nothing,
                 {.aliases = {{"w", "b"}}});
}

TEST(Refusal, OfBoundsThatAreTooTight) {
  const auto nothing = [](Roster&, Roster&) {};
  expect_refused(ErrorCode::kResourceExhausted, "plan: tensor b: more than 3 operations",
                 [](Roster&, Roster& t) { t.tensors[0].layer = -1; }, {.ops_max = 3});
  expect_refused(ErrorCode::kInvalidArgument, "plan: cells of at most 0 bytes", nothing,
                 {.cell_bytes_max = 0});
  expect_refused(ErrorCode::kInvalidArgument, "plan: at most 0 operations, wanted 1 to 2^30",
                 nothing, {.ops_max = 0});
}

TEST(Refusal, OfAModelShape) {
  ModelShape shape;
  EXPECT_EQ(shape.validate().error().message, "model shape: vocab is 0, wanted at least 1");
}

}  // namespace
}  // namespace troupe::reshard
