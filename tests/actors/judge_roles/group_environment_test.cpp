// Proves that environments scale over ranks and outlive them: turns are dealt to ranks that are
// free, a slow turn holds up only its own rank, a rank that dies costs its calls and is made anew,
// and when none may be made any more the cause is told.

#include "actors/roles/group_environment.hpp"

#include "actors/environment/guess_environment.hpp"
#include "runtime/base/check.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/task/executor.hpp"
#include "tests/actors/environment/environment_case.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

namespace troupe::actors {
namespace {

using runtime::ActorSystem;
using runtime::WorkerContext;

/// Waits at a door when told to; dies when told to.
struct Doorman {
  std::atomic<bool>* open;
  std::atomic<int>* inside;
  result<std::string> reset(const EnvironmentRow&) const { return std::string("0"); }
  result<EnvironmentStep> step(const EnvironmentInput& input) const {
    TROUPE_CHECK(input.response != "9", "told to die");
    if (input.response == "1") {
      ++*inside;
      while (!open->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      --*inside;
    }
    return EnvironmentStep{.text = "<", .state = "1", .done = false, .score = {}};
  }
};

struct Stage {
  explicit Stage(int ranks, int remakes_max = 2) {
    EXPECT_TRUE(environments.add("door", Doorman{&open, &inside}).has_value());
    auto made = GroupEnvironment::create(
        [this](int seat, const GroupMaking& making) {
          ++groups_made;
          runtime::GroupOptions options;
          options.name = group_name("environment-" + std::to_string(seat), making.generation);
          options.mesh = runtime::Mesh::data_parallel(1);
          options.collectives = false;
          options.create_deadline = making.within;
          return GroupEnvironment::Group::create(system, options, [this](WorkerContext& context) {
            return EnvironmentWorker::create(context, tokenizer, environments, {});
          });
        },
        {.ranks = ranks, .remakes_max = remakes_max});
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    environment = std::move(made).value();
  }
  EnvironmentTurn turn(const std::string& response, const std::string& source = "door") {
    return turn_of(tokenizer, response, {}, source);
  }

  Tokenizer tokenizer = few_characters();
  EnvironmentRegistry environments = default_environments();
  std::atomic<bool> open{false};
  std::atomic<int> inside{0};
  std::atomic<int> groups_made{0};
  ActorSystem system;
  runtime::Executor executor;
  std::unique_ptr<GroupEnvironment> environment;
};

TEST(GroupEnvironment, IsTheRoleThatLoopsWant) { static_assert(EnvironmentRole<GroupEnvironment>); }

TEST(GroupEnvironment, DealsTurnsOverItsRanksAndKeepsTheirOrder) {
  Stage stage(3);
  std::vector<EnvironmentTurn> turns;
  for (int guess = 0; guess < 10; ++guess)
    turns.push_back(stage.turn(std::to_string(guess), "troupe/guess"));
  const auto answers = stage.executor.run(stage.environment->turn(turns));
  ASSERT_TRUE(answers.has_value()) << answers.error().to_string();
  ASSERT_EQ(answers->size(), 10U);
  for (int guess = 0; guess < 10; ++guess) {
    const EnvironmentAnswer& one = (*answers)[static_cast<std::size_t>(guess)];
    EXPECT_EQ(one.done, guess == 7);
    if (one.done) continue;
    EXPECT_EQ(stage.tokenizer.decode(one.tokens), guess < 7 ? ">" : "<");
  }
  EXPECT_EQ(stage.environment->take_metrics().value("environment/turns"), 10);
}

TEST(GroupEnvironment, ASlowTurnHoldsUpItsOwnRankOnly) {
  Stage stage(2);
  auto slow = stage.executor.spawn(stage.environment->turn({stage.turn("1")}));
  while (stage.inside.load() == 0) stage.executor.run_for(std::chrono::milliseconds(1));
  for (int i = 0; i < 5; ++i) {
    const auto quick = stage.executor.run(stage.environment->turn({stage.turn("2")}));
    ASSERT_TRUE(quick.has_value()) << quick.error().to_string();
  }
  EXPECT_FALSE(slow.ready());
  stage.open = true;
  while (!slow.ready()) stage.executor.run_for(std::chrono::milliseconds(1));
}

TEST(GroupEnvironment, ARankThatDiesCostsItsCallsAndIsMadeAnew) {
  Stage stage(2);
  const auto died = stage.executor.run(stage.environment->turn({stage.turn("9")}));
  ASSERT_FALSE(died.has_value());
  EXPECT_THAT(died.error().to_string(), ::testing::HasSubstr("told to die"));
  for (int i = 0; i < 4; ++i) {
    const auto after =
        stage.executor.run(stage.environment->turn({stage.turn("2"), stage.turn("3")}));
    ASSERT_TRUE(after.has_value()) << after.error().to_string();
  }
  EXPECT_EQ(stage.environment->remakes(), 1);
  const auto again = [&stage] {
    return stage.executor.run(stage.environment->turn({stage.turn("2"), stage.turn("3")}));
  };
  while (stage.groups_made.load() < 3) ASSERT_TRUE(again().has_value());
  EXPECT_FALSE(stage.environment->dead_cause().has_value());
}

TEST(GroupEnvironment, WhenNoRankMayBeMadeAnyMoreTheCauseIsTold) {
  Stage stage(1, 1);
  for (int i = 0; i < 2; ++i)
    EXPECT_FALSE(stage.executor.run(stage.environment->turn({stage.turn("9")})).has_value());
  const auto dead = stage.executor.run(stage.environment->turn({stage.turn("2")}));
  ASSERT_FALSE(dead.has_value());
  EXPECT_EQ(dead.error().code, ErrorCode::kRankDead) << dead.error().to_string();
  EXPECT_THAT(dead.error().to_string(), ::testing::HasSubstr("told to die"));
  ASSERT_TRUE(stage.environment->dead_cause().has_value());
}

TEST(GroupEnvironment, AnEnvironmentsErrorLeavesItsRankAlive) {
  Stage stage(1);
  const auto unknown = stage.executor.run(stage.environment->turn({stage.turn("1", "nowhere")}));
  ASSERT_FALSE(unknown.has_value());
  EXPECT_THAT(unknown.error().to_string(), ::testing::HasSubstr("no environment for 'nowhere'"));
  EXPECT_TRUE(stage.executor.run(stage.environment->turn({stage.turn("2")})).has_value());
  EXPECT_EQ(stage.environment->remakes(), 0);
}

}  // namespace
}  // namespace troupe::actors
