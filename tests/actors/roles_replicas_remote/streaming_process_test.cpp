// Proves across processes what streaming_world_test.cpp proves in threads, with real signals: a
// rollout process that is killed in a slice or at each step of a publication, or stopped, and a
// reward process that is killed. The survivors go on with the right version, and who is made anew
// says the same to the bit. Rank processes are children of this binary.

#include "tests/support/process_job.hpp"
#include "tests/support/streaming_world.hpp"
#include "tests/support/test_files.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::task;
using runtime::value_or_throw;
using testing::finish_samples;
using testing::fresh_samples;
using testing::said;

class StreamingProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto vocabulary = write_byte_level_tokenizer(folder_.path());
    ASSERT_TRUE(vocabulary.has_value());
    const ModelConfig model = testing::tiny_model(*vocabulary);
    weights_.emplace(random_weights(model, 1));
    options_ = testing::streaming_options(model, *weights_, folder_.path().string(), 3);
    options_.trace = &strike_;
    ASSERT_NO_FATAL_FAILURE(job_.open(system_));
    auto made = job_.world(options_);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    world_ = std::move(*made);
    run(world_->weights().publish_present());
  }

  template <class T>
  T run(task<T> work) {
    auto outcome = executor_.run(std::move(work));
    EXPECT_TRUE(outcome.has_value()) << outcome.error().to_string();
    if constexpr (!std::is_void_v<T>) return outcome ? std::move(*outcome) : T();
  }
  std::function<void()> blow_to(const std::string& group, int number = SIGKILL) {
    return [this, group, number] { EXPECT_TRUE(job_.signal(group, 0, number)) << group; };
  }
  /// Every serving replica says the same, all of it under `version`.
  void expect_all_say(const std::vector<int>& replicas, std::int64_t version) {
    testing::expect_all_say(*world_->streaming(), replicas, version, [this](int replica) {
      return said(run(finish_samples(*world_->streaming(), RankId{replica}, fresh_samples(3),
                                     std::exchange(next_attempt_, next_attempt_ + 10))));
    });
  }

  testing::TemporaryFolder folder_;
  std::optional<WeightSet> weights_;
  WorldOptions options_;
  testing::StrikeAt strike_;
  runtime::ActorSystem system_;
  testing::ProcessJob job_;
  std::unique_ptr<GroupWorld> world_;
  runtime::Executor executor_;
  std::uint64_t next_attempt_ = 1;
};

TEST_F(StreamingProcessTest, LosesAProcessInASliceAndAtEachStepOfAPublication) {
  expect_all_say({0, 1, 2}, 0);
  strike_.arm("rollout-1", "advance", 2, blow_to("rollout-1"));
  const auto lost = executor_.run(
      finish_samples(*world_->streaming(), RankId{1}, fresh_samples(2), next_attempt_));
  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().code, ErrorCode::kRankDead) << lost.error().to_string();
  EXPECT_NE(lost.error().to_string().find("rollout-1"), std::string::npos);
  expect_all_say({0, 2}, 0);

  struct Blow {
    const char* group;
    int nth;
  };
  std::int64_t version = 0;
  std::string name = "rollout-1";
  for (const Blow blow : {Blow{"policy", 1}, Blow{"rollout-0", 2}, Blow{"rollout-0", 3}}) {
    name = group_name("rollout-1", world_->replicas().generation(1) + 1);
    run(world_->streaming()->revive(RankId{1}));
    run(world_->weights().publish());
    expect_all_say({0, 1, 2}, ++version);
    run(testing::learn_something(*world_, testing::streaming_prompts(4)));
    strike_.arm(blow.group, "publication", blow.nth, blow_to(name));
    run(world_->weights().publish());
    ASSERT_TRUE(strike_.struck());
    EXPECT_EQ(world_->weights().version(), WeightVersion{++version});
    // A kill at the last step may be noticed only with the next call.
    const Deadline until = Deadline::in(std::chrono::seconds(10));
    while (world_->streaming()->replicas().size() == 3 && !until.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    expect_all_say({0, 2}, version);
  }
  EXPECT_FALSE(world_->dead_cause().has_value());
}

TEST_F(StreamingProcessTest, GoesOnWithoutAProcessThatIsStopped) {
  run(testing::learn_something(*world_, testing::streaming_prompts(4)));
  strike_.arm("policy", "publication", 1, blow_to("rollout-2", SIGSTOP));
  run(world_->weights().publish());
  ASSERT_TRUE(strike_.struck());
  const Deadline until = Deadline::in(std::chrono::seconds(10));
  while (world_->streaming()->replicas().size() == 3 && !until.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  expect_all_say({0, 1}, 1);
  run(world_->streaming()->revive(RankId{2}));
  run(world_->weights().publish_present(RankId{2}));
  expect_all_say({0, 1, 2}, 1);
}

task<std::vector<float>> scores(GroupWorld& world, Batch batch) {
  Batch scored = co_await world.reward().score(std::move(batch));
  scored = value_or_throw(scored.resolve());
  co_return scored.column(column::kScores).values<float>();
}

TEST_F(StreamingProcessTest, ScoresAgainWhenTheRewardProcessIsKilled) {
  SamplingOptions sampling;
  sampling.max_new_tokens = 12;
  const Batch batch =
      run(world_->rollout().generate(testing::streaming_prompts(3), std::move(sampling)));
  const std::vector<float> first_scores = run(scores(*world_, batch));
  strike_.arm("reward", "score", 1, blow_to("reward"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(scores(*world_, batch)), first_scores);
  ASSERT_TRUE(strike_.struck());
  const Deadline until = Deadline::in(std::chrono::seconds(10));
  while (world_->reward().remakes() == 0 && !until.passed())
    EXPECT_EQ(run(scores(*world_, batch)), first_scores);
  EXPECT_EQ(world_->reward().remakes(), 1);
  EXPECT_FALSE(world_->dead_cause().has_value());
}

}  // namespace
}  // namespace troupe::actors

int main(int count, char** words) { return troupe::testing::run_as_rank_or_tests(count, words); }
