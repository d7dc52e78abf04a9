// Proves that the engine's gradients are right (against plain double-precision autograd of the
// whole objective) and do not depend on data-parallel size, micro-batch budget, packing order,
// recompute or whether equal prompts are shared; that ranks agree on clipping, skipping and
// refusing; and what happens on bad input.
#include "tests/actors/decoder/plain_decoder.hpp"
#include "tests/actors/train/engine_fixture.hpp"
#include "tests/support/reference_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>

namespace troupe::actors {
namespace {

using testing::gradient_of;
using testing::gradient_options;
using ::testing::HasSubstr;
using testing::make_engine;
using testing::on_ranks;
using testing::policy_update;
using testing::relative_error;
using testing::Sample;
using testing::Share;
using testing::share_of;

ModelConfig tiny(std::size_t index = 0) { return testing::tiny_models()[index].config; }

std::vector<Sample> samples_for(const ModelConfig& config, int count = 13, std::uint64_t seed = 3) {
  Rng rng(seed);
  return testing::random_samples(rng, count, config.vocab_size);
}

/// Gradient of one policy update of all samples on one rank.
std::vector<double> single_gradient(const ModelConfig& config, const std::vector<Sample>& samples,
                                    const std::string& loss, TrainEngineOptions options,
                                    KlKind kl = {}) {
  const auto engine = make_engine(config, options);
  const Share share = share_of(samples, 0, 1);
  PolicyUpdate update = policy_update(share, loss);
  update.objective.kl = kl;
  const auto done = engine->update_policy(share.pack.view(), update);
  if (!done) throw std::runtime_error(done.error().to_string());
  return gradient_of(*engine);
}

TEST(TrainEngine, PolicyGradientIsThatOfThePlainObjective) {
  for (const testing::TinyModel& model : testing::tiny_models()) {
    SCOPED_TRACE(model.name);
    const std::vector<Sample> samples = samples_for(model.config, 5);
    const std::vector<double> got = single_gradient(
        model.config, samples, "vanilla", gradient_options(), {.estimator = KlEstimator::kK2});

    const WeightSet weights = testing::tiny_weights(model.config, 31);
    testing::PlainDecoder plain(model.config, weights.tensors());
    at::Tensor loss = torch::zeros({}, torch::kFloat64);
    double count = 0;
    for (const Sample& s : samples)
      for (const std::uint8_t chosen : s.mask) count += chosen;
    for (const Sample& s : samples) {
      std::vector<std::int32_t> ids = s.prompt;
      ids.insert(ids.end(), s.response.begin(), s.response.end());
      const at::Tensor log_probs = plain.logits(ids).log_softmax(-1);
      for (std::size_t t = 0; t < s.response.size(); ++t) {
        if (s.mask[t] == 0) continue;
        const at::Tensor row = log_probs[static_cast<std::int64_t>(s.prompt.size() + t) - 1];
        const at::Tensor log_prob = row[s.response[t]];
        const double a = static_cast<double>(s.advantages[t]);
        const at::Tensor ratio = (log_prob - static_cast<double>(s.old_log_probs[t])).exp();
        at::Tensor term = torch::max(-a * ratio, -a * ratio.clamp(0.8, 1.2));
        if (a < 0) term = torch::min(term, torch::full({}, -a * 3.0, torch::kFloat64));
        const at::Tensor d = log_prob - static_cast<double>(s.reference[t]);
        const at::Tensor kl = d * d / 2;
        const at::Tensor entropy = -(row.exp() * row).sum();
        loss = loss + (term - 0.01 * entropy + 0.05 * kl) / count;
      }
    }
    loss.backward();
    std::vector<double> wanted;
    for (const NamedTensor& tensor : weights.tensors()) {
      const at::Tensor g = plain.weight(tensor.name).grad().contiguous();
      wanted.insert(wanted.end(), g.data_ptr<double>(), g.data_ptr<double>() + g.numel());
    }
    EXPECT_LT(relative_error(got, wanted), 2e-5);
  }
}

TEST(TrainEngine, GradientsDoNotDependOnRanksBudgetRecomputeOrSharedPrompts) {
  for (const std::string loss : {"vanilla", "gspo", "geo_mean", "cispo", "clip_cov", "kl_cov"}) {
    for (const std::size_t index : {std::size_t{1}, std::size_t{6}}) {  // tied; qk-norm
      const ModelConfig config = tiny(index);
      const std::vector<Sample> samples = samples_for(config);
      TrainEngineOptions alone = gradient_options();
      alone.share_prompts = false;
      const std::vector<double> wanted = single_gradient(config, samples, loss, alone);
      for (const int ranks : {1, 2, 3, 4}) {
        for (const std::int64_t budget : {std::int64_t{23}, std::int64_t{64}}) {
          for (const bool recompute : {false, true}) {
            SCOPED_TRACE(loss + ": ranks " + std::to_string(ranks) + ", budget " +
                         std::to_string(budget) + ", recompute " + std::to_string(recompute));
            TrainEngineOptions options = gradient_options();
            options.micro_batch_tokens_max = budget;
            options.recompute = recompute;
            std::vector<double> errors(static_cast<std::size_t>(ranks), INFINITY);
            on_ranks(ranks, [&](int rank, runtime::Collective& collective) {
              const auto engine = make_engine(config, options, &collective);
              const Share share = share_of(samples, rank, ranks);
              const auto done =
                  engine->update_policy(share.pack.view(), policy_update(share, loss));
              if (!done) throw std::runtime_error(done.error().to_string());
              errors[static_cast<std::size_t>(rank)] = relative_error(gradient_of(*engine), wanted);
            });
            for (const double error : errors) EXPECT_LT(error, 1e-5);
          }
        }
      }
    }
  }
}

TEST(TrainEngine, GradientsDoNotDependOnThePackingOrder) {
  const ModelConfig config = tiny();
  std::vector<Sample> samples = samples_for(config);
  const std::vector<double> wanted =
      single_gradient(config, samples, "vanilla", gradient_options());
  std::reverse(samples.begin(), samples.end());
  EXPECT_LT(relative_error(single_gradient(config, samples, "vanilla", gradient_options()), wanted),
            1e-5);
}

TEST(TrainEngine, MaskedTokensMayHoldAnything) {
  const ModelConfig config = tiny();
  std::vector<Sample> samples = samples_for(config);
  const std::vector<double> wanted =
      single_gradient(config, samples, "vanilla", gradient_options());
  for (Sample& s : samples)
    for (std::size_t t = 0; t < s.mask.size(); ++t)
      if (s.mask[t] == 0)
        s.advantages[t] = s.old_log_probs[t] = s.reference[t] =
            std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(single_gradient(config, samples, "vanilla", gradient_options()), wanted);
}

TEST(TrainEngine, RanksWithoutSequencesTakePart) {
  const ModelConfig config = tiny();
  const std::vector<Sample> samples = samples_for(config, 2);
  const std::vector<double> wanted = single_gradient(config, samples, "kl_cov", gradient_options());
  std::vector<double> errors(4, INFINITY);
  on_ranks(4, [&](int rank, runtime::Collective& collective) {
    const auto engine = make_engine(config, gradient_options(), &collective);
    const Share share = share_of(samples, rank, 4);
    ASSERT_EQ(share.pack.count(), rank < 2 ? 1 : 0);
    ASSERT_TRUE(engine->update_policy(share.pack.view(), policy_update(share, "kl_cov")));
    errors[static_cast<std::size_t>(rank)] = relative_error(gradient_of(*engine), wanted);
  });
  for (const double error : errors) EXPECT_LT(error, 1e-5);
}

TEST(TrainEngine, MetricsOfRanksMergeIntoThoseOfOneRank) {
  const ModelConfig config = tiny();
  const std::vector<Sample> samples = samples_for(config);
  const auto engine = make_engine(config, gradient_options());
  const Share whole = share_of(samples, 0, 1);
  const runtime::Metrics wanted =
      engine->update_policy(whole.pack.view(), policy_update(whole, "vanilla")).value();
  std::vector<runtime::Metrics> parts(3);
  on_ranks(3, [&](int rank, runtime::Collective& collective) {
    const auto mine = make_engine(config, gradient_options(), &collective);
    const Share share = share_of(samples, rank, 3);
    parts[static_cast<std::size_t>(rank)] =
        mine->update_policy(share.pack.view(), policy_update(share, "vanilla")).value();
  });
  runtime::Metrics merged;
  for (const runtime::Metrics& part : parts) ASSERT_TRUE(merged.merge(part));
  for (const auto& [name, entry] : wanted) {
    if (name == "actor/micro_batches") continue;
    ASSERT_TRUE(merged.value(name)) << name;
    EXPECT_NEAR(*merged.value(name), *entry.value(), 1e-5 * (1 + std::abs(*entry.value()))) << name;
  }
  for (const char* name : {"actor/pg_loss", "actor/loss", "actor/entropy", "actor/kl_loss",
                           "actor/ppo_kl", "actor/pg_clipfrac", "actor/grad_norm", "actor/lr"})
    EXPECT_TRUE(wanted.value(name)) << name;
}

TEST(TrainEngine, ClippingUsesTheNormOfTheSummedGradient) {
  const ModelConfig config = tiny();
  const std::vector<Sample> samples = samples_for(config);
  TrainEngineOptions options = gradient_options();
  const std::vector<double> free = single_gradient(config, samples, "vanilla", options);
  double squares = 0;
  for (const double g : free) squares += g * g;
  const double norm = std::sqrt(squares);
  options.optimizer.grad_norm_max = norm / 4;
  on_ranks(2, [&](int rank, runtime::Collective& collective) {
    const auto engine = make_engine(config, options, &collective);
    const Share share = share_of(samples, rank, 2);
    const auto metrics =
        engine->update_policy(share.pack.view(), policy_update(share, "vanilla")).value();
    EXPECT_NEAR(*metrics.value("actor/grad_norm"), norm, 1e-5 * norm);
    std::vector<double> scaled = free;
    for (double& g : scaled) g /= 4;
    EXPECT_LT(relative_error(gradient_of(*engine), scaled), 2e-5);
  });
}

TEST(TrainEngine, EveryRankSkipsAStepWhoseGradientIsNotFinite) {
  const ModelConfig config = tiny();
  const std::vector<Sample> samples = samples_for(config);
  TrainEngineOptions options;
  options.optimizer.lr = 1e-2;
  std::vector<std::vector<float>> after(2);
  on_ranks(2, [&](int rank, runtime::Collective& collective) {
    const auto engine = make_engine(config, options, &collective);
    const std::vector<float> before = testing::all_weights(*engine);
    Share share = share_of(samples, rank, 2);
    const std::vector<float> advantages = share.advantages;
    PolicyUpdate huge = policy_update(share, "gpg");
    if (rank == 1) {  // legal numbers whose product leaves f32
      std::ranges::fill(share.advantages, 1e30F);
      std::ranges::fill(share.weights, 1e30F);
      huge.rollout_weights = share.weights;
    }
    const auto skipped = engine->update_policy(share.pack.view(), huge).value();
    EXPECT_EQ(*skipped.value("actor/step_skipped"), 1.0);
    EXPECT_FALSE(std::isfinite(*skipped.value("actor/grad_norm")));
    EXPECT_EQ(engine->optimizer_steps(), 0);
    EXPECT_EQ(testing::all_weights(*engine), before);
    share.advantages = advantages;
    const auto good = engine->update_policy(share.pack.view(), policy_update(share, "gpg")).value();
    EXPECT_EQ(*good.value("actor/step_skipped"), 0.0);
    EXPECT_EQ(engine->optimizer_steps(), 1);
    after[static_cast<std::size_t>(rank)] = testing::all_weights(*engine);
  });
  EXPECT_EQ(after[0], after[1]) << "ranks hold the same bits";
  for (const float w : after[0]) ASSERT_TRUE(std::isfinite(w));
}

TEST(TrainEngine, ARefusalOfOneRankIsToldToAllAndLeavesTheGroupUsable) {
  const ModelConfig config = tiny();
  const std::vector<Sample> samples = samples_for(config);
  on_ranks(3, [&](int rank, runtime::Collective& collective) {
    const auto engine = make_engine(config, {}, &collective);
    const std::vector<float> before = testing::all_weights(*engine);
    Share share = share_of(samples, rank, 3);
    const auto expect_refused = [&](const result<runtime::Metrics>& done, const char* what) {
      ASSERT_FALSE(done) << what;
      if (rank == 1) {
        EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument) << done.error().to_string();
        EXPECT_THAT(done.error().message, HasSubstr(what));
      } else {
        EXPECT_EQ(done.error().code, ErrorCode::kAborted) << done.error().to_string();
        EXPECT_THAT(done.error().message, HasSubstr("rank 1"));
      }
      EXPECT_EQ(testing::all_weights(*engine), before);
    };
    // Found before any work.
    PolicyUpdate update = policy_update(share, "vanilla");
    if (rank == 1) update.advantages = update.advantages.first(1);
    expect_refused(engine->update_policy(share.pack.view(), update), "advantages");
    // Found in the middle of it, by the loss.
    const std::vector<float> advantages = share.advantages;
    if (rank == 1) {
      share.mask.assign(share.mask.size(), 1);
      share.advantages.back() = std::numeric_limits<float>::quiet_NaN();
    }
    expect_refused(engine->update_policy(share.pack.view(), policy_update(share, "vanilla")),
                   "advantages");
    // A token that is not in the vocabulary.
    Share wrong = share_of(samples, rank, 3);
    if (rank == 1) {
      Sample s;
      s.prompt = {999};
      wrong.add(s);
    }
    expect_refused(engine->update_policy(wrong.pack.view(), policy_update(wrong, "vanilla")),
                   "token 999");
    share.advantages = advantages;
    EXPECT_TRUE(engine->update_policy(share.pack.view(), policy_update(share, "vanilla")));
  });
}

TEST(TrainEngine, ADeadRankIsAnErrorNotAHang) {
  const ModelConfig config = tiny();
  const std::vector<Sample> samples = samples_for(config);
  auto group = runtime::make_local_group(2, {.name = "policy"});
  const auto engine = make_engine(config, {}, group[0].get());
  group[1].reset();
  const Share share = share_of(samples, 0, 2);
  const auto done = engine->update_policy(share.pack.view(), policy_update(share, "vanilla"));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kRankDead) << done.error().to_string();
}

