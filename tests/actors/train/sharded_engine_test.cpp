// Proves that an engine whose optimizer (ZeRO-1) or weights, gradients and optimizer (FSDP) are cut
// over ranks, alone and under tensor and pipeline parallelism, learns what one rank learns: outputs
// to 1e-5, weights and moments after three clipped steps to 1e-4; that each rank keeps 1/R, and no
// more than about two layers while it runs; that ranks agree on skipping and refusing.
#include "tests/actors/train/sharded_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::actors {
namespace {

using testing::assemble_state;
using testing::fsdp;
using ::testing::HasSubstr;
using testing::MeshRun;
using testing::on_ranks;
using testing::OwnedPiece;
using testing::ShardMesh;
using testing::Share;
using testing::share_of;
using testing::zero1;
using State = std::map<std::string, std::vector<float>>;

constexpr int kSteps = 3;
constexpr float kOutputError = 1e-5F;
constexpr double kStateError = 1e-4;

/// lr and clip such that weights move visibly; micro-batches small, so that ranks have different
/// numbers of them.
TrainEngineOptions learning_options() {
  TrainEngineOptions options;
  options.optimizer.lr = 3e-3;
  // Large enough that the rounding of a gradient near 0 does not become a step of full size.
  options.optimizer.eps = 1e-3;
  options.optimizer.grad_norm_max = 0.3;
  options.micro_batch_tokens_max = 40;
  return options;
}

MeshRun run_of(std::size_t model, std::uint64_t seed = 5, int samples = 11) {
  MeshRun run{.config = testing::tiny_models()[model].config, .options = learning_options()};
  Rng rng(seed);
  run.samples = testing::random_samples(rng, samples, run.config.vocab_size);
  return run;
}

struct MeshReport {
  std::vector<std::vector<float>> outputs;  // before learning, one entry a rank
  std::vector<runtime::Metrics> metrics;    // of the last step
  State state;
};

MeshReport learn(const MeshRun& run, const ShardMesh& mesh) {
  MeshReport report;
  const auto ranks = static_cast<std::size_t>(mesh.ranks);
  report.outputs.resize(ranks);
  report.metrics.resize(ranks);
  std::vector<std::vector<OwnedPiece>> pieces(ranks);
  testing::run_mesh(run, mesh, [&](TrainEngine& engine, const Share& share, int rank) {
    const auto r = static_cast<std::size_t>(rank);
    report.outputs[r] = testing::outputs_of(engine, share);
    for (int step = 0; step < kSteps; ++step)
      report.metrics[r] = testing::update_once(engine, share);
    pieces[r] = testing::owned(engine.state_pieces());
  });
  report.state = assemble_state(testing::views(pieces));
  return report;
}

void expect_like_one_rank(const MeshRun& run, const std::vector<ShardMesh>& meshes) {
  const MeshReport wanted = learn(run, {});
  const std::string prefix = run.options.head == ModelHead::kValue ? "critic" : "actor";
  TrainEngineOptions options = run.options;
  const auto engine = testing::make_engine(run.config, options);
  for (const ShardMesh& mesh : meshes) {
    SCOPED_TRACE(mesh.text());
    const MeshReport got = learn(run, mesh);
    for (const char* kind : {"weights/", "adam_m/", "adam_v/"})
      EXPECT_LT(testing::state_error(got.state, wanted.state, kind), kStateError) << kind;
    for (int rank = 0; rank < mesh.ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const MeshPlace place = mesh_place(mesh.cut, rank, mesh.ranks);
      const std::vector<float> outputs =
          testing::outputs_of(*engine, share_of(run.samples, place.dp, place.dp_size));
      ASSERT_EQ(got.outputs[r].size(), outputs.size());
      for (std::size_t i = 0; i < outputs.size(); ++i)
        ASSERT_NEAR(got.outputs[r][i], outputs[i], kOutputError) << rank;
      const double norm = wanted.metrics[0].value(prefix + "/grad_norm").value();
      EXPECT_NEAR(got.metrics[r].value(prefix + "/grad_norm").value(), norm, 1e-4 * norm);
    }
  }
}

TEST(ShardedEngine, LearnsWhatOneRankLearns) {
  const std::vector<ShardMesh> meshes = {zero1(2), zero1(3), zero1(4, 2), fsdp(2),
                                         fsdp(3),  fsdp(4),  fsdp(4, 2),  fsdp(8, 4)};
  for (std::size_t model = 0; model < testing::tiny_models().size(); ++model) {
    SCOPED_TRACE(testing::tiny_models()[model].name);
    // Every switch of the decoder on one mesh, all meshes with tied and with untied embeddings.
    expect_like_one_rank(run_of(model), model < 2 ? meshes : std::vector{fsdp(2), zero1(2)});
  }
}

TEST(ShardedEngine, LearnsTheSameWithRecompute) {
  MeshRun run = run_of(1);
  run.options.recompute = true;
  expect_like_one_rank(run, {fsdp(2), fsdp(4, 2), zero1(2)});
}

TEST(ShardedEngine, LearnsTheSameAsACritic) {
  MeshRun run = run_of(1);
  run.options.head = ModelHead::kValue;
  run.config.intermediate_size = 38;
  expect_like_one_rank(run, {fsdp(3), zero1(3), fsdp(4, 2, 2)});
}

TEST(ShardedEngine, LearnsTheSameUnderTensorAndPipelineParallelism) {
  for (const std::size_t model : {std::size_t{0}, std::size_t{1}}) {
    MeshRun run = run_of(model);
    run.config.intermediate_size = 38;
    run.config.kv_head_count = 2;
    expect_like_one_rank(run, {fsdp(4, 0, 2), zero1(4, 0, 2), fsdp(4, 0, 1, 2), zero1(4, 0, 1, 2),
                               fsdp(8, 0, 2, 2), zero1(8, 0, 2, 2), fsdp(8, 2, 2, 1)});
  }
}

TEST(ShardedEngine, LearnsTheSameInInterleavedStages) {
  MeshRun run = run_of(1);
  run.config.layer_count = 4;
  ShardMesh mesh = fsdp(4, 0, 1, 2);
  mesh.cut.virtual_stages = 2;
  expect_like_one_rank(run, {mesh});
}

TEST(ShardedEngine, GivesRanksWithoutSequencesTheSameWeights) {
  expect_like_one_rank(run_of(0, 9, 1), {fsdp(4), zero1(4)});
}

TEST(ShardedEngine, KeepsOnePartInEachRankAndTwoLayersWhileItRuns) {
  MeshRun run = run_of(0);
  run.config.hidden_size = 64;
  run.config.intermediate_size = 160;
  run.config.layer_count = 6;
  constexpr std::int64_t kRanks = 4;
  constexpr std::int64_t kFloat = sizeof(float);
  const auto whole = testing::make_engine(run.config, run.options);
  const std::int64_t all = whole->memory().weights.value;
  const std::int64_t units = run.config.layer_count + 3;
  const std::int64_t padding = units * 16 * kFloat;
  std::int64_t layer = 0;
  for (const NamedTensor& tensor : whole->weights())
    if (tensor.name.starts_with("model.layers.0."))
      layer += static_cast<std::int64_t>(tensor.data.size_bytes());
  for (const bool recompute : {false, true}) {
    run.options.recompute = recompute;
    testing::run_mesh(run, fsdp(kRanks), [&](TrainEngine& engine, const Share& share, int) {
      testing::update_once(engine, share);
      const TrainMemory memory = engine.memory();
      EXPECT_LE(memory.weights.value, all / kRanks + padding);
      EXPECT_EQ(memory.gradients.value, memory.weights.value);
      EXPECT_EQ(memory.optimizer.value, 2 * memory.weights.value);
      EXPECT_GT(memory.gathered_peak.value, layer / 2);
      EXPECT_LE(memory.gathered_peak.value, 2 * layer + layer / 2);
      const Bytes freed = engine.offload();
      EXPECT_EQ(freed.value, memory.gradients.value + memory.gathered.value);
      EXPECT_EQ(engine.memory().gathered.value, 0);
    });
  }
  testing::run_mesh(run, zero1(kRanks), [&](TrainEngine& engine, const Share& share, int) {
    testing::update_once(engine, share);
    EXPECT_LE(engine.memory().optimizer.value, 2 * all / kRanks + 2 * padding);
    EXPECT_LE(engine.memory().weights.value, all + padding * kRanks);
  });
}

TEST(ShardedEngine, SkipsOnEveryRankWhatIsNotFinite) {
  MeshRun run = run_of(0);
  for (const ShardMesh& mesh : {fsdp(3), zero1(3), fsdp(4, 2)}) {
    SCOPED_TRACE(mesh.text());
    testing::run_mesh(run, mesh, [&](TrainEngine& engine, const Share& share, int rank) {
      const auto before = testing::owned(engine.held_pieces());
      Share large = share;
      PolicyUpdate update = testing::policy_update(large, "gpg");
      if (rank == 1) {  // legal numbers whose product leaves f32
        std::ranges::fill(large.advantages, 1e30F);
        std::ranges::fill(large.weights, 1e30F);
        update.rollout_weights = large.weights;
      }
      const auto done = engine.update_policy(large.pack.view(), update);
      ASSERT_TRUE(done.has_value()) << done.error().to_string();
      EXPECT_EQ(done->value("actor/step_skipped"), 1.0);
      EXPECT_EQ(engine.optimizer_steps(), 0);
      const auto after = testing::owned(engine.held_pieces());
      for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i].values, after[i].values);
    });
  }
}

