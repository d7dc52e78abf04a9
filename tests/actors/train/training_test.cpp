// Proves that training as a whole works: many steps equal torch::optim::AdamW on a plain model,
// state saved and loaded continues with the same bits, supervised training overfits, a critic
// fits its returns; and that no step depends on the number of ranks.
#include "tests/actors/decoder/plain_decoder.hpp"
#include "tests/actors/train/engine_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <algorithm>

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;
using testing::make_engine;
using testing::on_ranks;
using testing::policy_update;
using testing::Sample;
using testing::Share;
using testing::share_of;

ModelConfig tiny(std::size_t index = 0) { return testing::tiny_models()[index].config; }

std::vector<Sample> samples_for(const ModelConfig& config, int count = 10, std::uint64_t seed = 5) {
  Rng rng(seed);
  // What is to be learnt by heart must not ask for two answers to one question.
  return testing::random_samples(rng, count, config.vocab_size, testing::Prompts::kOwn);
}

TrainEngineOptions learning(double lr = 1e-2) {
  TrainEngineOptions options;
  options.optimizer.lr = lr;
  options.micro_batch_tokens_max = 64;
  return options;
}

TEST(Training, ManySftStepsEqualTorchAdamWOnAPlainModel) {
  const ModelConfig config = tiny(2);  // has biases, which are not decayed
  const std::vector<Sample> samples = samples_for(config, 6);
  const Share share = share_of(samples, 0, 1);
  TrainEngineOptions options = learning(3e-3);
  options.optimizer.weight_decay = 0.1;
  options.optimizer.grad_norm_max = 0.5;
  const auto engine = make_engine(config, options);

  const WeightSet weights = testing::tiny_weights(config, 31);
  testing::PlainDecoder plain(config, weights.tensors());
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> vectors;
  for (const NamedTensor& tensor : weights.tensors())
    (tensor.shape.size() > 1 ? matrices : vectors).push_back(plain.weight(tensor.name));
  std::vector<at::Tensor> all = matrices;
  all.insert(all.end(), vectors.begin(), vectors.end());
  using torch::optim::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices,
                      std::make_unique<AdamWOptions>(AdamWOptions(3e-3).weight_decay(0.1)));
  groups.emplace_back(vectors,
                      std::make_unique<AdamWOptions>(AdamWOptions(3e-3).weight_decay(0.0)));
  torch::optim::AdamW adamw(groups, AdamWOptions(3e-3));

  double tokens = 0;
  for (const Sample& s : samples)
    for (const std::uint8_t chosen : s.mask) tokens += chosen;
  for (int step = 0; step < 12; ++step) {
    adamw.zero_grad();
    at::Tensor loss = torch::zeros({}, torch::kFloat64);
    for (const Sample& s : samples) {
      std::vector<std::int32_t> ids = s.prompt;
      ids.insert(ids.end(), s.response.begin(), s.response.end());
      const at::Tensor log_probs = plain.logits(ids).log_softmax(-1);
      for (std::size_t t = 0; t < s.response.size(); ++t)
        if (s.mask[t] != 0)
          loss =
              loss -
              log_probs[static_cast<std::int64_t>(s.prompt.size() + t) - 1][s.response[t]] / tokens;
    }
    loss.backward();
    const double norm = torch::nn::utils::clip_grad_norm_(all, 0.5);
    adamw.step();
    const auto metrics = engine->update_sft(share.pack.view(), share.mask).value();
    EXPECT_NEAR(*metrics.value("train/loss"), loss.item<double>(), 1e-4);
    EXPECT_NEAR(*metrics.value("train/grad_norm"), norm, 1e-3 * norm);
  }
  double worst = 0;
  for (const NamedTensor& tensor : engine->weights()) {
    const at::Tensor wanted = plain.weight(tensor.name).detach().contiguous();
    for (std::size_t i = 0; i < tensor.data.size(); ++i)
      worst = std::max(
          worst, std::abs(static_cast<double>(tensor.data[i]) - wanted.data_ptr<double>()[i]));
  }
  // Twelve steps of 3e-3 move a weight by up to 3.6e-2; Adam amplifies rounding of tiny gradients.
  EXPECT_LT(worst, 1e-3);
}

