// Proves that what roles are asked with and made from travels whole: every member of each struct
// is given another value than its default, encoded, decoded and compared. A member that is added
// and forgotten shows in the byte-wise comparison of what was encoded twice.

#include "actors/roles/critic_worker.hpp"
#include "actors/roles/policy_worker.hpp"
#include "actors/roles/reward_worker.hpp"
#include "actors/roles/role_specs.hpp"
#include "actors/roles/rollout_worker.hpp"
#include "runtime/group/served_method.hpp"
#include "tests/support/tiny_model.hpp"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using runtime::decode_value;
using runtime::encode_value;

template <class T>
T there_and_back(const T& value) {
  const auto bytes = encode_value(value);
  EXPECT_TRUE(bytes.has_value()) << bytes.error().to_string();
  auto back = decode_value<T>(*bytes);
  EXPECT_TRUE(back.has_value()) << back.error().to_string();
  const auto again = encode_value(*back);
  EXPECT_EQ(*again, *bytes);
  return std::move(*back);
}

TEST(RoleWire, CarriesSamplingOptions) {
  const SamplingOptions options{.temperature = 0.3,
                                .top_p = 0.9,
                                .top_k = 7,
                                .min_p = 0.01,
                                .repetition_penalty = 1.1,
                                .frequency_penalty = 0.2,
                                .presence_penalty = -0.3,
                                .max_new_tokens = 5,
                                .stop_ids = {1, 2},
                                .stop_strings = {"a", "\xff"},
                                .ignore_eos = true,
                                .seed = ~std::uint64_t{0}};
  EXPECT_EQ(there_and_back(options), options);
}

TEST(RoleWire, CarriesWhatUpdatesAreAskedWith) {
  PolicyUpdateSettings settings{.loss = "gspo", .objective = {}, .temperature = 0.7F};
  settings.loss_scale_factor = 1.0 / 3.0;
  settings.objective = {
      .loss = {.aggregation = LossAggregation::kSeqMeanTokenMean,
               .clip_low = 0.1,
               .clip_high = 0.3,
               .clip_dual = 4,
               .clip_cov_ratio = 0.5,
               .clip_cov_low = 2,
               .clip_cov_high = 6,
               .kl_cov_ratio = 0.25,
               .kl_cov_coefficient = 0.125,
               .sapo_tau_positive = 2,
               .sapo_tau_negative = 3,
               .dro_beta = 0.4,
               .importance = {.level = RolloutWeightLevel::kGeometric, .low = 0.5, .high = 3},
               .seed = 99},
      .entropy_coefficient = 0.01,
      .kl_coefficient = 0.02,
      .kl = {.estimator = KlEstimator::kK1, .straight_through = true}};
  settings.cut = {
      .temperature = 0.5, .top_p = 0.9, .top_k = 4, .min_p = 0.1, .has_penalties = true};
  settings.correction = {.reads_rollout = true,
                         .in_loss = {.proximal = ProximalSource::kLogLinear,
                                     .rejections = {{.low = 0.5, .high = 2}},
                                     .veto_least = 1e-4},
                         .reports_ratios = true,
                         .interpolates = true,
                         .version_proximal = 7,
                         .version_policy = 7.5};
  const PolicyUpdateSettings back = there_and_back(settings);
  EXPECT_EQ(back.objective.loss.importance, settings.objective.loss.importance);
  EXPECT_EQ(back.cut, settings.cut);
  EXPECT_EQ(back.correction, settings.correction);
  EXPECT_EQ(back.loss, "gspo");
  EXPECT_EQ(back.temperature, 0.7F);
  EXPECT_EQ(back.loss_scale_factor, 1.0 / 3.0);
  EXPECT_EQ(back.objective.kl, settings.objective.kl);
  EXPECT_EQ(back.objective.loss.aggregation, LossAggregation::kSeqMeanTokenMean);
  EXPECT_EQ(back.objective.loss.dro_beta, 0.4);
  EXPECT_EQ(back.objective.loss.seed, 99U);

  const ValueUpdateSettings value{
      .options = {.aggregation = LossAggregation::kTokenSum, .clip = 0.25}, .loss_scale_factor = 2};
  EXPECT_EQ(there_and_back(value).options.clip, 0.25);
  const LogProbRequest request{
      .temperature = 0.5F, .column = "x", .compare = true, .cut = {.top_k = 3}};
  EXPECT_TRUE(there_and_back(request).compare);
  EXPECT_EQ(there_and_back(request).cut.top_k, 3);
}