TEST(ShardedEngine, EndsOnEveryRankWhenOneLossFails) {
  MeshRun run = run_of(0);
  testing::run_mesh(run, fsdp(2), [&](TrainEngine& engine, const Share& share, int rank) {
    PolicyUpdate update = testing::policy_update(share, "vanilla");
    if (rank == 1)
      update.loss.apply = [](const PolicyLossInput&,
                             const PolicyLossOptions&) -> result<PolicyLossOutput> {
        return fail(ErrorCode::kInvalidArgument, "loss: refused on purpose");
      };
    const auto done = engine.update_policy(share.pack.view(), update);
    ASSERT_FALSE(done.has_value());
    if (rank == 1)
      EXPECT_THAT(done.error().message, HasSubstr("refused on purpose"));
    else
      EXPECT_EQ(done.error().code, ErrorCode::kAborted) << done.error().to_string();
    // The group has not failed: the next step works.
    testing::update_once(engine, share);
  });
}

TEST(ShardedEngine, ReportsAGroupThatFailsInTheMiddle) {
  MeshRun run = run_of(0);
  run.options.collective_timeout = std::chrono::seconds(20);
  TrainEngineOptions options = run.options;
  options.parallel = fsdp(2).cut;
  on_ranks(2, [&](int rank, runtime::Collective& world) {
    const auto engine = testing::make_engine(run.config, options, &world);
    const Share share = share_of(run.samples, rank, 2);
    if (rank == 1) {
      world.abort(fail(ErrorCode::kRankDead, "rank 1 is gone").value());
      return;
    }
    const auto done =
        engine->update_policy(share.pack.view(), testing::policy_update(share, "vanilla"));
    ASSERT_FALSE(done.has_value());
    EXPECT_THAT(done.error().to_string(), HasSubstr("rank 1"));
  });
}

TEST(ShardedEngine, RunsFrozenWithoutGradients) {
  MeshRun run = run_of(0);
  run.options.trainable = false;
  const auto whole = testing::make_engine(run.config, run.options);
  testing::run_mesh(run, fsdp(2), [&](TrainEngine& engine, const Share& share, int rank) {
    const std::vector<float> got = testing::outputs_of(engine, share);
    if (rank == 0) {
      const std::vector<float> wanted = testing::outputs_of(*whole, share_of(run.samples, 0, 2));
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], kOutputError);
    }
    EXPECT_EQ(engine.memory().optimizer.value, 0);
    EXPECT_EQ(engine.memory().gradients.value, 0);
    for (const StatePiece& piece : engine.state_pieces())
      EXPECT_TRUE(piece.name.starts_with("weights/"));
  });
}

}  // namespace
}  // namespace troupe::actors
