#include "actors/reward/command_reward.hpp"

#include "actors/text/strict_json.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

/// What a program may make of one line, beyond which it is not an answer.
constexpr std::size_t kExtrasMax = 64;
constexpr std::size_t kNameBytesMax = 64;
constexpr std::size_t kAnswerBytesShown = 1024;

std::string printed(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string request_line(const RewardInput& input, std::size_t id) {
  nlohmann::json line = {{"id", id},
                         {"data_source", input.data_source},
                         {"prompt", input.prompt},
                         {"response", input.solution},
                         {"ground_truth", input.ground_truth}};
  nlohmann::json extra = nlohmann::json::parse(input.extra_info, nullptr, false);
  line["extra_info"] = extra.is_discarded() ? nlohmann::json::object() : std::move(extra);
  return printed(line);
}

result<double> finite_number(const nlohmann::json& value, std::string_view name) {
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  if (!value.is_number())
    return fail(ErrorCode::kCorrupt, "{} is {}, wanted a number", name, value.type_name());
  const double number = value.get<double>();
  if (!std::isfinite(number)) return fail(ErrorCode::kCorrupt, "{} is {}", name, number);
  return number;
}

/// A number, or an object with `score`.
result<RewardScore> read_answer(const std::string& line, std::size_t id) {
  TROUPE_TRY(const nlohmann::json json, parse_strict_json(line, "answer"));
  RewardScore score;
  if (!json.is_object()) {
    TROUPE_TRY(score.score, finite_number(json, "the answer"));
    return score;
  }
  if (!json.contains("score")) return fail(ErrorCode::kCorrupt, "the answer has no score");
  if (json.size() > kExtrasMax)
    return fail(ErrorCode::kCorrupt, "the answer has {} entries, wanted at most {}", json.size(),
                kExtrasMax);
  for (const auto& [name, value] : json.items()) {
    if (name.size() > kNameBytesMax)
      return fail(ErrorCode::kCorrupt, "the answer has a name of {} bytes", name.size());
    if (name == "id") {
      if (value != id)
        return fail(ErrorCode::kCorrupt, "answered id {} instead of {}", value.dump(), id);
    } else if (name == "answer") {
      score.answer = value.is_string() ? value.get<std::string>() : printed(value);
      score.answer.resize(std::min(score.answer.size(), kAnswerBytesShown));
    } else if (name == "score") {
      TROUPE_TRY(score.score, finite_number(value, name));
    } else {
      TROUPE_TRY(score.extras[name], finite_number(value, name));
    }
  }
  return score;
}

RewardOutcome outcome_of(const SandboxAnswer& answer, std::size_t id,
                         std::optional<double> failure_score) {
  std::optional<SandboxFailure> failure = answer.failure;
  std::string detail = answer.detail;
  if (!failure) {
    result<RewardScore> score = read_answer(answer.line, id);
    if (score) return {.score = *std::move(score), .failure = {}, .dropped = false};
    failure = SandboxFailure::kAnswer;
    detail = score.error().message;
  }
  RewardOutcome outcome{.score = {.score = failure_score.value_or(0.0),
                                  .extras = {{"acc", 0.0}},
                                  .answer = std::move(detail)},
                        .failure = std::string(sandbox_failure_name(*failure)),
                        .dropped = !failure_score};
  return outcome;
}

}  // namespace

BatchRewardFunction command_reward_on(SandboxPool& pool, std::optional<double> failure_score) {
  return [&pool, failure_score](std::span<const RewardInput> inputs,
                                Deadline deadline) -> result<std::vector<RewardOutcome>> {
    std::vector<std::string> lines;
    lines.reserve(inputs.size());
    for (const RewardInput& input : inputs) lines.push_back(request_line(input, lines.size()));
    TROUPE_TRY(const std::vector<SandboxAnswer> answers, pool.run(lines, deadline));
    std::vector<RewardOutcome> outcomes;
    outcomes.reserve(answers.size());
    for (const SandboxAnswer& answer : answers)
      outcomes.push_back(outcome_of(answer, outcomes.size(), failure_score));
    return outcomes;
  };
}

result<BatchRewardFunction> make_command_reward(CommandRewardOptions options) {
  if (options.failure_score && !std::isfinite(*options.failure_score))
    return fail(ErrorCode::kInvalidArgument, "{}: failure score is {}, wanted a finite number",
                options.sandbox.name, *options.failure_score);
  TROUPE_TRY(std::unique_ptr<SandboxPool> opened, SandboxPool::open(std::move(options.sandbox)));
  // Registries are copied, and a rule with them: all copies run on one pool.
  const std::shared_ptr<SandboxPool> pool = std::move(opened);
  return [pool, rule = command_reward_on(*pool, options.failure_score)](
             std::span<const RewardInput> inputs, Deadline deadline) {
    return rule(inputs, deadline);
  };
}

}  // namespace troupe::actors