TEST(RoleWire, CarriesSpecs) {
  TrainSpec train;
  train.model = {
      .config = "{}", .folder = "/m", .random = true, .seed = 5, .tokenizer_folder = "/t"};
  train.engine = {.head = ModelHead::kValue,
                  .trainable = false,
                  .optimizer = {.lr = 0.1,
                                .beta1 = 0.8,
                                .beta2 = 0.9,
                                .eps = 1e-3,
                                .weight_decay = 0.5,
                                .grad_norm_max = 2,
                                .schedule = LrSchedule::kCosine,
                                .warmup_steps = 3,
                                .total_steps = 9,
                                .lr_min_ratio = 0.2},
                  .recompute = true,
                  .micro_batch_tokens_max = 11,
                  .forward_tokens_max = 12,
                  .logit_chunk_tokens = 13,
                  .seed = 14,
                  .threads = 2,
                  .collective_timeout = std::chrono::seconds(15),
                  .parallel = {.tp = 2,
                               .pp = 3,
                               .virtual_stages = 4,
                               .sharding = Sharding::kFsdp,
                               .shard_ranks = 5,
                               .stage_layers = {6, 7}}};
  const TrainSpec back = there_and_back(train);
  EXPECT_EQ(back.engine.optimizer, train.engine.optimizer);
  EXPECT_EQ(back.engine.collective_timeout, train.engine.collective_timeout);
  EXPECT_EQ(back.engine.parallel, train.engine.parallel);
  EXPECT_EQ(back.model.tokenizer_folder, "/t");

  RolloutSpec rollout;
  rollout.engine.kv_bytes_max = mebibytes(3);
  rollout.engine.max_num_seqs = 4;
  rollout.engine.share_prompt = false;
  rollout.engine.weight_memory = WeightMemory::kInPlace;
  rollout.engine.tp_timeout = std::chrono::seconds(7);
  const RolloutSpec rolled = there_and_back(rollout);
  EXPECT_EQ(rolled.engine.kv_bytes_max, mebibytes(3));
  EXPECT_FALSE(rolled.engine.share_prompt);
  EXPECT_EQ(rolled.engine.weight_memory, WeightMemory::kInPlace);
  EXPECT_EQ(rolled.engine.tp_timeout, std::chrono::seconds(7));
}

TEST(RoleWire, ServesEveryMethodOfEveryRole) {
  const auto all_served = []<class W>(const W*) {
    for (const runtime::ServedMethod& method : runtime::served_methods<W>())
      EXPECT_NE(method.run, nullptr) << method.name;
  };
  all_served(static_cast<const PolicyWorker*>(nullptr));
  all_served(static_cast<const CriticWorker*>(nullptr));
  all_served(static_cast<const RolloutWorker*>(nullptr));
  all_served(static_cast<const RewardWorker*>(nullptr));
}

TEST(RoleSpecs, OpenTheModelOfTheControllerFromConfigAndSeed) {
  const ModelConfig model = testing::tiny_model(300);
  const ModelSource source{.config = model.to_json(), .random = true, .seed = 8};
  const auto opened = open_model(source);
  ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
  EXPECT_EQ(opened->config, model);
  const WeightSet wanted = random_weights(model, 8);
  ASSERT_EQ(opened->weights.tensors().size(), wanted.tensors().size());
  for (std::size_t i = 0; i < wanted.tensors().size(); ++i) {
    const auto& a = opened->weights.tensors()[i];
    const auto& b = wanted.tensors()[i];
    EXPECT_TRUE(std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end())) << a.name;
  }
}

TEST(RoleSpecs, SaySoWhenTheModelIsNotOnThisNode) {
  const ModelSource source{.config = testing::tiny_model(300).to_json(),
                           .folder = "/no/such/model"};
  const auto opened = open_model(source);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
  EXPECT_NE(opened.error().message.find("/no/such/model: no such folder on this node"),
            std::string::npos)
      << opened.error().message;
}

}  // namespace
}  // namespace troupe::actors
