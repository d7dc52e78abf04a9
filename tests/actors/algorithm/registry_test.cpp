// Proves that registries are plain values: a program's own entry is found by name, a taken name
// is refused, and an unknown one is answered with the nearest.
#include "actors/algorithm/registry.hpp"

#include "actors/algorithm/advantage.hpp"
#include "actors/algorithm/policy_loss.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

TEST(Registry, FindsWhatAProgramAdded) {
  AdvantageRegistry registry = default_advantages();
  ASSERT_TRUE(registry
                  .add("mine",
                       [](const AdvantageInput& input, const AdvantageOptions&)
                           -> result<AdvantageOutput> {
                         AdvantageOutput output;
                         output.advantages.assign(input.tokens.tokens(), 2.5F);
                         return output;
                       })
                  .has_value());
  const std::uint8_t mask[] = {1, 1};
  const std::int64_t offsets[] = {0, 2};
  const AdvantageInput input{.tokens = {.offsets = offsets, .mask = mask}, .rewards = {}};
  EXPECT_THAT(registry.find("mine").value()(input, {}).value().advantages,
              ::testing::ElementsAre(2.5F, 2.5F));
  EXPECT_FALSE(default_advantages().contains("mine")) << "a registry is a value, not a global";
}

TEST(Registry, RefusesATakenOrEmptyName) {
  AdvantageRegistry registry = default_advantages();
  const auto again = registry.add("grpo", grpo_advantage);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(again.error().message, ::testing::HasSubstr("grpo"));
  EXPECT_EQ(registry.add("", grpo_advantage).error().code, ErrorCode::kInvalidArgument);
}

TEST(Registry, AnswersAnUnknownNameWithTheNearest) {
  const auto advantage = default_advantages().find("gropo");
  ASSERT_FALSE(advantage.has_value());
  EXPECT_EQ(advantage.error().code, ErrorCode::kConfig);
  EXPECT_THAT(advantage.error().message, ::testing::HasSubstr("did you mean 'grpo'"));
  EXPECT_THAT(default_policy_losses().find("vanila").error().message,
              ::testing::HasSubstr("did you mean 'vanilla'"));
  const auto far = default_policy_losses().find("something else altogether");
  EXPECT_THAT(far.error().message, ::testing::Not(::testing::HasSubstr("did you mean")));
  EXPECT_THAT(far.error().message, ::testing::HasSubstr("kl_cov"));
}

TEST(Registry, ListsItsNamesInOrder) {
  EXPECT_THAT(default_policy_losses().names(),
              ::testing::ElementsAre("aipo", "cispo", "clip_cov", "decoupled", "dppo_kl", "dppo_tv",
                                     "dro", "geo_mean", "gmpo", "gpg", "gspo", "icepop", "kl_cov",
                                     "mis", "sapo", "tis", "topr", "vanilla"));
  EXPECT_THAT(default_advantages().names(), ::testing::Contains("reinforce_plus_plus_baseline"));
  EXPECT_THAT(Registry<int>("x").find("y").error().message, ::testing::HasSubstr("none"));
}

}  // namespace
}  // namespace troupe::actors
