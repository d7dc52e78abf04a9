// Proves that a program in a sandbox can be an environment: what it is asked, that its state goes
// round as JSON, and that bad answers and endless turns fail that sample only.

#include "actors/environment/command_environment.hpp"

#include "tests/actors/environment/environment_case.hpp"

#include <gmock/gmock.h>

namespace troupe::actors {
namespace {

/// The guessing game again, by somebody else; responses may tell it to misbehave.
constexpr const char* kGame = R"(
import json, sys, time
for line in sys.stdin:
    row = json.loads(line)
    count = 0 if row["turn"] == 1 else row["state"]["count"]
    said = row["response"]
    if said == "??":
        time.sleep(1000)
    if said == "?":
        print("no json", flush=True)
        continue
    guess, secret = int(said), int(row["ground_truth"])
    if guess == secret:
        answer = {"done": True, "score": 1 - 0.25 * count}
    else:
        answer = {"text": "<" if secret < guess else ">", "state": {"count": count + 1}}
    print(json.dumps(answer), flush=True)
)";

EnvironmentRegistry with_game() {
  SandboxOptions options;
  options.name = "game";
  options.command = {"/usr/bin/python3", "-c", kGame};
  options.workers = 2;
  options.limits.sample_wall = std::chrono::milliseconds(1500);
  auto game = make_command_environment(options);
  EXPECT_TRUE(game.has_value()) << game.error().to_string();
  EnvironmentRegistry registry;
  if (game) {
    EXPECT_TRUE(registry.add_batch("game", *std::move(game)).has_value());
  }
  return registry;
}

TEST(CommandEnvironment, PlaysAGameWithStateThatComesBack) {
  const Tokenizer tokenizer = few_characters();
  const EnvironmentRegistry environments = with_game();
  EnvironmentServer server = server_of(tokenizer, environments);
  std::vector<std::byte> state;
  for (const auto& [guess, said] :
       std::vector<std::pair<std::string, std::string>>{{"5", ">"}, {"9", "<"}}) {
    const std::vector<EnvironmentTurn> turns{turn_of(tokenizer, guess, state, "game")};
    const auto answers = server.turn(turns);
    ASSERT_TRUE(answers.has_value()) << answers.error().to_string();
    EXPECT_EQ(tokenizer.decode(answers->front().tokens), said);
    state = answers->front().state;
  }
  const std::vector<EnvironmentTurn> turns{turn_of(tokenizer, "7", state, "game")};
  const auto last = server.turn(turns);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->front().score, 0.5);
}

TEST(CommandEnvironment, BadAnswersAndEndlessTurnsFailTheirOwnSample) {
  const Tokenizer tokenizer = few_characters();
  const EnvironmentRegistry environments = with_game();
  EnvironmentServer server = server_of(tokenizer, environments, {.retries_max = 0});
  // The first call also warms the sandbox up.
  std::vector<EnvironmentTurn> turns{turn_of(tokenizer, "5", {}, "game")};
  ASSERT_TRUE(server.turn(turns).has_value());
  turns = {turn_of(tokenizer, "5", {}, "game"), turn_of(tokenizer, "?", {}, "game"),
           turn_of(tokenizer, "??", {}, "game"), turn_of(tokenizer, "7", {}, "game")};
  const auto answers = server.turn(turns);
  ASSERT_TRUE(answers.has_value()) << answers.error().to_string();
  EXPECT_FALSE((*answers)[0].done);
  EXPECT_TRUE((*answers)[1].failure.starts_with("answer in ")) << (*answers)[1].failure;
  EXPECT_TRUE((*answers)[2].failure.starts_with("wall_time in ")) << (*answers)[2].failure;
  EXPECT_EQ((*answers)[3].score, 1.0);
  EXPECT_EQ(server.take_metrics().value("environment/failed"), 2);
}

}  // namespace
}  // namespace troupe::actors
