// Proves that a world of replicas goes on without those that die, in threads: at every step of a
// publication, in a slice, in a generation; that survivors serve the right version, and that a
// replica which is made anew serves after the next publication, to the bit what others say. Also
// that an evaluator keeps its version, a reward group is made anew so many times and no more, and a
// publication that is refused leaves the old version serving.

#include "tests/support/streaming_world.hpp"

#include "tests/support/test_files.hpp"
#include "tests/support/tiny_world.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Failure;
using runtime::Metrics;
using runtime::task;
using runtime::value_or_throw;
using testing::finish_samples;
using testing::fresh_samples;
using testing::numbers;
using testing::said;

Error killed_by_test() {
  return {
      .code = ErrorCode::kRankDead, .message = "killed by the test", .origin = {}, .causes = {}};
}

class StreamingWorldTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::int64_t vocabulary = 0;
    ASSERT_NO_FATAL_FAILURE(testing::make_tokenizer(folder_.path(), tokenizer_, vocabulary));
    const ModelConfig model = testing::tiny_model(vocabulary);
    weights_.emplace(random_weights(model, 1));
    options_ = testing::streaming_options(model, *weights_, folder_.path().string(), 3);
    options_.trace = &strike_;
  }

  void make_world() {
    auto made =
        GroupWorld::create(make_local_place(system_, options_, *tokenizer_, rules_), options_);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    world_ = std::move(*made);
  }
  /// What ends a replica, from any thread; nothing is answered before its death is known.
  std::function<void()> blow_to(int replica) {
    return [group = &world_->replicas().group(replica)] { kill_group(*group); };
  }
  std::function<void()> blow_to_evaluator() {
    return [group = &world_->evaluator()->replicas().group(0)] {
      group->kill(RankId{0}, killed_by_test());
    };
  }
  template <class Group>
  static void kill_group(Group& group) {
    group.kill(RankId{0}, killed_by_test());
    wait_dead(group);
  }
  template <class Group>
  static void wait_dead(Group& group) {
    const Deadline until = Deadline::in(std::chrono::seconds(10));
    while (!group.dead_cause() && !until.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(group.dead_cause().has_value()) << group.name();
  }
  void kill(int replica) { kill_group(world_->replicas().group(replica)); }

  template <class T>
  T run(task<T> work) {
    auto outcome = executor_.run(std::move(work));
    EXPECT_TRUE(outcome.has_value()) << outcome.error().to_string();
    if constexpr (!std::is_void_v<T>) return outcome ? std::move(*outcome) : T();
  }
  std::vector<testing::Said> says(int replica, std::uint64_t first_attempt) {
    return said(run(
        finish_samples(*world_->streaming(), RankId{replica}, fresh_samples(3), first_attempt)));
  }
  /// Every serving replica says the same, all of it under `version`.
  void expect_all_say(const std::vector<int>& replicas, std::int64_t version) {
    testing::expect_all_say(*world_->streaming(), replicas, version, [this](int replica) {
      return says(replica, std::exchange(next_attempt_, next_attempt_ + 10));
    });
  }

  testing::TemporaryFolder folder_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<WeightSet> weights_;
  RewardRegistry rules_ = testing::odd_rewards();
  WorldOptions options_;
  testing::StrikeAt strike_;
  runtime::ActorSystem system_;
  std::unique_ptr<GroupWorld> world_;
  runtime::Executor executor_;
  std::uint64_t next_attempt_ = 1;
};

TEST_F(StreamingWorldTest, ServesAfterAPublicationOnlyAndTheSameEverywhere) {
  make_world();
  EXPECT_TRUE(world_->streaming()->replicas().empty());
  run(world_->weights().publish_present());
  expect_all_say({0, 1, 2}, 0);
  const ReplicaInfo first_one = world_->streaming()->replicas().front();
  EXPECT_EQ(first_one.samples_max, options_.rollout.max_num_seqs);
  EXPECT_GT(first_one.tokens_max, 0);
  EXPECT_FALSE(first_one.lent);
  run(testing::learn_something(*world_, testing::streaming_prompts(4)));
  const Metrics published = run(world_->weights().publish());
  EXPECT_EQ(published.value("rollout/replicas").value_or(0), 3);
  EXPECT_EQ(published.value("update_weights/attempts").value_or(0), 1);
  EXPECT_EQ(published.value("canary/replicas").value_or(0), 3);
  expect_all_say({0, 1, 2}, 1);
}

