// Proves that a step trained part by part ends where one update of the whole ends: weights, moments
// and metrics to 1e-6 relative, for every loss and aggregation and on every kind of mesh, over
// random cuts and orders (seeds in the trace); that the same parts in the same order give the same
// bits whatever ran between them; and that what cannot be streamed is named at the start.
#include "actors/train/streamed_update.hpp"

#include "actors/algorithm/advantage.hpp"
#include "tests/actors/train/streamed/streamed_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using testing::distance;
using testing::Ending;
using testing::fsdp;
using ::testing::HasSubstr;
using testing::MeshRun;
using testing::Parts;
using testing::random_parts;
using testing::Recipe;
using testing::ShardMesh;
using testing::Share;
using testing::share_of;
using testing::streamed_run;
using testing::train;
using testing::zero1;

constexpr double kError = 1e-6;

/// `error` is for what rounds besides the sum over samples: products of matrices of other shapes,
/// and gradients that cancel.
void expect_close(const Ending& got, const Ending& wanted, double error = kError) {
  EXPECT_LT(distance(got, wanted, "weights/"), kError);
  EXPECT_LT(distance(got, wanted, "adam_m/"), error);
  EXPECT_LT(distance(got, wanted, "adam_v/"), 2 * error);  // of squares
  for (const auto& [name, entry] : wanted.metrics) {
    if (name.ends_with("_batches")) continue;  // parts have other micro-batches
    ASSERT_TRUE(got.metrics.value(name)) << name;
    EXPECT_NEAR(*got.metrics.value(name), *entry.value(), error * (1 + std::abs(*entry.value())))
        << name;
  }
  for (const auto& [name, entry] : got.metrics)
    EXPECT_TRUE(wanted.metrics.value(name)) << name << " is of streamed steps only";
}

/// `steps` streamed steps in random parts against as many updates.
void expect_like_one_update(const MeshRun& run, const ShardMesh& mesh, const Recipe& recipe,
                            std::uint64_t seed, int steps = 1, double error = kError) {
  SCOPED_TRACE(fmt::format("{}, loss {}, {}, seed {}", mesh.text(), recipe.loss,
                           loss_aggregation_name(recipe.aggregation), seed));
  Rng rng(seed);
  std::vector<std::optional<Parts>> parts;
  for (int step = 0; step < steps; ++step)
    parts.emplace_back(random_parts(rng, run.samples, step % 2 == 1));
  const std::vector<std::optional<Parts>> at_once(parts.size());
  expect_close(train(run, mesh, recipe, parts), train(run, mesh, recipe, at_once), error);
}

TEST(StreamedUpdate, EveryLossAndAggregationEndsWhereOneUpdateDoes) {
  std::uint64_t seed = 100;
  const PolicyLossRegistry losses = default_policy_losses();
  for (const std::string& loss : losses.names()) {
    if (losses.find(loss)->selects_tokens()) continue;
    for (const LossAggregation aggregation : testing::kAggregations) {
      ++seed;
      expect_like_one_update(streamed_run(seed), {}, {.loss = loss, .aggregation = aggregation},
                             seed);
    }
  }
}

TEST(StreamedUpdate, EveryMeshEndsWhereOneUpdateDoes) {
  const std::vector<ShardMesh> meshes = {{2},
                                         {3},
                                         {2, {.tp = 2}},
                                         {2, {.pp = 2}},
                                         {4, {.tp = 2, .pp = 2}},
                                         {4, {.tp = 2}},
                                         {4, {.pp = 2}},
                                         zero1(2),
                                         zero1(4, 2),
                                         fsdp(2),
                                         fsdp(3),
                                         fsdp(4, 2),
                                         fsdp(4, 0, 2),
                                         zero1(4, 0, 1, 2)};
  std::uint64_t seed = 200;
  for (const ShardMesh& mesh : meshes)
    for (const LossAggregation aggregation : testing::kAggregations) {
      ++seed;
      expect_like_one_update(streamed_run(seed), mesh, {.aggregation = aggregation}, seed);
    }
}