TEST(TrainEngine, LogProbsMatchTheSlowReferenceAtAnyBudget) {
  for (const std::size_t index : {std::size_t{0}, std::size_t{5}, std::size_t{6}, std::size_t{7}}) {
    const ModelConfig config = tiny(index);
    const std::vector<Sample> samples = samples_for(config, 20);
    const Share share = share_of(samples, 0, 1);
    const WeightSet weights = testing::tiny_weights(config, 31);
    const testing::ReferenceModel reference(config, weights.tensors());
    std::vector<double> wanted;
    std::vector<double> entropy;
    for (const Sample& s : samples) {
      std::vector<std::int32_t> ids = s.prompt;
      ids.insert(ids.end(), s.response.begin(), s.response.end());
      const testing::Table logits = reference.logits(ids);
      for (std::size_t t = 0; t < s.response.size(); ++t) {
        const auto row =
            testing::ReferenceModel::log_softmax(logits.row(s.prompt.size() + t - 1), 0.8);
        wanted.push_back(row[static_cast<std::size_t>(s.response[t])]);
        double h = 0;
        for (const double value : row) h -= std::exp(value) * value;
        entropy.push_back(h);
      }
    }
    std::vector<TokenLogProbs> results;
    for (const std::int64_t budget : {std::int64_t{23}, std::int64_t{50}, std::int64_t{10000}}) {
      TrainEngineOptions options;
      options.trainable = false;
      options.micro_batch_tokens_max = budget;
      options.logit_chunk_tokens = 11;
      const auto engine = make_engine(config, options);
      results.push_back(engine->log_probs(share.pack.view(), 0.8F, true).value());
      ASSERT_EQ(results.back().log_probs.size(), wanted.size());
      for (std::size_t t = 0; t < wanted.size(); ++t) {
        EXPECT_NEAR(static_cast<double>(results.back().log_probs[t]), wanted[t], 1e-4);
        EXPECT_NEAR(static_cast<double>(results.back().entropy[t]), entropy[t], 1e-4);
      }
    }
    double worst = 0;
    for (const TokenLogProbs& other : results)
      for (std::size_t t = 0; t < wanted.size(); ++t)
        worst = std::max(worst, std::abs(static_cast<double>(other.log_probs[t]) -
                                         static_cast<double>(results[0].log_probs[t])));
    EXPECT_LT(worst, 2e-5) << "f32 rounding of log-probs up to -20 that come from logits up to 40";
  }
}