TEST_F(StreamingWorldTest, SharesTheTrainersDevicesAsWellAsItsOwn) {
  options_.devices = 2;
  options_.rollout_devices_own = 0;
  make_world();
  run(world_->weights().publish_present());
  expect_all_say({0, 1}, 0);
  run(testing::learn_something(*world_, testing::streaming_prompts(4)));
  run(world_->weights().publish());
  expect_all_say({0, 1}, 1);
  world_.reset();
  options_.rollout_devices_own = 1;
  options_.lend_trainer_devices = true;
  make_world();
  run(world_->weights().publish_present());
  expect_all_say({0, 1, 2}, 0);
  EXPECT_TRUE(world_->streaming()->replicas()[2].lent);
}

TEST_F(StreamingWorldTest, LosesAReplicaInASliceAndHasItBackAfterTheNextPublication) {
  make_world();
  run(world_->weights().publish_present());
  strike_.arm("rollout-1", "advance", 2, blow_to(1));
  const auto lost = executor_.run(
      finish_samples(*world_->streaming(), RankId{1}, fresh_samples(2), next_attempt_));
  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().code, ErrorCode::kRankDead) << lost.error().to_string();
  EXPECT_NE(lost.error().to_string().find("killed by the test"), std::string::npos);
  EXPECT_FALSE(world_->dead_cause().has_value());
  expect_all_say({0, 2}, 0);
  run(world_->streaming()->revive(RankId{1}));
  EXPECT_EQ(numbers(world_->streaming()->replicas()), (std::vector<int>{0, 2}));
  run(testing::learn_something(*world_, testing::streaming_prompts(4)));
  const Metrics published = run(world_->weights().publish());
  EXPECT_EQ(published.value("rollout/replicas_lost").value_or(-1), 1);
  EXPECT_EQ(published.value("rollout/replicas_revived").value_or(-1), 1);
  expect_all_say({0, 1, 2}, 1);
}

TEST_F(StreamingWorldTest, BringsOneThatWasMadeAnewUpToThePresentVersionAlone) {
  make_world();
  run(world_->weights().publish_present());
  run(testing::learn_something(*world_, testing::streaming_prompts(4)));
  run(world_->weights().publish());
  kill(2);
  expect_all_say({0, 1}, 1);
  run(world_->streaming()->revive(RankId{2}));
  run(world_->weights().publish_present(RankId{2}));
  expect_all_say({0, 1, 2}, 1);
  run(world_->weights().publish());
  expect_all_say({0, 1, 2}, 2);
}

/// A rank dies at the end of the n-th command of a publication at another replica, or at its own.
struct Blow {
  std::string group;
  int nth;
};
class PublicationDeathTest : public StreamingWorldTest,
                             public ::testing::WithParamInterface<Blow> {};

TEST_P(PublicationDeathTest, LeavesTheOthersWithTheNewVersion) {
  make_world();
  run(world_->weights().publish_present());
  run(testing::learn_something(*world_, testing::streaming_prompts(4)));
  strike_.arm(GetParam().group, "publication", GetParam().nth, blow_to(1));
  const auto published = executor_.run(world_->weights().publish());
  ASSERT_TRUE(published.has_value()) << published.error().to_string();
  ASSERT_TRUE(strike_.struck());
  EXPECT_EQ(world_->weights().version(), WeightVersion{1});
  EXPECT_EQ(published->value("rollout/replicas_lost").value_or(-1), 1);
  expect_all_say({0, 2}, 1);
  run(world_->streaming()->revive(RankId{1}));
  run(world_->weights().publish());
  expect_all_say({0, 1, 2}, 2);
}

INSTANTIATE_TEST_SUITE_P(Steps, PublicationDeathTest,
                         ::testing::Values(Blow{"policy", 1}, Blow{"rollout-0", 1},
                                           Blow{"rollout-1", 1}, Blow{"rollout-0", 2},
                                           Blow{"rollout-1", 2}, Blow{"rollout-1", 3}));

TEST_F(StreamingWorldTest, GoesOnAlsoWhenOneDiesBeforeAPublicationAndInItsCanary) {
  make_world();
  run(world_->weights().publish_present());
  kill(0);
  run(testing::learn_something(*world_, testing::streaming_prompts(4)));
  run(world_->weights().publish());
  expect_all_say({1, 2}, 1);
  strike_.arm("rollout-1", "publication", 3, blow_to(2));
  const Metrics published = run(world_->weights().publish());
  EXPECT_EQ(published.value("canary/replicas").value_or(-1), 1);
  expect_all_say({1}, 2);
}

