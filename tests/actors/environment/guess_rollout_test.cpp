// Proves that a multi-turn sample of the real engine is a value: turn by turn, the environment's
// tokens are masked, have no version and are never tokenised again; and a sample that is cut at
// random tokens, sent as bytes and resumed by another engine and another environment server is bit
// for bit the one that was never cut.

#include "actors/environment/environment_server.hpp"
#include "actors/environment/guess_environment.hpp"
#include "actors/pacing/trajectory.hpp"
#include "actors/pacing/trajectory_codec.hpp"
#include "tests/actors/environment/environment_case.hpp"
#include "tests/actors/rollout/engine_case.hpp"

#include <gmock/gmock.h>

namespace troupe::actors {
namespace {

constexpr std::int32_t kEnd = 2;  // <|im_end|>

struct Stage {
  Tokenizer tokenizer = few_characters();
  EnvironmentRegistry environments = default_environments();
  ModelConfig config = [this] {
    ModelConfig made = tiny_config();
    made.vocab_size = tokenizer.vocab_size();
    return made;
  }();
  WeightSet weights = weights_for(config, 11);

  std::unique_ptr<RolloutEngine> engine() const { return engine_for(config, weights); }
  EnvironmentServer server() const { return server_of(tokenizer, environments, {.turns_max = 5}); }
  Trajectory begin(std::uint32_t sample) const {
    SamplingOptions sampling;
    sampling.max_new_tokens = 48;
    sampling.stop_ids = {kEnd};
    sampling.seed = 99;
    return Trajectory::begin(3, 5, sample, WeightVersion{1}, tokenizer.encode("guess 0-9:"),
                             sampling);
  }
};

/// Plays a sample to its end. `cut`: how many tokens a piece has at most, drawn anew each time;
/// between pieces the sample travels as bytes to a fresh engine and a fresh server.
Trajectory play(const Stage& stage, std::uint32_t sample, Rng* cuts) {
  Trajectory one = stage.begin(sample);
  auto engine = stage.engine();
  auto server = std::make_unique<EnvironmentServer>(stage.server());
  for (;;) {
    auto request = one.resume_request().value();
    const std::int64_t left = one.budget_left();
    if (cuts != nullptr) {
      const auto had = static_cast<std::int32_t>(request.prefixes.front().tokens.size());
      const auto more = static_cast<std::int32_t>(1 + cuts->below(3));
      request.sampling.max_new_tokens = std::min(request.sampling.max_new_tokens, had + more);
    }
    GeneratedSequence answer = generate_all(*engine, {request}).front();
    const bool cut = answer.reason == StopReason::kLength &&
                     request.sampling.max_new_tokens !=
                         one.sampling.max_new_tokens - static_cast<std::int32_t>(one.turn_begin);
    if (cut) answer.reason = StopReason::kAborted;
    EXPECT_TRUE(one.absorb(answer).has_value());
    EXPECT_LE(one.budget_left(), left);
    if (cuts != nullptr) {
      const auto bytes = encode_trajectories({&one, 1});
      one = decode_trajectories(bytes.value()).value().front();
      engine = stage.engine();
      server = std::make_unique<EnvironmentServer>(stage.server());
    }
    if (cut) continue;
    const std::vector<EnvironmentTurn> turns{
        {.group = one.group,
         .sample_index = one.sample_index,
         .response = {one.tokens.begin() + one.turn_begin, one.tokens.end()},
         .state = one.environment,
         .row = prompt_row(stage.tokenizer, "guess 0-9:", "troupe/guess", "7")}};
    const EnvironmentAnswer said = server->turn(turns).value().front();
    if (said.done) {
      one.score = said.score;
      return one;
    }
    if (static_cast<std::int64_t>(said.tokens.size()) >= one.budget_left()) return one;
    EXPECT_TRUE(one.append_environment(said.tokens, said.state).has_value());
  }
}

TEST(GuessRollout, ToolTokensAreMaskedAndHistoryIsNeverTokenisedAgain) {
  const Stage stage;
  std::int64_t environment_tokens = 0;
  for (std::uint32_t sample = 0; sample < 8; ++sample) {
    const Trajectory one = play(stage, sample, nullptr);
    ASSERT_TRUE(one.check().has_value()) << one.check().error().to_string();
    for (std::size_t i = 0; i < one.tokens.size(); ++i) {
      const bool sampled = one.versions[i] != kNoVersion;
      EXPECT_EQ(one.mask[i], sampled ? 1 : 0);
      if (sampled) continue;
      ++environment_tokens;
      EXPECT_THAT(stage.tokenizer.decode(std::vector<std::int32_t>{one.tokens[i]}),
                  ::testing::AnyOf("<", ">", "?"));
      EXPECT_TRUE(i > 0 && one.tokens[i - 1] == kEnd) << "it spoke when the turn was over";
    }
  }
  EXPECT_GT(environment_tokens, 0) << "some sample had a second turn";
}

TEST(GuessRollout, ASampleCutAnywhereAndResumedAnywhereIsTheSameSample) {
  const Stage stage;
  const std::uint64_t seed = 20;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng cuts(seed);
  for (std::uint32_t sample = 0; sample < 6; ++sample) {
    const Trajectory whole = play(stage, sample, nullptr);
    const Trajectory pieces = play(stage, sample, &cuts);
    EXPECT_EQ(pieces.tokens, whole.tokens);
    EXPECT_EQ(bits_of(pieces.log_probs), bits_of(whole.log_probs));
    EXPECT_EQ(bits_of(pieces.full_log_probs), bits_of(whole.full_log_probs));
    EXPECT_EQ(pieces.mask, whole.mask);
    EXPECT_EQ(pieces.environment, whole.environment);
    EXPECT_EQ(pieces.score, whole.score);
  }
}

}  // namespace
}  // namespace troupe::actors
