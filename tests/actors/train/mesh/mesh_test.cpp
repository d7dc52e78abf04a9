// Proves that an engine cut over any mesh pp × dp × tp of up to 8 ranks, virtual stages and uneven
// stages included, computes what one rank computes: outputs to 1e-5, gradients to 1e-5 relative,
// weights after three optimizer steps, metrics; that all ranks with the same sequences get the same
// results, and that a stage holds no more micro-batches than 1F1B allows.
#include "actors/train/pipeline_schedule.hpp"
#include "tests/actors/train/mesh/mesh_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::actors {
namespace {

using testing::assemble;
using testing::cut_text;
using testing::cuts_of;
using testing::gradient_options;
using testing::held_boxes;
using testing::HeldBox;
using testing::make_parallel_engine;
using testing::on_ranks;
using testing::parallel_models;
using testing::ParallelModel;
using testing::policy_update;
using testing::relative_error;
using testing::Sample;
using testing::Share;
using testing::share_of;

constexpr double kGradientError = 1e-5;
constexpr float kOutputError = 1e-5F;

result<runtime::Metrics> update(TrainEngine& engine, const Share& share, const std::string& loss,
                                const SamplingTransform& transform) {
  if (engine.options().head == ModelHead::kLanguage) {
    PolicyUpdate update = policy_update(share, loss);
    update.cut = transform;
    return engine.update_policy(share.pack.view(), update);
  }
  ValueUpdate value;
  value.returns = share.returns;
  value.mask = share.mask;
  value.options.clip = 0;
  return engine.update_value(share.pack.view(), value);
}

/// Log-probs and entropies, or values.
std::vector<float> outputs(TrainEngine& engine, const Share& share,
                           const SamplingTransform& transform) {
  if (engine.options().head == ModelHead::kValue) return engine.values(share.pack.view()).value();
  const TokenLogProbs out = engine.log_probs(share.pack.view(), transform, true).value();
  std::vector<float> all = out.log_probs;
  all.insert(all.end(), out.entropy.begin(), out.entropy.end());
  return all;
}

/// What one rank has to show.
struct RankReport {
  std::vector<float> outputs;
  std::vector<HeldBox> gradients;
  std::vector<HeldBox> weights;
  runtime::Metrics metrics;
  std::int64_t in_flight = 0;
};

struct Plan {
  ParallelModel model;
  std::vector<Sample> samples = {};
  std::string loss = "vanilla";
  SamplingTransform transform = {.temperature = 0.7};  ///< of outputs; its cut of updates too
  TrainEngineOptions options = gradient_options();
  int updates = 1;
};

/// `plan` on every rank of a mesh; each dp coordinate gets its share.
std::vector<RankReport> run(const Plan& plan, const ParallelOptions& cut, int ranks) {
  TrainEngineOptions options = plan.options;
  options.parallel = cut;
  std::vector<RankReport> reports(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](int rank, runtime::Collective& world) {
    RankReport& report = reports[static_cast<std::size_t>(rank)];
    const MeshPlace place = mesh_place(cut, rank, ranks);
    const auto engine = make_parallel_engine(plan.model, options, &world);
    const Share share = share_of(plan.samples, place.dp, place.dp_size);
    report.outputs = outputs(*engine, share, plan.transform);
    for (int u = 0; u < plan.updates; ++u) {
      const auto done = update(*engine, share, plan.loss, plan.transform);
      if (!done) throw std::runtime_error(done.error().to_string());
      report.metrics = *done;
    }
    report.gradients = held_boxes(*engine, "adam_m/");
    report.weights = held_boxes(*engine, "weights/");
    report.in_flight = engine->memory().micro_batches_peak;
  });
  return reports;
}

std::vector<double> assembled(const Plan& plan, const std::vector<RankReport>& reports,
                              std::vector<HeldBox> RankReport::*what) {
  std::vector<std::vector<HeldBox>> boxes;
  for (const RankReport& report : reports) boxes.push_back(report.*what);
  return assemble(plan.model.config, plan.model.head, boxes);
}

/// Outputs of the shares of dp coordinates equal those of one rank, on all ranks of the coordinate.
void expect_outputs(const Plan& plan, const ParallelOptions& cut,
                    const std::vector<RankReport>& reports) {
  TrainEngineOptions options = plan.options;
  const auto engine = make_parallel_engine(plan.model, options);
  const auto ranks = static_cast<int>(reports.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const MeshPlace place = mesh_place(cut, rank, ranks);
    const std::vector<float> wanted =
        outputs(*engine, share_of(plan.samples, place.dp, place.dp_size), plan.transform);
    const std::vector<float>& got = reports[static_cast<std::size_t>(rank)].outputs;
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], wanted[i], kOutputError * std::max(1.0F, std::abs(wanted[i])));
    EXPECT_EQ(got, reports[static_cast<std::size_t>(place.dp * place.tp_size)].outputs);
  }
}