TEST_F(StreamingWorldTest, EndsOnlyWhenAllAreLostAndBeginsAgainWithOne) {
  make_world();
  run(world_->weights().publish_present());
  for (int replica = 0; replica < 3; ++replica) kill(replica);
  EXPECT_TRUE(world_->streaming()->replicas().empty());
  ASSERT_TRUE(world_->dead_cause().has_value());
  const auto published = executor_.run(world_->weights().publish());
  ASSERT_FALSE(published.has_value());
  EXPECT_EQ(published.error().code, ErrorCode::kRankDead);
  EXPECT_EQ(world_->weights().version(), WeightVersion{0});
  run(world_->streaming()->revive(RankId{1}));
  EXPECT_FALSE(world_->dead_cause().has_value());
  run(world_->weights().publish_present());
  expect_all_say({1}, 0);
}

TEST_F(StreamingWorldTest, MakesAReplicaAnewSoManyTimesAndNoMore) {
  options_.revives_max = 1;
  make_world();
  run(world_->weights().publish_present());
  const auto early = executor_.run(world_->streaming()->revive(RankId{1}));
  ASSERT_FALSE(early.has_value());
  EXPECT_EQ(early.error().code, ErrorCode::kConflict);
  kill(1);
  run(world_->streaming()->revive(RankId{1}));
  kill(1);
  const auto again = executor_.run(world_->streaming()->revive(RankId{1}));
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kResourceExhausted) << again.error().to_string();
  EXPECT_NE(again.error().message.find("rollout-1"), std::string::npos);
}

std::vector<std::int32_t> tokens_of(const Batch& batch) {
  return batch.column(column::kResponses).values<std::int32_t>();
}

task<Batch> generated(GroupWorld& world, Batch prompts) {
  SamplingOptions sampling;
  sampling.max_new_tokens = 12;
  Batch batch = co_await world.rollout().generate(std::move(prompts), sampling);
  co_return value_or_throw(batch.resolve());
}

TEST_F(StreamingWorldTest, GeneratesTheRowsOfADyingReplicaOnTheOthers) {
  make_world();
  run(world_->weights().publish_present());
  const Batch whole = run(generated(*world_, testing::streaming_prompts(5)));
  strike_.arm("rollout-0", "generate", 1, [one = blow_to(1), other = blow_to(0)] {
    one();
    other();
  });
  const Batch torn = run(generated(*world_, testing::streaming_prompts(5)));
  ASSERT_EQ(torn.rows(), 10);
  EXPECT_EQ(tokens_of(torn), tokens_of(whole));
  EXPECT_EQ(torn.column(column::kRolloutLogProbs).values<float>(),
            whole.column(column::kRolloutLogProbs).values<float>());
}

task<Batch> evaluated(GroupEvaluator& evaluator) {
  SamplingOptions sampling;
  sampling.max_new_tokens = 12;
  Batch prompts = testing::streaming_prompts(3);
  Batch batch = co_await evaluator.generate(std::move(prompts), sampling);
  co_return value_or_throw(batch.resolve());
}

TEST_F(StreamingWorldTest, EvaluatesAVersionThatStaysWhileTrainingGoesOn) {
  options_.evaluation_devices = 1;
  make_world();
  ASSERT_NE(world_->evaluator(), nullptr);
  GroupEvaluator& evaluator = *world_->evaluator();
  run(world_->weights().publish_present());
  run(evaluator.publish());
  const Batch before = run(evaluated(evaluator));
  run(testing::learn_something(*world_, testing::streaming_prompts(4)));
  run(world_->weights().publish());
  expect_all_say({0, 1, 2}, 1);
  const Batch after = run(evaluated(evaluator));
  EXPECT_EQ(tokens_of(before), tokens_of(after));
  EXPECT_EQ(after.column(column::kVersions).values<std::int64_t>().front(), 0);
  run(world_->weights().publish());
  run(evaluator.publish());
  EXPECT_EQ(run(evaluated(evaluator)).column(column::kVersions).values<std::int64_t>().front(), 2);
  EXPECT_EQ(run(world_->weights().publish()).value("rollout/replicas").value_or(-1), 3);
}

TEST_F(StreamingWorldTest, MakesADeadEvaluatorAnewWithItsNextPublication) {
  options_.evaluation_devices = 1;
  make_world();
  GroupEvaluator& evaluator = *world_->evaluator();
  run(world_->weights().publish_present());
  run(evaluator.publish());
  const Batch before = run(evaluated(evaluator));
  strike_.arm("policy", "publication", 1, blow_to_evaluator());
  run(evaluator.publish());
  ASSERT_TRUE(strike_.struck());
  EXPECT_EQ(tokens_of(run(evaluated(evaluator))), tokens_of(before));
  EXPECT_FALSE(world_->dead_cause().has_value());
}

task<std::vector<float>> scores(GroupWorld& world, Batch batch) {
  Batch scored = co_await world.reward().score(std::move(batch));
  scored = value_or_throw(scored.resolve());
  co_return scored.column(column::kScores).values<float>();
}

