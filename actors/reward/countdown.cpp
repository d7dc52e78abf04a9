#include "actors/reward/answer_text.hpp"
#include "actors/reward/expression.hpp"
#include "actors/reward/rules.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

struct CountdownTruth {
  std::vector<std::int64_t> numbers;
  std::int64_t target = 0;
};

result<CountdownTruth> read_truth(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("numbers") || !json.contains("target") ||
      !json["numbers"].is_array() || !json["target"].is_number_integer())
    return fail(ErrorCode::kCorrupt,
                "countdown: ground truth {}, wanted an object of numbers and target",
                text.substr(0, 80));
  CountdownTruth truth{.numbers = {}, .target = json["target"].get<std::int64_t>()};
  for (const auto& number : json["numbers"]) {
    if (!number.is_number_integer())
      return fail(ErrorCode::kCorrupt, "countdown: ground truth: number {}, wanted an integer",
                  number.dump());
    truth.numbers.push_back(number.get<std::int64_t>());
  }
  return truth;
}

/// True when every literal can be taken from what is available, each occurrence once.
bool uses_only(const std::vector<std::int64_t>& literals, std::vector<std::int64_t> available) {
  return std::all_of(literals.begin(), literals.end(), [&available](std::int64_t literal) {
    const auto found = std::find(available.begin(), available.end(), literal);
    if (found == available.end()) return false;
    available.erase(found);
    return true;
  });
}

/// The expression without a trailing `= target`; empty when another value is claimed.
std::string_view without_claim(std::string_view text, std::int64_t target) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return text;
  const auto claimed = parse_number(text.substr(equals + 1));
  const bool right = claimed && claimed->rational && claimed->rational == Rational::make(target);
  return right ? text.substr(0, equals) : std::string_view{};
}

}  // namespace

result<RewardScore> countdown_reward(std::string_view solution, std::string_view ground_truth,
                                     const CountdownRewardOptions& options) {
  TROUPE_TRY(const CountdownTruth truth, read_truth(ground_truth));
  const auto tagged = last_tagged_answer(solution);
  const std::string_view answer = tagged ? tagged->text : trim(solution);
  const auto value = evaluate_expression(trim(without_claim(answer, truth.target)));
  const bool allowed = value && uses_only(value->numbers, truth.numbers);
  const bool right = allowed && value->value == Rational::make(truth.target);
  return RewardScore{.score = right ? 1.0 : (allowed ? options.format_score : 0.0),
                     .extras = {{"acc", right ? 1.0 : 0.0}, {"no_answer", value ? 0.0 : 1.0}},
                     .answer = std::string(answer.substr(0, 1024))};
}

}  // namespace troupe::actors