TEST(Training, StateSavedAndLoadedContinuesWithTheSameBits) {
  const ModelConfig config = tiny(6);
  TrainEngineOptions options = learning();
  options.optimizer.schedule = LrSchedule::kCosine;
  options.optimizer.warmup_steps = 2;
  options.optimizer.total_steps = 10;
  const Share share = share_of(samples_for(config), 0, 1);
  const auto train = [&](TrainEngine& engine, int steps) {
    for (int i = 0; i < steps; ++i)
      ASSERT_TRUE(engine.update_policy(share.pack.view(), policy_update(share, "clip_cov")));
  };
  const auto whole = make_engine(config, options);
  train(*whole, 7);

  const auto first = make_engine(config, options);
  train(*first, 3);
  const TrainState state = first->state();
  const auto second = make_engine(config, options, nullptr, 99);  // other weights at first
  ASSERT_TRUE(second->load_state(state.json, state.tensors));
  EXPECT_EQ(second->optimizer_steps(), 3);
  train(*second, 4);
  EXPECT_EQ(testing::all_weights(*second), testing::all_weights(*whole));
  const TrainState a = second->state();
  const TrainState b = whole->state();
  EXPECT_EQ(a.json, b.json);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].name, b.tensors[i].name);
    EXPECT_TRUE(std::ranges::equal(a.tensors[i].data, b.tensors[i].data)) << a.tensors[i].name;
  }
}

TEST(Training, ABrokenStateChangesNothing) {
  const ModelConfig config = tiny();
  const auto source = make_engine(config, learning());
  const Share share = share_of(samples_for(config), 0, 1);
  ASSERT_TRUE(source->update_sft(share.pack.view()));
  const TrainState good = source->state();
  const auto engine = make_engine(config, learning());
  const std::vector<float> before = testing::all_weights(*engine);
  const auto refuse = [&](const std::string& json, std::vector<NamedTensor> tensors, ErrorCode code,
                          const std::string& place) {
    const auto done = engine->load_state(json, tensors);
    ASSERT_FALSE(done) << place;
    EXPECT_EQ(done.error().code, code) << done.error().to_string();
    EXPECT_THAT(done.error().message, HasSubstr(place));
    EXPECT_EQ(testing::all_weights(*engine), before);
    EXPECT_EQ(engine->optimizer_steps(), 0);
  };
  refuse("{", good.tensors, ErrorCode::kCorrupt, "JSON");
  refuse("[]", good.tensors, ErrorCode::kCorrupt, "JSON");
  refuse("{\"format\":1}", good.tensors, ErrorCode::kCorrupt, "optimizer_steps");
  refuse("{\"format\":99}", good.tensors, ErrorCode::kUnsupported, "99");
  refuse("{\"format\":1,\"optimizer_steps\":-1,\"has_optimizer\":true}", good.tensors,
         ErrorCode::kCorrupt, "-1");
  refuse("{\"format\":1,\"optimizer_steps\":1.5,\"has_optimizer\":true}", good.tensors,
         ErrorCode::kCorrupt, "optimizer_steps");
  refuse("{\"format\":1,\"optimizer_steps\":1,\"has_optimizer\":false}", good.tensors,
         ErrorCode::kConflict, "has_optimizer");
  for (const std::size_t index : {std::size_t{0}, good.tensors.size() - 1}) {
    std::vector<NamedTensor> tensors = good.tensors;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(index));
    refuse(good.json, tensors, ErrorCode::kNotFound, good.tensors[index].name);
    tensors = good.tensors;
    tensors[index].shape.push_back(1);
    refuse(good.json, tensors, ErrorCode::kConflict, good.tensors[index].name);
    tensors = good.tensors;
    tensors[index].data = tensors[index].data.first(1);
    refuse(good.json, tensors, ErrorCode::kConflict, good.tensors[index].name);
    tensors = good.tensors;
    tensors.push_back(tensors[index]);
    refuse(good.json, tensors, ErrorCode::kCorrupt, good.tensors[index].name);
  }
}

TEST(Training, SupervisedTrainingOverfitsASmallSet) {
  const ModelConfig config = tiny();
  const Share share = share_of(samples_for(config, 6), 0, 1);
  TrainEngineOptions options = learning(1e-2);
  options.optimizer.weight_decay = 0;
  const auto engine = make_engine(config, options);
  const double before = engine->sft_loss(share.pack.view()).value();
  for (int step = 0; step < 150; ++step) ASSERT_TRUE(engine->update_sft(share.pack.view()));
  const double after = engine->sft_loss(share.pack.view()).value();
  EXPECT_GT(before, 2.0);
  EXPECT_LT(after, 0.05);
}