TEST(TrainEngine, WithoutAnythingToLearnTheStepIsSkipped) {
  const ModelConfig config = tiny();
  const auto engine = make_engine(config, {});
  const std::vector<float> before = testing::all_weights(*engine);
  const Share none;
  const auto empty = engine->update_policy(none.pack.view(), policy_update(none, "vanilla"));
  ASSERT_TRUE(empty) << empty.error().to_string();
  EXPECT_EQ(*empty->value("actor/step_skipped"), 1.0);
  Share masked = share_of(samples_for(config), 0, 1);
  masked.mask.assign(masked.mask.size(), 0);
  const auto all_masked =
      engine->update_policy(masked.pack.view(), policy_update(masked, "vanilla"));
  ASSERT_TRUE(all_masked) << all_masked.error().to_string();
  EXPECT_EQ(*all_masked->value("actor/step_skipped"), 1.0);
  EXPECT_EQ(*all_masked->value("actor/grad_norm"), 0.0);
  EXPECT_EQ(testing::all_weights(*engine), before);
  EXPECT_EQ(engine->log_probs(none.pack.view(), 1.0F)->log_probs.size(), 0U);
}

TEST(TrainEngine, RefusesBadInputNamingIt) {
  const ModelConfig config = tiny();
  TrainEngineOptions options;
  options.micro_batch_tokens_max = 16;
  const auto engine = make_engine(config, options);
  Rng rng(4);
  const auto refusal = [&](const PackedSequences& sequences) {
    const auto done = engine->log_probs(sequences, 1.0F);
    return done ? std::string("accepted") : done.error().message;
  };
  SequencePack long_one;
  long_one.add(testing::random_tokens(rng, 3, 29), testing::random_tokens(rng, 3, 29));
  long_one.add(testing::random_tokens(rng, 9, 29), testing::random_tokens(rng, 8, 29));
  EXPECT_THAT(refusal(long_one.view()), HasSubstr("sequence 1: 17 tokens exceed the limit of 16"));
  SequencePack no_prompt;
  no_prompt.add({}, testing::random_tokens(rng, 4, 29));
  EXPECT_THAT(refusal(no_prompt.view()), HasSubstr("sequence 0: prompt length 0"));
  SequencePack negative;
  negative.add(std::vector<std::int32_t>{1, -1}, {});
  EXPECT_THAT(refusal(negative.view()), HasSubstr("token -1"));
  const std::vector<std::int32_t> tokens = {1, 2, 3};
  const std::vector<std::int64_t> falling = {0, 3, 2, 3};
  const std::vector<std::int64_t> prompts = {1, 1, 1};
  EXPECT_THAT(refusal({tokens, falling, prompts}), HasSubstr("sequence 1: offsets fall"));
  EXPECT_THAT(refusal({tokens, falling, std::span(prompts).first(1)}), HasSubstr("4 offsets"));
  EXPECT_THAT(refusal({tokens, {}, {}}), HasSubstr("0 offsets"));
  SequencePack fine;
  fine.add(std::vector<std::int32_t>{1}, std::vector<std::int32_t>{2});
  for (const float temperature : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_FALSE(engine->log_probs(fine.view(), temperature));
  EXPECT_FALSE(engine->values(fine.view()));
}

TEST(TrainEngine, LossesThatSelectNeedSequenceIds) {
  const ModelConfig config = tiny();
  const auto engine = make_engine(config, {});
  const Share share = share_of(samples_for(config), 0, 1);
  PolicyUpdate update = policy_update(share, "clip_cov");
  update.sequence_ids = {};
  const auto done = engine->update_policy(share.pack.view(), update);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("sequence ids"));
}

