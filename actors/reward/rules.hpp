#pragma once

// The built-in reward rules, as plain functions over texts.
//
// **Threads:** pure functions; any thread.
// **Invariants:** no text makes a rule fail, hang or overflow: what cannot be read as an answer
// scores 0 and sets the extra `no_answer` to 1. `acc` is 1 exactly for right answers.
// **Cost:** linear in the length of the solution.

#include "actors/reward/reward.hpp"

#include <string_view>

namespace troupe::actors {

/// Grade-school sums: 1 when the number the solution ends on equals the reference number, else 0.
///
/// The answer is what the last marker says, `#### x` or a closed `\boxed{x}`; without one, the
/// last number of the text. `1,234.50`, `$1234.5`, `2469/2`, `\frac{2469}{2}` and `1234 1/2 kg`
/// are one number; `50%` is 50. The reference is read in the same way.
RewardScore gsm8k_reward(std::string_view solution, std::string_view ground_truth);

/// Competition mathematics: compares the last `\boxed{…}`, `#### …` or "answer is …" with the
/// reference after normalising LaTeX (see normalise_math). A reference with a box is unwrapped.
RewardScore math_reward(std::string_view solution, std::string_view ground_truth);

/// 1 when both texts are equal after trimming white space at the ends, else 0.
RewardScore exact_match_reward(std::string_view solution, std::string_view ground_truth);

struct SequenceRewardOptions {
  /// The share of positions that are right (of the longer sequence) instead of 0 for wrong ones.
  bool partial_credit = false;
};

/// Compares words separated by white space, for sort, reverse, copy and chain-sum.
RewardScore sequence_reward(std::string_view solution, std::string_view ground_truth,
                            const SequenceRewardOptions& options = {});

struct CountdownRewardOptions {
  /// For an expression that is well formed and uses only numbers it may, but misses the target.
  double format_score = 0.0;
};

/// The ground truth is JSON, `{"numbers": [3, 5, 7], "target": 22}`; the solution an expression
/// over + - * / and parentheses that uses each number at most once and equals the target in exact
/// rational arithmetic. Text inside the last `<answer>…</answer>` is taken where there is one, and
/// `= target` may follow the expression.
/// kCorrupt when the ground truth is not such an object: that is a fault of the data, not of the
/// answer.
result<RewardScore> countdown_reward(std::string_view solution, std::string_view ground_truth,
                                     const CountdownRewardOptions& options = {});

}  // namespace troupe::actors
