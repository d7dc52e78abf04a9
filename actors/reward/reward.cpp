#include "actors/reward/reward.hpp"

#include "actors/reward/rules.hpp"

#include <cmath>

namespace troupe::actors {
namespace {

bool is_prefix(std::string_view name) { return name.ends_with('*'); }

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

result<void> RewardRegistry::insert(std::string name, RewardFunction rule, bool overwrite) {
  if (name.empty() || name == "*")
    return fail(ErrorCode::kInvalidArgument, "reward registry: name '{}', wanted a data source",
                name);
  if (!rule)
    return fail(ErrorCode::kInvalidArgument, "reward registry: {}: the rule is empty", name);
  if (!overwrite && rules_.contains(name))
    return fail(ErrorCode::kAlreadyExists, "reward registry: {} has a rule already", name);
  rules_.insert_or_assign(std::move(name), std::move(rule));
  return {};
}

const RewardFunction* RewardRegistry::find(std::string_view data_source) const {
  const auto exact = rules_.find(data_source);
  if (exact != rules_.end() && !is_prefix(exact->first)) return &exact->second;
  const RewardFunction* best = nullptr;
  std::size_t best_length = 0;
  for (const auto& [name, rule] : rules_) {
    if (!is_prefix(name) || name.size() < best_length) continue;
    if (data_source.starts_with(std::string_view(name).substr(0, name.size() - 1))) {
      best = &rule;
      best_length = name.size();
    }
  }
  return best;
}

result<RewardScore> RewardRegistry::score(const RewardInput& input) const {
  return score_as(input.data_source, input);
}

result<RewardScore> RewardRegistry::score_as(std::string_view name,
                                             const RewardInput& input) const {
  const RewardFunction* rule = find(name);
  if (rule == nullptr)
    return fail(ErrorCode::kNotFound, "reward: no rule for data source '{}' (known: {})", name,
                joined(names()));
  TROUPE_TRY(RewardScore score, (*rule)(input));
  if (!std::isfinite(score.score))
    return fail(ErrorCode::kInvalidArgument,
                "reward: rule of '{}' returned {}, wanted a finite score", name, score.score);
  return score;
}

std::vector<std::string> RewardRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& entry : rules_) names.push_back(entry.first);
  return names;
}

RewardRegistry default_rewards(const DefaultRewardOptions& options) {
  RewardRegistry registry;
  const auto add = [&registry](std::string_view name, const RewardFunction& rule) {
    // Names below are distinct, so this cannot fail.
    (void)registry.replace(std::string(name), rule);
  };
  const RewardFunction gsm8k = [](const RewardInput& input) {
    return gsm8k_reward(input.solution, input.ground_truth);
  };
  const RewardFunction math = [](const RewardInput& input) {
    return math_reward(input.solution, input.ground_truth);
  };
  const RewardFunction sequence = [options](const RewardInput& input) {
    return sequence_reward(input.solution, input.ground_truth,
                           {.partial_credit = options.partial_credit});
  };
  const RewardFunction countdown = [options](const RewardInput& input) {
    return countdown_reward(input.solution, input.ground_truth,
                            {.format_score = options.partial_credit ? 0.1 : 0.0});
  };
  for (const char* name : {"gsm8k", "openai/gsm8k"}) add(name, gsm8k);
  for (const char* name : {"math", "lighteval/MATH*", "DigitalLearningGmbH/MATH*",
                           "HuggingFaceH4/MATH*", "math_dapo*", "aime*"})
    add(name, math);
  add("exact_match", [](const RewardInput& input) {
    return exact_match_reward(input.solution, input.ground_truth);
  });
  for (const char* name : {"troupe/sort", "troupe/reverse", "troupe/copy", "troupe/chain-sum"})
    add(name, sequence);
  for (const char* name : {"countdown", "troupe/countdown"}) add(name, countdown);
  return registry;
}

}  // namespace troupe::actors
