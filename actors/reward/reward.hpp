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
// A rule that is better asked about many answers at once, such as a command in a sandbox
// (command_reward.hpp), is a batch rule: `add_batch`. It may give an answer up: what that means for
// the sample is in the outcome, and every such answer is counted by its reason.
//
// Ownership: a registry is a value that owns its rules.
// **Threads:** `score` is const and may be called from many threads when the rules are pure, as
// all rules of this folder are; `add` and `replace` need exclusive access.
// **Invariants:** a score is finite; an unknown data source is an error, never a silent 0.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
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
  std::string_view prompt{};      ///< decoded, special tokens included; empty where nobody asks
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

/// What a batch rule makes of one answer.
struct RewardOutcome {
  RewardScore score{};
  std::string failure{};  ///< empty: scored; else why not, one word; then `score` is a stand-in
  bool dropped = false;   ///< given up: the sample's group must not be trained on

  bool operator==(const RewardOutcome&) const = default;
};

/// One outcome an input, in order; an error when the rule itself fails. Ends by `deadline`.
using BatchRewardFunction =
    std::function<result<std::vector<RewardOutcome>>(std::span<const RewardInput>, Deadline)>;

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

  /// Registers a rule that takes many answers at once; names as for `add`.
  result<void> add_batch(std::string name, BatchRewardFunction rule);

  /// True when some rule covers `data_source`. Exact names win over prefixes, long prefixes over
  /// short ones.
  bool covers(std::string_view data_source) const { return find(data_source) != nullptr; }

  /// True when `data_source` has a batch rule: those want prompts.
  bool is_batch(std::string_view data_source) const;
  /// True when any batch rule is registered.
  bool any_batch() const;

  /// Applies the rule of `input.data_source`. kNotFound lists the known names;
  /// kInvalidArgument when the rule returned NaN or infinity; kAborted when a batch rule drops it.
  result<RewardScore> score(const RewardInput& input) const;

  /// Applies the rule registered as `name`, whatever the row's data source is.
  result<RewardScore> score_as(std::string_view name, const RewardInput& input) const;

  /// All inputs, each by the rule of its source, or all by `rule` when that is named: rules of one
  /// answer in turn, batch rules once with all that is theirs. Errors name the first input.
  /// kDeadline once `deadline` has passed between two answers.
  result<std::vector<RewardOutcome>> score_all(std::span<const RewardInput> inputs,
                                               Deadline deadline, std::string_view rule = {},
                                               std::int64_t first_row = 0) const;

  /// Registered names in order.
  std::vector<std::string> names() const;

 private:
  struct Rule {
    RewardFunction one;
    BatchRewardFunction many;  // instead of `one`
  };
  result<void> insert(std::string name, RewardFunction rule, bool overwrite);
  result<void> insert_rule(std::string name, Rule rule, bool overwrite);
  const Rule* find(std::string_view data_source) const;
  result<const Rule*> find_named(std::string_view name) const;

  std::map<std::string, Rule, std::less<>> rules_;
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
///   `troupe/guess`                                0: its environment scores what ends
RewardRegistry default_rewards(const DefaultRewardOptions& options = {});

}  // namespace troupe::actors