TEST(TrainEngine, AFrozenEngineHoldsNoTrainingMemoryAndRefusesUpdates) {
  const ModelConfig config = tiny();
  TrainEngineOptions options;
  options.trainable = false;
  const auto engine = make_engine(config, options);
  EXPECT_GT(engine->memory().weights.value, 0);
  EXPECT_EQ(engine->memory().gradients.value, 0);
  EXPECT_EQ(engine->memory().optimizer.value, 0);
  const Share share = share_of(samples_for(config), 0, 1);
  EXPECT_FALSE(engine->update_policy(share.pack.view(), policy_update(share, "vanilla")));
  EXPECT_FALSE(engine->update_sft(share.pack.view()));
  EXPECT_TRUE(engine->log_probs(share.pack.view(), 1.0F));
}

TEST(TrainEngine, RefusesOptionsOutOfRangeByName) {
  const ModelConfig config = tiny();
  const WeightSet weights = testing::tiny_weights(config, 1);
  const auto refusal = [&](auto change) {
    TrainEngineOptions options;
    change(options);
    const auto engine = TrainEngine::create(config, weights.tensors(), options);
    return engine ? std::string("accepted") : engine.error().message;
  };
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.lr = -1; }), HasSubstr("lr"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.lr = NAN; }), HasSubstr("lr"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.beta1 = 1; }), HasSubstr("beta1"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.beta2 = -0.1; }), HasSubstr("beta2"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.eps = 0; }), HasSubstr("eps"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.weight_decay = -1; }), HasSubstr("weight_decay"));
  EXPECT_THAT(refusal([](auto& o) { o.micro_batch_tokens_max = 0; }),
              HasSubstr("micro_batch_tokens_max"));
  EXPECT_THAT(refusal([](auto& o) { o.logit_chunk_tokens = 0; }), HasSubstr("logit_chunk_tokens"));
  EXPECT_THAT(refusal([](auto& o) { o.threads = 0; }), HasSubstr("threads"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.schedule = LrSchedule::kCosine; }),
              HasSubstr("total_steps"));
  EXPECT_EQ(refusal([](auto&) {}), "accepted");
}

