#include "actors/reward/reward.hpp"

#include "actors/reward/rules.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

bool is_prefix(std::string_view name) { return name.ends_with('*'); }

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

result<RewardScore> finite(std::string_view name, RewardScore score) {
  if (!std::isfinite(score.score))
    return fail(ErrorCode::kInvalidArgument,
                "reward: rule of '{}' returned {}, wanted a finite score", name, score.score);
  return score;
}

}  // namespace

result<void> RewardRegistry::insert(std::string name, RewardFunction rule, bool overwrite) {
  return insert_rule(std::move(name), {.one = std::move(rule), .many = {}}, overwrite);
}

result<void> RewardRegistry::add_batch(std::string name, BatchRewardFunction rule) {
  return insert_rule(std::move(name), {.one = {}, .many = std::move(rule)}, false);
}

result<void> RewardRegistry::insert_rule(std::string name, Rule rule, bool overwrite) {
  if (name.empty() || name == "*")
    return fail(ErrorCode::kInvalidArgument, "reward registry: name '{}', wanted a data source",
                name);
  if (!rule.one && !rule.many)
    return fail(ErrorCode::kInvalidArgument, "reward registry: {}: the rule is empty", name);
  if (!overwrite && rules_.contains(name))
    return fail(ErrorCode::kAlreadyExists, "reward registry: {} has a rule already", name);
  rules_.insert_or_assign(std::move(name), std::move(rule));
  return {};
}

const RewardRegistry::Rule* RewardRegistry::find(std::string_view data_source) const {
  const auto exact = rules_.find(data_source);
  if (exact != rules_.end() && !is_prefix(exact->first)) return &exact->second;
  const Rule* best = nullptr;
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

result<const RewardRegistry::Rule*> RewardRegistry::find_named(std::string_view name) const {
  const Rule* rule = find(name);
  if (rule == nullptr)
    return fail(ErrorCode::kNotFound, "reward: no rule for data source '{}' (known: {})", name,
                joined(names()));
  return rule;
}

bool RewardRegistry::is_batch(std::string_view data_source) const {
  const Rule* rule = find(data_source);
  return rule != nullptr && rule->many;
}

bool RewardRegistry::any_batch() const {
  return std::any_of(rules_.begin(), rules_.end(),
                     [](const auto& entry) { return static_cast<bool>(entry.second.many); });
}

result<RewardScore> RewardRegistry::score(const RewardInput& input) const {
  return score_as(input.data_source, input);
}

result<RewardScore> RewardRegistry::score_as(std::string_view name,
                                             const RewardInput& input) const {
  TROUPE_TRY(const Rule* rule, find_named(name));
  if (rule->one) {
    TROUPE_TRY(RewardScore score, rule->one(input));
    return finite(name, std::move(score));
  }
  TROUPE_TRY(std::vector<RewardOutcome> outcomes,
             score_all({&input, 1}, Deadline::by_default(), name));
  if (outcomes.front().dropped)
    return fail(ErrorCode::kAborted, "reward: rule of '{}' gave the answer up: {}", name,
                outcomes.front().failure);
  return std::move(outcomes.front().score);
}

result<std::vector<RewardOutcome>> RewardRegistry::score_all(std::span<const RewardInput> inputs,
                                                             Deadline deadline,
                                                             std::string_view rule,
                                                             std::int64_t first_row) const {
  std::vector<RewardOutcome> outcomes(inputs.size());
  std::map<const Rule*, std::vector<std::size_t>> batches;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string_view name = rule.empty() ? inputs[i].data_source : rule;
    const Rule* found = find(name);
    if (found != nullptr && found->many) {
      batches[found].push_back(i);
      continue;
    }
    const auto place = [row = first_row + static_cast<std::int64_t>(i), name] {
      return fmt::format("reward: row {} ({})", row, name);
    };
    if (deadline.passed())
      return fail(ErrorCode::kDeadline, "{}: deadline passed before it was scored", place());
    result<RewardScore> score = score_as(name, inputs[i]);
    if (!score) return fail(std::move(score).error().wrap(ErrorCode::kInvalidArgument, place()));
    outcomes[i].score = *std::move(score);
  }
  for (const auto& [many, rows] : batches) {
    std::vector<RewardInput> own;
    for (const std::size_t row : rows) own.push_back(inputs[row]);
    TROUPE_TRY(std::vector<RewardOutcome> made, many->many(own, deadline));
    if (made.size() != rows.size())
      return fail(ErrorCode::kConflict, "reward: row {} ({}): {} outcomes for {} answers",
                  first_row + static_cast<std::int64_t>(rows.front()),
                  rule.empty() ? own.front().data_source : rule, made.size(), rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      TROUPE_TRY_VOID(finite(own[i].data_source, made[i].score));
      outcomes[rows[i]] = std::move(made[i]);
    }
  }
  return outcomes;
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
  for (const char* name : {"gsm8k", "openai/gsm8k", "troupe/worded-sum"}) add(name, gsm8k);
  for (const char* name : {"math", "lighteval/MATH*", "DigitalLearningGmbH/MATH*",
                           "HuggingFaceH4/MATH*", "math_dapo*", "aime*"})
    add(name, math);
  add("exact_match", [](const RewardInput& input) {
    return exact_match_reward(input.solution, input.ground_truth);
  });
  for (const char* name : {"troupe/sort", "troupe/reverse", "troupe/copy", "troupe/chain-sum"})
    add(name, sequence);
  for (const char* name : {"countdown", "troupe/countdown"}) add(name, countdown);
  // Its environment scores episodes that end; one that was cut short had not found the number.
  add("troupe/guess", [](const RewardInput&) {
    return RewardScore{.score = 0.0, .extras = {{"acc", 0.0}}, .answer = {}};
  });
  return registry;
}

}  // namespace troupe::actors
