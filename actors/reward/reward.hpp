#pragma once

// The reward vocabulary: what a rule is given, what it returns, and the registry that finds the
// rule of a row by its data source.
//
// A rule is a plain function of (data source, solution, ground truth, extra info), as verl's
// `compute_score` is. A program registers its own in a registry that it owns; nothing is global:
//
//     RewardRegistry rewards = default_rewards();
//     rewards.add("my/brevity", [](const RewardInput& input) {
//       return input.solution.size() < 80 ? 1.0 : 0.0;
//     });
//
// Ownership: a registry is a value that owns its rules.
// **Threads:** `score` is const and may be called from many threads when the rules are pure, as
// all rules of this folder are; `add` and `replace` need exclusive access.
// **Invariants:** a score is finite; an unknown data source is an error, never a silent 0.

#include "runtime/base/result.hpp"

#include <concepts>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::actors {

/// One finished answer, with what is known about its prompt. Views live as long as the call.
struct RewardInput {
  std::string_view data_source;   ///< e.g. `openai/gsm8k`
  std::string_view solution;      ///< decoded response, without special tokens
  std::string_view ground_truth;  ///< text; JSON text where the row holds an object
  std::string_view extra_info;    ///< JSON object text of the row; may be empty
};

/// `score` lands on the last response token; every entry of `extras` becomes a metric.
/// The entry `acc` (0 or 1: is the answer right) is present in every score of a built-in rule,
/// also where partial credit makes `score` a fraction.
struct RewardScore {
  double score = 0.0;
  std::map<std::string, double> extras;
  std::string answer;  ///< what the rule read as the answer; for samples shown to people

  bool operator==(const RewardScore&) const = default;
};

using RewardFunction = std::function<result<RewardScore>(const RewardInput&)>;

/// What a rule may return: a number, a truth value, a RewardScore, or a result of the last.
template <class Rule>
concept RewardRule = std::invocable<const Rule&, const RewardInput&> &&
    (std::is_arithmetic_v<std::invoke_result_t<const Rule&, const RewardInput&>> ||
     std::is_convertible_v<std::invoke_result_t<const Rule&, const RewardInput&>,
                           result<RewardScore>>);

/// Wraps any RewardRule as a RewardFunction.
template <RewardRule Rule>
RewardFunction make_reward(Rule rule) {
  using Returned = std::invoke_result_t<const Rule&, const RewardInput&>;
  if constexpr (std::is_arithmetic_v<Returned>) {
    return [rule = std::move(rule)](const RewardInput& input) -> result<RewardScore> {
      return RewardScore{.score = static_cast<double>(rule(input)), .extras = {}, .answer = {}};
    };
  } else {
    return RewardFunction(std::move(rule));
  }
}

class RewardRegistry {
 public:
  /// Registers a rule. `name` is a data source, or a prefix of data sources ending in `*`.
  /// kAlreadyExists when the name is taken; kInvalidArgument when it is empty.
  template <RewardRule Rule>
  result<void> add(std::string name, Rule rule) {
    return insert(std::move(name), make_reward(std::move(rule)), false);
  }

  /// Like `add`, but overwrites an earlier rule of that name.
  template <RewardRule Rule>
  result<void> replace(std::string name, Rule rule) {
    return insert(std::move(name), make_reward(std::move(rule)), true);
  }

  /// True when some rule covers `data_source`. Exact names win over prefixes, long prefixes over
  /// short ones.
  bool covers(std::string_view data_source) const { return find(data_source) != nullptr; }

  /// Applies the rule of `input.data_source`. kNotFound lists the known names;
  /// kInvalidArgument when the rule returned NaN or infinity.
  result<RewardScore> score(const RewardInput& input) const;

  /// Applies the rule registered as `name`, whatever the row's data source is.
  result<RewardScore> score_as(std::string_view name, const RewardInput& input) const;

  /// Registered names in order.
  std::vector<std::string> names() const;

 private:
  result<void> insert(std::string name, RewardFunction rule, bool overwrite);
  const RewardFunction* find(std::string_view data_source) const;

  std::map<std::string, RewardFunction, std::less<>> rules_;
};

struct DefaultRewardOptions {
  bool partial_credit = false;  ///< the `troupe/…` tasks give fractions for nearly right answers
};

/// The built-in rules:
///   `openai/gsm8k`, `gsm8k`                       gsm8k_reward
///   `math`, `lighteval/MATH*`, `DigitalLearningGmbH/MATH*`, `HuggingFaceH4/MATH*`,
///   `math_dapo*`, `aime*`                         math_reward
///   `exact_match`                                 exact_match_reward
///   `troupe/sort`, `troupe/reverse`, `troupe/copy`, `troupe/chain-sum`   sequence_reward
///   `troupe/countdown`, `countdown`               countdown_reward
RewardRegistry default_rewards(const DefaultRewardOptions& options = {});

}  // namespace troupe::actors
