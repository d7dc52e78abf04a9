// Proves that a streamed step survives what goes wrong in it: a part that a rank refuses leaves it
// as it was, a part that fails half-way breaks it until it is abandoned, and the step done again
// ends in the same bits; weights do not move before the end, and nothing else may move them.
#include "tests/actors/train/streamed/streamed_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using testing::add_part;
using testing::fsdp;
using ::testing::HasSubstr;
using testing::MeshRun;
using testing::OwnedPiece;
using testing::Parts;
using testing::random_parts;
using testing::Recipe;
using testing::Sample;
using testing::ShardMesh;
using testing::Share;
using testing::share_of;
using testing::streamed_run;
using testing::train;

using State = std::map<std::string, std::vector<float>>;

std::vector<ShardMesh> meshes() {
  return {{}, {2}, {2, {.pp = 2}}, {2, {.tp = 2}}, testing::zero1(2), fsdp(2), fsdp(4, 2)};
}

/// Two halves of the samples of a run.
Parts halves(const MeshRun& run) {
  const auto middle = run.samples.begin() + static_cast<std::ptrdiff_t>(run.samples.size() / 2);
  return {{run.samples.begin(), middle}, {middle, run.samples.end()}};
}

/// `work` on every rank, then the state of all of them.
State end_state(const MeshRun& run, const ShardMesh& mesh,
                const std::function<void(TrainEngine&, const MeshPlace&)>& work) {
  std::vector<std::vector<OwnedPiece>> pieces(static_cast<std::size_t>(mesh.ranks));
  testing::run_mesh(run, mesh, [&](TrainEngine& engine, const Share&, int rank) {
    work(engine, mesh_place(mesh.cut, rank, mesh.ranks));
    pieces[static_cast<std::size_t>(rank)] = testing::owned(engine.state_pieces());
  });
  return testing::assemble_state(testing::views(pieces));
}

TEST(StreamedFault, ARefusedPartLeavesTheStepAsItWas) {
  const MeshRun run = streamed_run(10);
  const Parts parts = halves(run);
  for (const ShardMesh& mesh : meshes()) {
    SCOPED_TRACE(mesh.text());
    const State wanted = train(run, mesh, {}, {parts}).state;
    const State got = end_state(run, mesh, [&](TrainEngine& engine, const MeshPlace& place) {
      const Share first = share_of(parts[0], place.dp, place.dp_size);
      const Share second = share_of(parts[1], place.dp, place.dp_size);
      const auto refused = [&](const Share& share) {
        PolicyUpdate update = testing::policy_part(share, {});
        if (place.dp == 0) update.advantages = update.advantages.subspan(1);
        const auto done = engine.accumulate_policy(share.pack.view(), update);
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().code,
                  place.dp == 0 ? ErrorCode::kInvalidArgument : ErrorCode::kAborted);
      };
      refused(first);
      EXPECT_FALSE(engine.step_is_open());
      ASSERT_TRUE(add_part(engine, first, {}));
      refused(second);
      const Recipe other{.aggregation = LossAggregation::kSeqMeanTokenMean};
      const auto mixed = add_part(engine, second, other);
      ASSERT_FALSE(mixed);
      EXPECT_EQ(mixed.error().code, ErrorCode::kConflict);
      ASSERT_TRUE(add_part(engine, second, {}));
      ASSERT_TRUE(engine.finish_step());
    });
    EXPECT_EQ(got, wanted);
  }
}

TEST(StreamedFault, APartThatFailsHalfWayBreaksTheStepUntilItIsAbandoned) {
  const MeshRun run = streamed_run(11);
  const Parts parts = halves(run);
  for (const ShardMesh& mesh : meshes()) {
    SCOPED_TRACE(mesh.text());
    const State wanted = train(run, mesh, {}, {parts}).state;
    const State got = end_state(run, mesh, [&](TrainEngine& engine, const MeshPlace& place) {
      const Share first = share_of(parts[0], place.dp, place.dp_size);
      Share second = share_of(parts[1], place.dp, place.dp_size);
      ASSERT_TRUE(add_part(engine, first, {}));
      const Share good = second;
      if (place.dp == 0) {  // found by the loss, when other micro-batches may have been added
        std::ranges::fill(second.advantages, NAN);
        std::ranges::fill(second.mask, std::uint8_t{1});
      } else {
        std::ranges::fill(second.mask, std::uint8_t{1});
      }
      ASSERT_FALSE(add_part(engine, second, {}));
      for (const auto& refused : {add_part(engine, good, {}), engine.finish_step()}) {
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
        EXPECT_THAT(refused.error().message, HasSubstr("must be abandoned"));
      }
      engine.abandon_step();
      EXPECT_EQ(engine.optimizer_steps(), 0);
      ASSERT_TRUE(add_part(engine, first, {}));
      ASSERT_TRUE(add_part(engine, good, {}));
      ASSERT_TRUE(engine.finish_step());
    });
    EXPECT_EQ(got, wanted);
  }
}

