// Adds an advantage estimator and a reward rule of one's own, each one function registered by
// name, and runs both on a small group of answers.
#include "actors/algorithm/advantage.hpp"
#include "actors/algorithm/group_scores.hpp"
#include "actors/algorithm/reward_shaping.hpp"
#include "actors/reward/reward.hpp"

#include <cstdio>

using namespace troupe;
using namespace troupe::actors;

/// +1 for an answer above its group's mean, -1 below: robust to wild reward scales.
result<AdvantageOutput> sign_advantage(const AdvantageInput& input, const AdvantageOptions&) {
  const std::vector<double> scores = sequence_scores(input.tokens, input.rewards);
  TROUPE_TRY(const SequenceGroups groups, SequenceGroups::make(input.tokens));
  AdvantageOutput output;
  output.advantages.assign(input.tokens.tokens(), 0.0F);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    double mean = 0;
    for (const std::size_t row : groups.rows(g))
      mean += scores[row] / static_cast<double>(groups.rows(g).size());
    for (const std::size_t row : groups.rows(g))
      for (std::size_t t = input.tokens.begin(row); t < input.tokens.end(row); ++t)
        if (input.tokens.mask[t] != 0 && scores[row] != mean)
          output.advantages[t] = scores[row] > mean ? 1.0F : -1.0F;
  }
  output.returns = output.advantages;
  return output;
}

int main() {
  RewardRegistry rewards = default_rewards();
  AdvantageRegistry advantages = default_advantages();
  if (!rewards.add("my/terse", [](const RewardInput& answer) {
        const bool right = answer.solution.find(answer.ground_truth) != std::string_view::npos;
        return (right ? 1.0 : 0.0) - 0.01 * static_cast<double>(answer.solution.size());
      }) || !advantages.add("sign", sign_advantage))
    return 1;

  // Four answers to one prompt; a letter stands for a token.
  const std::vector<std::string> answers = {"4", "five", "the answer is 4", "4!"};
  std::vector<float> scores;
  std::vector<std::int64_t> offsets = {0};
  for (const std::string& answer : answers) {
    const auto score = rewards.score({"my/terse", answer, "4", "{}"});
    if (!score) return std::fprintf(stderr, "%s\n", score.error().to_string().c_str()), 1;
    scores.push_back(static_cast<float>(score->score));
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(answer.size()));
  }
  const std::vector<std::uint8_t> mask(static_cast<std::size_t>(offsets.back()), 1);
  const std::vector<std::int64_t> groups(answers.size(), 7);
  const TokenBatchView batch{.offsets = offsets, .mask = mask, .groups = groups};
  const auto output = advantages.find("sign").value()(
      {.tokens = batch, .rewards = place_rewards(batch, scores).value().rewards}, {});
  for (std::size_t i = 0; output && i < answers.size(); ++i)
    std::printf("%-16s reward %5.2f  advantage %+.0f\n", answers[i].c_str(), double{scores[i]},
                double{output->advantages[batch.begin(i)]});
  return output ? 0 : 1;
}
