// Proves that a policy and a critic over worker groups learn the same from parts as at once, on
// several layouts of four devices; that publications between parts read the weights of the step's
// start; and that an abandoned step can be done again.

#include "tests/actors/roles_sharded/sharded_case.hpp"

namespace troupe::actors {
namespace {

using namespace testing;

/// A scored batch with advantages and returns, as loops make it.
runtime::task<Batch> scored_batch(GroupWorld& world) {
  co_await world.weights().publish_present();
  SamplingOptions sampling;
  sampling.max_new_tokens = 12;
  sampling.seed = 77;
  Batch numbered = value_or_throw(number_samples(sharded_prompts(), 4));
  Batch batch = co_await world.rollout().generate(std::move(numbered), std::move(sampling));
  Batch scores = co_await world.reward().score(batch);
  value_or_throw(batch.merge(scores));
  Batch old = co_await world.policy().log_probs(batch);
  value_or_throw(batch.merge(old));
  Batch values = co_await world.critic()->values(batch);
  value_or_throw(batch.merge(values));
  AdvantageStepOptions options;
  options.estimator = *default_advantages().find("gae");
  options.keep_returns = true;
  AdvantageStep advantage(std::move(options));
  Batch advantages = value_or_throw(advantage(batch));
  value_or_throw(batch.merge(advantages));
  co_return batch;
}

struct Learned {
  std::vector<float> weights;
  std::vector<float> values;  // of the critic, after its update
  runtime::Metrics metrics;
};

std::vector<float> flat(const WeightSet& weights) {
  std::vector<float> out;
  for (const NamedTensor& tensor : weights.tensors())
    out.insert(out.end(), tensor.data.begin(), tensor.data.end());
  return out;
}

runtime::task<Learned> end_of(GroupWorld& world, Batch batch, runtime::Metrics metrics) {
  Learned learned{.weights = {}, .values = {}, .metrics = std::move(metrics)};
  const WeightSet weights = co_await world.policy_weights();
  learned.weights = flat(weights);
  Batch values = co_await world.critic()->values(std::move(batch));
  values = value_or_throw(values.resolve());
  learned.values = values.column(column::kValues).values<float>();
  co_return learned;
}

runtime::task<Learned> learn_at_once(GroupWorld& world) {
  Batch batch = co_await scored_batch(world);
  runtime::Metrics metrics = co_await world.critic()->update(batch);
  runtime::Metrics actor = co_await world.policy().update(batch);
  value_or_throw(metrics.merge(actor));
  co_return co_await end_of(world, std::move(batch), std::move(metrics));
}

runtime::task<Learned> learn_in_parts(GroupWorld& world) {
  Batch batch = co_await scored_batch(world);
  const WeightSet before = co_await world.policy_weights();
  co_await world.policy().accumulate(batch.split(3)[1]);
  co_await world.policy().abandon_step();
  runtime::Metrics metrics;
  for (const Batch& part : batch.split(3)) {
    runtime::Metrics critic = co_await world.critic()->accumulate(part);
    value_or_throw(metrics.merge(critic));
    runtime::Metrics actor = co_await world.policy().accumulate(part);
    value_or_throw(metrics.merge(actor));
    co_await world.weights().publish_present();
    const WeightSet now = co_await world.policy_weights();
    EXPECT_EQ(flat(now), flat(before));
  }
  runtime::Metrics critic = co_await world.critic()->finish_step();
  value_or_throw(metrics.merge(critic));
  runtime::Metrics actor = co_await world.policy().finish_step();
  value_or_throw(metrics.merge(actor));
  EXPECT_EQ(world.policy().updates(), 1);
  co_return co_await end_of(world, std::move(batch), std::move(metrics));
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

using StreamedRolesTest = ShardedCase;

TEST_F(StreamedRolesTest, LearnTheSameFromPartsAsAtOnce) {
  runtime::Executor executor;
  for (const Layout& layout : train_layouts()) {
    SCOPED_TRACE(layout.name);
    WorldOptions wanted = options(layout);
    wanted.policy.plan = {.rows = 24, .epochs = 1, .shuffle = false, .seed = 3};
    wanted.critic = wanted.policy;
    wanted.critic->engine.head = ModelHead::kValue;
    const auto run = [&](auto learn) -> result<Learned> {
      TROUPE_TRY(auto world, local_world(wanted));
      return executor.run(learn(*world));
    };
    const auto once = run(learn_at_once);
    ASSERT_TRUE(once.has_value()) << once.error().to_string();
    const auto parts = run(learn_in_parts);
    ASSERT_TRUE(parts.has_value()) << parts.error().to_string();
    EXPECT_LT(largest_difference(parts->weights, once->weights), 0.01 * kLearningRate);
    EXPECT_LT(largest_difference(parts->values, once->values), 1e-4);
    for (const auto& [name, entry] : once->metrics) {
      if (name.ends_with("_batches")) continue;
      ASSERT_TRUE(parts->metrics.value(name)) << name;
      EXPECT_NEAR(*parts->metrics.value(name), *entry.value(),
                  1e-5 * (1 + std::abs(*entry.value())))
          << name;
    }
  }
}

}  // namespace
}  // namespace troupe::actors