TEST(StreamedUpdate, TiedEmbeddingsAndRecomputeDoToo) {
  std::uint64_t seed = 300;
  for (const std::size_t model : {std::size_t{0}, std::size_t{1}})
    for (const ShardMesh& mesh : {ShardMesh{2, {.pp = 2}}, fsdp(2), zero1(4, 0, 1, 2)}) {
      ++seed;
      MeshRun run = streamed_run(seed, true, model);
      run.options.recompute = true;
      expect_like_one_update(run, mesh, {}, seed);
    }
}

TEST(StreamedUpdate, OtherMicroBatchesAndGradientsThatCancelCostTheirOwnRoundingOnly) {
  for (std::uint64_t seed = 350; seed < 365; ++seed) {
    expect_like_one_update(streamed_run(seed, false), {}, {}, seed, 2, 1e-5);
    expect_like_one_update(streamed_run(seed, false), {2, {.pp = 2}}, {}, seed, 2, 1e-5);
  }
}

TEST(StreamedUpdate, CriticsEndWhereOneUpdateDoes) {
  const std::vector<ShardMesh> meshes = {{},      {2},     {2, {.pp = 2}}, {2, {.tp = 2}},
                                         fsdp(2), zero1(2)};
  std::uint64_t seed = 400;
  for (const ShardMesh& mesh : meshes)
    for (const LossAggregation aggregation : testing::kAggregations) {
      ++seed;
      MeshRun run = streamed_run(seed);
      run.options.head = ModelHead::kValue;
      expect_like_one_update(run, mesh, {.aggregation = aggregation}, seed);
    }
}

TEST(StreamedUpdate, SamePartsInTheSameOrderGiveTheSameBitsWhateverRunsBetween) {
  constexpr std::uint64_t kSeed = 500;
  Rng rng(kSeed);
  const MeshRun run = streamed_run(kSeed);
  const Parts parts = random_parts(rng, run.samples, true);
  for (const ShardMesh& mesh : {ShardMesh{}, ShardMesh{4, {.tp = 2, .pp = 2}}, fsdp(4, 2)}) {
    SCOPED_TRACE(fmt::format("{}, seed {}", mesh.text(), kSeed));
    const Ending plain = train(run, mesh, {}, {parts});
    std::vector<std::vector<testing::OwnedPiece>> pieces(static_cast<std::size_t>(mesh.ranks));
    testing::run_mesh(run, mesh, [&](TrainEngine& engine, const Share& share, int rank) {
      const MeshPlace place = mesh_place(mesh.cut, rank, mesh.ranks);
      for (const std::vector<testing::Sample>& part : parts) {
        const Share mine = share_of(part, place.dp, place.dp_size);
        ASSERT_TRUE(testing::add_part(engine, mine, {}));
        (void)testing::outputs_of(engine, share);  // as a loop asks for log-probs of the next part
        engine.offload();
        engine.onload();
      }
      ASSERT_TRUE(engine.finish_step());
      pieces[static_cast<std::size_t>(rank)] = testing::owned(engine.state_pieces());
    });
    EXPECT_EQ(testing::assemble_state(testing::views(pieces)), plain.state);
  }
}

TEST(StreamedUpdate, TakesTheForwardPassForTheProximalPolicyWhenThereAreNoOldLogProbs) {
  constexpr std::uint64_t kSeed = 600;
  const MeshRun run = streamed_run(kSeed);
  const auto engine = testing::make_engine(run.config, testing::gradient_options());
  const auto wanted = testing::make_engine(run.config, testing::gradient_options());
  const Share share = share_of(run.samples, 0, 1);
  PolicyUpdate update = testing::policy_part(share, {});
  const std::vector<float> old = wanted->log_probs(share.pack.view(), 1.0F)->log_probs;
  update.old_log_probs = old;
  ASSERT_TRUE(wanted->update_policy(share.pack.view(), update));
  update.old_log_probs = {};
  ASSERT_TRUE(engine->accumulate_policy(share.pack.view(), update));
  const auto metrics = engine->finish_step();
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->value("actor/ppo_kl"), 0.0);
  EXPECT_EQ(metrics->value("actor/pg_clipfrac"), 0.0);
  EXPECT_LT(testing::relative_error(testing::gradient_of(*engine), testing::gradient_of(*wanted)),
            1e-5);  // log-probs of another micro-batching differ by rounding
}