/// Metrics of the speakers merge into those of one rank; peers have the same.
void expect_metrics(const ParallelOptions& cut, const std::vector<RankReport>& reports,
                    const runtime::Metrics& wanted) {
  const auto ranks = static_cast<int>(reports.size());
  runtime::Metrics merged;
  for (int rank = 0; rank < ranks; ++rank) {
    const MeshPlace place = mesh_place(cut, rank, ranks);
    const RankReport& report = reports[static_cast<std::size_t>(rank)];
    if (place.speaker()) {
      ASSERT_TRUE(merged.merge(report.metrics));
      continue;
    }
    const RankReport& speaker = reports[static_cast<std::size_t>(place.dp * place.tp_size)];
    for (const auto& [name, entry] : speaker.metrics)
      EXPECT_EQ(report.metrics.value(name), entry.value()) << name;
  }
  for (const auto& [name, entry] : wanted) {
    if (name == "actor/micro_batches") continue;
    ASSERT_TRUE(merged.value(name)) << name;
    EXPECT_NEAR(*merged.value(name), *entry.value(), 1e-5 * (1 + std::abs(*entry.value()))) << name;
  }
}

void expect_like_one_rank(const Plan& plan, const ParallelOptions& cut, int ranks,
                          const std::vector<double>& wanted, const runtime::Metrics& metrics) {
  SCOPED_TRACE(plan.model.name + ": " + cut_text(cut, ranks));
  const std::vector<RankReport> reports = run(plan, cut, ranks);
  EXPECT_LT(relative_error(assembled(plan, reports, &RankReport::gradients), wanted),
            kGradientError);
  expect_outputs(plan, cut, reports);
  expect_metrics(cut, reports, metrics);
  const PipelineShape shape{.stages = cut.pp, .virtual_stages = cut.virtual_stages};
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_LE(reports[static_cast<std::size_t>(rank)].in_flight,
              in_flight_max(shape, mesh_place(cut, rank, ranks).pp));
}

Plan plan_for(const ParallelModel& model, int samples = 9) {
  Plan plan{.model = model};
  Rng rng(3);
  plan.samples = testing::random_samples(rng, samples, model.config.vocab_size);
  plan.options.micro_batch_tokens_max = 30;  // several micro-batches, unequal over dp
  plan.options.logit_chunk_tokens = 7;
  return plan;
}

void compare_all_meshes(const ParallelModel& model) {
  Plan plan = plan_for(model);
  plan.options.micro_batch_tokens_max = 40;
  const std::vector<RankReport> single = run(plan, {}, 1);
  const std::vector<double> wanted = assembled(plan, single, &RankReport::gradients);
  for (int ranks = 2; ranks <= 8; ++ranks)
    for (const ParallelOptions& cut : cuts_of(model.config, ranks))
      if (cut.tp * cut.pp > 1) expect_like_one_rank(plan, cut, ranks, wanted, single[0].metrics);
}

TEST(Mesh, EveryCutOfALlamaComputesWhatOneRankComputes) {
  compare_all_meshes(parallel_models()[0]);
}

TEST(Mesh, EveryCutWithBiasesTiedEmbeddingsAndUnevenStagesDoesToo) {
  compare_all_meshes(parallel_models()[1]);
}

TEST(Mesh, EveryCutWithHeadNormsAndOneKvHeadDoesToo) { compare_all_meshes(parallel_models()[2]); }

TEST(Mesh, EveryCutOfACriticDoesToo) { compare_all_meshes(parallel_models()[3]); }

TEST(Mesh, VirtualAndExplicitStagesDoToo) {
  ParallelModel model = parallel_models()[1];
  model.config.layer_count = 8;
  const Plan plan = plan_for(model);
  const std::vector<RankReport> single = run(plan, {}, 1);
  const std::vector<double> wanted = assembled(plan, single, &RankReport::gradients);
  const std::vector<std::pair<int, ParallelOptions>> cuts = {
      {2, {.pp = 2, .virtual_stages = 2}},
      {2, {.pp = 2, .virtual_stages = 4}},
      {8, {.tp = 2, .pp = 4, .virtual_stages = 2}},
      {6, {.pp = 3, .virtual_stages = 2}},
      {4, {.tp = 2, .pp = 2, .stage_layers = {3, 5}}},
      {3, {.pp = 3, .stage_layers = {5, 1, 2}}},
      {2, {.pp = 2, .virtual_stages = 2, .stage_layers = {1, 3, 2, 2}}}};
  for (const auto& [ranks, cut] : cuts)
    expect_like_one_rank(plan, cut, ranks, wanted, single[0].metrics);
}