TEST(StreamedFault, ACollectiveThatEndedAndMetAnewNeedsTheStepAgain) {
  const MeshRun run = streamed_run(12);
  const Parts parts = halves(run);
  for (const ParallelOptions& cut : {ParallelOptions{}, ParallelOptions{.tp = 2},
                                     ParallelOptions{.sharding = Sharding::kFsdp}}) {
    const ShardMesh mesh{2, cut};
    SCOPED_TRACE(mesh.text());
    const State wanted = train(run, mesh, {}, {parts}).state;
    TrainEngineOptions options = run.options;
    options.parallel = cut;
    std::vector<std::vector<OwnedPiece>> pieces(2);
    testing::on_ranks(2, [&](int rank, runtime::Collective& world) {
      const MeshPlace place = mesh_place(cut, rank, 2);
      const auto engine = testing::make_engine(run.config, options, &world);
      const Share first = share_of(parts[0], place.dp, place.dp_size);
      const Share second = share_of(parts[1], place.dp, place.dp_size);
      ASSERT_TRUE(add_part(*engine, first, {}));
      if (rank == 1)
        world.abort(
            {.code = ErrorCode::kCancelled, .message = "asked to", .origin = {}, .causes = {}});
      ASSERT_FALSE(add_part(*engine, second, {}));
      ASSERT_TRUE(world.rebuild(world.epoch() + 1, Deadline::in(std::chrono::seconds(60))));
      const auto refused = engine->finish_step();
      ASSERT_FALSE(refused);
      EXPECT_THAT(refused.error().message, HasSubstr("must be abandoned"));
      engine->abandon_step();
      ASSERT_TRUE(add_part(*engine, first, {}));
      ASSERT_TRUE(add_part(*engine, second, {}));
      ASSERT_TRUE(engine->finish_step());
      pieces[static_cast<std::size_t>(rank)] = testing::owned(engine->state_pieces());
    });
    EXPECT_EQ(testing::assemble_state(testing::views(pieces)), wanted);
  }
}

TEST(StreamedFault, WeightsDoNotMoveBeforeTheEndAndNothingElseMovesThem) {
  const MeshRun run = streamed_run(13);
  const Parts parts = halves(run);
  for (const ShardMesh& mesh : meshes()) {
    SCOPED_TRACE(mesh.text());
    testing::run_mesh(run, mesh, [&](TrainEngine& engine, const Share& all, int rank) {
      const MeshPlace place = mesh_place(mesh.cut, rank, mesh.ranks);
      const auto held = [&engine] {
        const std::span<const float> buffer = engine.buffers()[0];
        return std::vector<float>(buffer.begin(), buffer.end());
      };
      const std::vector<float> before = held();
      EXPECT_EQ(engine.finish_step().error().code, ErrorCode::kInvalidArgument);
      ASSERT_TRUE(add_part(engine, share_of(parts[0], place.dp, place.dp_size), {}));
      EXPECT_TRUE(engine.step_is_open());
      const Bytes gradients = engine.memory().gradients;
      engine.offload();
      EXPECT_EQ(engine.memory().gradients, gradients);
      const PackedSequences sequences = all.pack.view();
      EXPECT_EQ(engine.update_policy(sequences, testing::policy_part(all, {})).error().code,
                ErrorCode::kConflict);
      EXPECT_EQ(engine.update_sft(sequences).error().code, ErrorCode::kConflict);
      EXPECT_EQ(engine.set_weights({}).error().code, ErrorCode::kConflict);
      EXPECT_EQ(held(), before);
      EXPECT_EQ(engine.optimizer_steps(), 0);
      ASSERT_TRUE(engine.finish_step());
      EXPECT_FALSE(engine.step_is_open());
      EXPECT_NE(held(), before);
      EXPECT_GT(engine.offload().value, 0);
    });
  }
}

TEST(StreamedFault, LoadingAStateAbandonsTheStep) {
  const MeshRun run = streamed_run(14);
  const auto engine = testing::make_engine(run.config, run.options);
  const Share share = share_of(run.samples, 0, 1);
  const TrainState views = engine->state();
  std::vector<std::vector<float>> copies;
  std::vector<NamedTensor> tensors = views.tensors;
  for (const NamedTensor& tensor : views.tensors)
    copies.emplace_back(tensor.data.begin(), tensor.data.end());
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].data = copies[i];
  ASSERT_TRUE(add_part(*engine, share, {}));
  ASSERT_TRUE(engine->load_state(views.json, tensors));
  EXPECT_FALSE(engine->step_is_open());
}

TEST(StreamedFault, LossesThatSelectTokensAndMissingFactorsAreRefusedAtTheFirstPart) {
  const MeshRun run = streamed_run(15);
  const auto engine = testing::make_engine(run.config, run.options);
  const Share share = share_of(run.samples, 0, 1);
  EXPECT_EQ(add_part(*engine, share, {.loss = "kl_cov"}).error().code, ErrorCode::kUnsupported);
  const Recipe without{.aggregation = LossAggregation::kSeqMeanTokenSumNorm, .scale_factor = 0};
  EXPECT_EQ(add_part(*engine, share, without).error().code, ErrorCode::kConfig);
  EXPECT_FALSE(engine->step_is_open());
}

}  // namespace
}  // namespace troupe::actors