TEST_F(StreamingWorldTest, MakesTheRewardGroupAnewAndSaysWhenItDiesTooOften) {
  options_.reward_remakes_max = 2;
  make_world();
  run(world_->weights().publish_present());
  const Batch batch = run(generated(*world_, testing::streaming_prompts(3)));
  const std::vector<float> first_scores = run(scores(*world_, batch));
  kill_group(world_->reward().group());
  EXPECT_FALSE(world_->dead_cause().has_value());
  EXPECT_EQ(run(scores(*world_, batch)), first_scores);
  strike_.arm("reward.2", "score", 1,
              [group = &world_->reward().group()] { group->kill(RankId{0}, killed_by_test()); });
  run(scores(*world_, batch));
  // Its death may have been met by that call already.
  if (world_->reward().remakes() == 1) wait_dead(world_->reward().group());
  EXPECT_EQ(run(scores(*world_, batch)), first_scores);
  EXPECT_EQ(world_->reward().remakes(), 2);
  kill_group(world_->reward().group());
  ASSERT_TRUE(world_->dead_cause().has_value());
  const auto dead = executor_.run(scores(*world_, batch));
  ASSERT_FALSE(dead.has_value());
  EXPECT_EQ(dead.error().code, ErrorCode::kRankDead) << dead.error().to_string();
  EXPECT_NE(dead.error().message.find("2 times"), std::string::npos) << dead.error().to_string();
}

/// A plan that nobody else has, behind the coordinator's back.
void put_out_of_step(RolloutReplicas::Group& group, const std::vector<int>& devices) {
  auto layouts = group.call<&RolloutWorker::weight_layout>().wait();
  ASSERT_TRUE(layouts.has_value()) << layouts.error().to_string();
  PublicationSetup setup;
  setup.bucket = mebibytes(1);
  for (reshard::Roster* roster : {&setup.source, &setup.target}) {
    roster->tensors = layouts->front().tensors;
    roster->ranks.clear();
    for (std::size_t rank = 0; rank < layouts->size(); ++rank) {
      roster->ranks.push_back((*layouts)[rank].layout);
      roster->ranks.back().rank = devices[rank];
    }
  }
  const auto opened = group.call<&RolloutWorker::open_publication>(setup).wait();
  ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
}

TEST_F(StreamingWorldTest, KeepsTheOldVersionServingWhenATargetRefuses) {
  make_world();
  run(world_->weights().publish_present());
  run(testing::learn_something(*world_, testing::streaming_prompts(4)));
  put_out_of_step(world_->replicas().group(1), world_->replicas().seat(1).devices);
  const auto refused = executor_.run(world_->weights().publish());
  ASSERT_FALSE(refused.has_value());
  const std::string text = refused.error().to_string();
  EXPECT_EQ(refused.error().root_cause().code, ErrorCode::kConflict) << text;
  EXPECT_NE(text.find("publication of version 1"), std::string::npos) << text;
  EXPECT_NE(text.find("target rank"), std::string::npos) << text;
  EXPECT_EQ(world_->weights().version(), WeightVersion{0});
  EXPECT_FALSE(world_->dead_cause().has_value());
  expect_all_say({0, 1, 2}, 0);
  run(world_->weights().publish());  // tells everybody the plan anew
  expect_all_say({0, 1, 2}, 1);
}

TEST_F(StreamingWorldTest, IsOneErrorOfTheSynchronousStepWhenATargetRefuses) {
  options_.streaming = false;
  options_.devices = 2;
  options_.rollout_devices_own = 2;
  make_world();
  run(world_->weights().publish_present());
  const Batch before = run(generated(*world_, testing::streaming_prompts(3)));
  strike_.arm("policy", "update", 1, [this] {
    put_out_of_step(world_->replicas().group(0), world_->replicas().seat(0).devices);
  });
  const auto step = executor_.run(testing::run_steps(*world_, testing::streaming_prompts(3), 1, 1));
  ASSERT_FALSE(step.has_value());
  const std::string text = step.error().to_string();
  EXPECT_EQ(step.error().root_cause().code, ErrorCode::kConflict) << text;
  EXPECT_NE(text.find("publication of version 1"), std::string::npos) << text;
  EXPECT_EQ(world_->weights().version(), WeightVersion{0});
  const Batch after = run(generated(*world_, testing::streaming_prompts(3)));
  EXPECT_EQ(tokens_of(before), tokens_of(after));
  EXPECT_EQ(after.column(column::kVersions).values<std::int64_t>().front(), 0);
}

}  // namespace
}  // namespace troupe::actors