TEST(TrainEngine, RecomputeHoldsFewerActivations) {
  ModelConfig config = tiny();
  config.layer_count = 8;
  const std::vector<Sample> samples = samples_for(config, 200);
  const Share share = share_of(samples, 0, 1);
  const auto peak = [&](bool recompute) {
    TrainEngineOptions options;
    options.recompute = recompute;
    const auto engine = make_engine(config, options);
    EXPECT_EQ(engine->memory().activations_peak.value, 0);
    EXPECT_TRUE(engine->update_policy(share.pack.view(), policy_update(share, "vanilla")));
    return engine->memory().activations_peak.value;
  };
  const std::int64_t kept = peak(false);
  const std::int64_t recomputed = peak(true);
  EXPECT_GT(recomputed, 0);
  EXPECT_LT(recomputed * 3, kept) << recomputed << " bytes against " << kept;
}

TEST(TrainEngine, OffloadGivesBackTheGradientsAndTrainingGoesOn) {
  const ModelConfig config = tiny();
  const auto engine = make_engine(config, {});
  const auto steady = make_engine(config, {});
  const Share share = share_of(samples_for(config), 0, 1);
  ASSERT_TRUE(engine->update_policy(share.pack.view(), policy_update(share, "vanilla")));
  ASSERT_TRUE(steady->update_policy(share.pack.view(), policy_update(share, "vanilla")));
  const Bytes gradients = engine->memory().gradients;
  EXPECT_GE(gradients.value, 4 * engine->parameter_count());
  EXPECT_EQ(engine->offload(), gradients);
  EXPECT_EQ(engine->memory().gradients.value, 0);
  EXPECT_EQ(engine->offload().value, 0);
  engine->onload();
  EXPECT_EQ(engine->memory().gradients, gradients);
  ASSERT_TRUE(engine->update_policy(share.pack.view(), policy_update(share, "vanilla")));
  ASSERT_TRUE(steady->update_policy(share.pack.view(), policy_update(share, "vanilla")));
  EXPECT_EQ(testing::all_weights(*engine), testing::all_weights(*steady));
}

TEST(GemmSelfTest, MeasuresARate) {
  const double rate = gemm_self_test();
  EXPECT_GT(rate, 0.01);
  EXPECT_LT(rate, 1e5);
}

}  // namespace
}  // namespace troupe::actors