TEST(Training, SupervisedStepsDoNotDependOnTheRanks) {
  const ModelConfig config = tiny(1);
  const std::vector<Sample> samples = samples_for(config);
  const Share whole = share_of(samples, 0, 1);
  TrainEngineOptions options = learning(1e-3);
  options.optimizer.eps = 1e-3;  // tame Adam's amplification of rounding in tiny gradients
  const auto single = make_engine(config, options);
  for (int step = 0; step < 3; ++step)
    ASSERT_TRUE(single->update_sft(whole.pack.view(), whole.mask));
  const double loss = single->sft_loss(whole.pack.view(), whole.mask).value();
  on_ranks(3, [&](int rank, runtime::Collective& collective) {
    const auto engine = make_engine(config, options, &collective);
    const Share share = share_of(samples, rank, 3);
    for (int step = 0; step < 3; ++step)
      ASSERT_TRUE(engine->update_sft(share.pack.view(), share.mask));
    const std::vector<float> got = testing::all_weights(*engine);
    const std::vector<float> wanted = testing::all_weights(*single);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 2e-6F);
    EXPECT_NEAR(engine->sft_loss(share.pack.view(), share.mask).value(), loss, 1e-5);
  });
}

TEST(Training, ACriticFitsItsReturnsOnAnyNumberOfRanks) {
  const ModelConfig config = tiny();
  const std::vector<Sample> samples = samples_for(config, 8);
  TrainEngineOptions options = learning(1e-2);
  options.head = ModelHead::kValue;
  const auto train = [&](runtime::Collective* collective, int rank, int ranks) {
    const auto engine = make_engine(config, options, collective);
    const Share share = share_of(samples, rank, ranks);
    std::vector<double> losses;
    for (int step = 0; step < 60; ++step) {
      const std::vector<float> old = engine->values(share.pack.view()).value();
      if (step == 0) {
        EXPECT_TRUE(std::ranges::all_of(old, [](float v) { return v == 0.0F; }));
      }
      ValueUpdate update{.returns = share.returns, .old_values = old, .mask = share.mask};
      const auto metrics = engine->update_value(share.pack.view(), update).value();
      if (metrics.value("critic/vf_loss")) losses.push_back(*metrics.value("critic/vf_loss"));
    }
    return losses;
  };
  const std::vector<double> losses = train(nullptr, 0, 1);
  EXPECT_LT(losses.back(), 0.2 * losses.front());
  on_ranks(2, [&](int rank, runtime::Collective& collective) {
    const std::vector<double> mine = train(&collective, rank, 2);
    EXPECT_LT(mine.back(), 0.5 * mine.front());
  });
}

TEST(Training, ValueGradientsDoNotDependOnTheRanks) {
  const ModelConfig config = tiny();
  const std::vector<Sample> samples = samples_for(config, 9);
  TrainEngineOptions options = testing::gradient_options();
  options.head = ModelHead::kValue;
  const auto gradient = [&config, &samples](const TrainEngineOptions& chosen,
                                            runtime::Collective* collective, int rank, int ranks) {
    const auto engine = make_engine(config, chosen, collective);
    const Share share = share_of(samples, rank, ranks);
    const std::vector<float> old(share.returns.size(), 0.1F);
    EXPECT_TRUE(engine->update_value(share.pack.view(), {.returns = share.returns,
                                                         .old_values = old,
                                                         .mask = share.mask,
                                                         .options = {.clip = 0.05}}));
    return testing::gradient_of(*engine);
  };
  const std::vector<double> wanted = gradient(options, nullptr, 0, 1);
  options.micro_batch_tokens_max = 30;
  on_ranks(3, [&](int rank, runtime::Collective& collective) {
    EXPECT_LT(testing::relative_error(gradient(options, &collective, rank, 3), wanted), 1e-5);
  });
}

TEST(Training, PublishedWeightsBuildAnEqualEngine) {
  const ModelConfig config = tiny(5);
  const auto trained = make_engine(config, learning());
  const Share share = share_of(samples_for(config), 0, 1);
  ASSERT_TRUE(trained->update_sft(share.pack.view()));
  TrainEngineOptions frozen = learning();
  frozen.trainable = false;
  const auto copy = TrainEngine::create(config, trained->weights(), frozen).value();
  EXPECT_EQ(copy->log_probs(share.pack.view(), 1.0F)->log_probs,
            trained->log_probs(share.pack.view(), 1.0F)->log_probs);
  const auto other = make_engine(config, frozen, nullptr, 77);
  ASSERT_TRUE(other->set_weights(trained->weights()));
  EXPECT_EQ(other->log_probs(share.pack.view(), 1.0F)->log_probs,
            trained->log_probs(share.pack.view(), 1.0F)->log_probs);
}

}  // namespace
}  // namespace troupe::actors