TEST(StreamedUpdate, AStepWithoutATokenIsSkipped) {
  MeshRun run = streamed_run(700);
  for (testing::Sample& sample : run.samples) std::ranges::fill(sample.mask, std::uint8_t{0});
  for (const ShardMesh& mesh : {ShardMesh{}, fsdp(2)}) {
    const Ending ending = train(run, mesh, {}, {Parts{run.samples, {}}});
    EXPECT_EQ(ending.metrics.value("actor/step_skipped"), 1.0) << mesh.text();
  }
}

StreamedUpdatePlan good_plan() {
  StreamedUpdatePlan plan;
  plan.step_rows = 32;
  plan.minibatch_rows = 32;
  plan.advantage = "grpo";
  plan.loss = "vanilla";
  return plan;
}

TEST(StreamedUpdatePlan, TakesOneMiniBatchOfAGroupLocalEstimator) {
  EXPECT_TRUE(check_streamed_update(good_plan()));
  StreamedUpdatePlan own = good_plan();
  own.advantage = "mine";
  EXPECT_FALSE(check_streamed_update(own));
  own.advantage_is_local = true;
  EXPECT_TRUE(check_streamed_update(own));
}

TEST(StreamedUpdatePlan, NamesEveryObstacleAtOnce) {
  StreamedUpdatePlan plan = good_plan();
  plan.minibatch_rows = 8;
  plan.epochs = 2;
  plan.advantage = "gae";
  plan.loss = "kl_cov";
  plan.loss_selects = true;
  plan.adaptive_kl = true;
  plan.batch_wide = {"rollout_correction.batch_normalise"};
  const auto checked = check_streamed_update(plan);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::kConfig);
  for (const char* word : {"8 samples in steps of 32", "2 epochs", "'gae'", "'kl_cov'", "adaptive",
                           "rollout_correction.batch_normalise reads"})
    EXPECT_THAT(checked.error().message, HasSubstr(word));
}

/// An estimator is group-local exactly if adding other groups changes nothing of a group's result.
TEST(StreamedUpdatePlan, KnowsWhichEstimatorsAreGroupLocal) {
  const std::vector<std::int64_t> offsets = {0, 2, 5, 6, 9, 11, 12};
  const std::vector<std::uint8_t> mask(12, 1);
  const std::vector<std::int64_t> groups = {0, 0, 0, 1, 1, 1};
  const std::vector<float> rewards = {0, 1, 0, 0, 3, 0, 0, 0, 7, 0, -2, 0.5F};
  const std::vector<float> values(12, 0.25F);
  const std::vector<float> baselines(6, 0.5F);
  const auto run = [&](const AdvantageFunction& estimator, std::size_t sequences) {
    const auto tokens = static_cast<std::size_t>(offsets[sequences]);
    const std::vector<float> component = {1, 3, 0, 7, -2, 0.5F};
    AdvantageInput input{.tokens = {.offsets = std::span(offsets).first(sequences + 1),
                                    .mask = std::span(mask).first(tokens),
                                    .groups = std::span(groups).first(sequences)},
                         .rewards = std::span(rewards).first(tokens),
                         .values = std::span(values).first(tokens),
                         .baselines = std::span(baselines).first(sequences)};
    input.components.push_back(std::span(component).first(sequences));
    const auto output = estimator(input, {});
    if (!output) throw std::runtime_error(output.error().to_string());
    std::vector<float> first = output->advantages;
    first.resize(static_cast<std::size_t>(offsets[3]));
    return first;
  };
  const AdvantageRegistry known = default_advantages();
  for (const std::string& name : known.names()) {
    const AdvantageFunction estimator = *known.find(name);
    EXPECT_EQ(run(estimator, 3) == run(estimator, 6), advantage_is_group_local(name)) << name;
  }
}

}  // namespace
}  // namespace troupe::actors