TEST(Mesh, RecomputeAndLossesThatSelectTokensDoToo) {
  for (const std::string loss : {"kl_cov", "clip_cov", "gspo"})
    for (const bool recompute : {false, true}) {
      Plan plan = plan_for(parallel_models()[2]);
      plan.loss = loss;
      plan.options.recompute = recompute;
      const std::vector<RankReport> single = run(plan, {}, 1);
      const std::vector<double> wanted = assembled(plan, single, &RankReport::gradients);
      for (const ParallelOptions& cut :
           {ParallelOptions{.tp = 4}, ParallelOptions{.pp = 4}, ParallelOptions{.tp = 2, .pp = 2}})
        expect_like_one_rank(plan, cut, 4, wanted, single[0].metrics);
      expect_like_one_rank(plan, {.tp = 2, .pp = 2}, 8, wanted, single[0].metrics);
    }
}

TEST(Mesh, LogProbsOfWhatWasDrawnFromDoToo) {
  for (const std::size_t model : {0U, 1U}) {  // an untied head and a tied one
    Plan plan = plan_for(parallel_models()[model]);
    plan.transform = {.temperature = 0.8, .top_p = 0.8, .top_k = 20};
    const std::vector<RankReport> single = run(plan, {}, 1);
    const std::vector<double> wanted = assembled(plan, single, &RankReport::gradients);
    for (const ParallelOptions& cut :
         {ParallelOptions{.tp = 2}, ParallelOptions{.tp = 4}, ParallelOptions{.tp = 2, .pp = 2}})
      expect_like_one_rank(plan, cut, 4, wanted, single[0].metrics);
  }
}

TEST(Mesh, ThreeOptimizerStepsEndAtTheSameWeights) {
  for (const ParallelModel& model : parallel_models()) {
    Plan plan = plan_for(model);
    plan.updates = 3;
    plan.options.optimizer = {};
    plan.options.optimizer.lr = 1e-3;
    // As large as typical gradients: a step is then about proportional to its gradient, and does
    // not turn the rounding of one that is nearly 0 into a step of full size.
    plan.options.optimizer.eps = 1e-2;
    plan.options.optimizer.grad_norm_max = 0.3;  // clips: the norm counts every weight once
    const std::vector<RankReport> single = run(plan, {}, 1);
    const std::vector<double> wanted = assembled(plan, single, &RankReport::weights);
    for (const ParallelOptions& cut :
         {ParallelOptions{.tp = 4, .pp = 2}, ParallelOptions{.tp = 2, .pp = 2}}) {
      SCOPED_TRACE(model.name + ": " + cut_text(cut, 8));
      const std::vector<RankReport> reports = run(plan, cut, 8);
      EXPECT_LT(relative_error(assembled(plan, reports, &RankReport::weights), wanted), 1e-5);
      for (const RankReport& report : reports)
        for (const char* name : {"actor/grad_norm", "critic/grad_norm"})
          if (const auto norm = single[0].metrics.value(name)) {
            ASSERT_TRUE(report.metrics.value(name));
            EXPECT_NEAR(*report.metrics.value(name), *norm, 1e-5 * *norm);
          }
    }
  }
}

TEST(Mesh, SupervisedLossIsTheSame) {
  const ParallelModel model = parallel_models()[1];
  const Plan plan = plan_for(model);
  const Share whole = share_of(plan.samples, 0, 1);
  const auto engine = make_parallel_engine(model, plan.options);
  const double wanted = engine->sft_loss(whole.pack.view(), whole.mask).value();
  TrainEngineOptions options = plan.options;
  options.parallel = {.tp = 2, .pp = 2};
  std::vector<double> losses(8);
  std::vector<double> updates(8);
  on_ranks(8, [&](int rank, runtime::Collective& world) {
    const auto mine = make_parallel_engine(model, options, &world);
    const MeshPlace place = mesh_place(options.parallel, rank, 8);
    const Share share = share_of(plan.samples, place.dp, place.dp_size);
    losses[static_cast<std::size_t>(rank)] = mine->sft_loss(share.pack.view(), share.mask).value();
    updates[static_cast<std::size_t>(rank)] =
        mine->update_sft(share.pack.view(), share.mask).value().value("train/grad_norm").value();
  });
  const double norm =
      engine->update_sft(whole.pack.view(), whole.mask).value().value("train/grad_norm").value();
  for (const double loss : losses) EXPECT_NEAR(loss, wanted, 1e-5);
  for (const double update_norm : updates) EXPECT_NEAR(update_norm, norm, 1e-5 * norm);
}

}  // namespace
}  // namespace troupe::actors
