#include "actors/environment/command_environment.hpp"

#include "actors/text/strict_json.hpp"

#include <cmath>
#include <memory>
#include <utility>

namespace troupe::actors {
namespace {

using nlohmann::json;

json parsed_or(std::string_view text, json otherwise) {
  json value = json::parse(text, nullptr, false);
  return value.is_discarded() ? std::move(otherwise) : std::move(value);
}

std::string printed(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string request_line(const EnvironmentInput& input, std::size_t id) {
  json line = {{"id", id},
               {"turn", input.turn},
               {"data_source", input.row.data_source},
               {"prompt", input.row.prompt},
               {"ground_truth", input.row.ground_truth},
               {"prompt_id", input.row.prompt_id},
               {"sample_index", input.row.sample_index},
               {"response", input.response}};
  line["extra_info"] = parsed_or(input.row.extra_info, json::object());
  line["state"] = input.turn == 1 ? json() : parsed_or(input.state, json());
  return printed(line);
}

result<EnvironmentStep> read_step(const std::string& line, std::size_t id) {
  TROUPE_TRY(const json answer, parse_strict_json(line, "answer"));
  if (!answer.is_object())
    return fail(ErrorCode::kAborted, "answer: the answer is {}, wanted an object",
                answer.type_name());
  if (answer.contains("id") && answer["id"] != id)
    return fail(ErrorCode::kAborted, "answer: answered id {} instead of {}", answer["id"].dump(),
                id);
  EnvironmentStep step;
  if (answer.contains("done")) {
    if (!answer["done"].is_boolean())
      return fail(ErrorCode::kAborted, "answer: done is {}, wanted true or false",
                  answer["done"].type_name());
    step.done = answer["done"].get<bool>();
  }
  if (answer.contains("text")) {
    if (!answer["text"].is_string())
      return fail(ErrorCode::kAborted, "answer: text is {}, wanted a string",
                  answer["text"].type_name());
    step.text = answer["text"].get<std::string>();
  } else if (!step.done) {
    return fail(ErrorCode::kAborted, "answer: neither text nor done");
  }
  if (answer.contains("score") && !answer["score"].is_null()) {
    if (!answer["score"].is_number() || !std::isfinite(answer["score"].get<double>()))
      return fail(ErrorCode::kAborted, "answer: score is {}, wanted a finite number",
                  answer["score"].dump());
    step.score = answer["score"].get<double>();
  }
  step.state = answer.contains("state") ? printed(answer["state"]) : "null";
  return step;
}

}  // namespace

EnvironmentTurns command_environment_on(SandboxPool& pool) {
  return [&pool](std::span<const EnvironmentInput> inputs,
                 Deadline deadline) -> result<std::vector<result<EnvironmentStep>>> {
    std::vector<std::string> lines;
    lines.reserve(inputs.size());
    for (const EnvironmentInput& input : inputs) lines.push_back(request_line(input, lines.size()));
    TROUPE_TRY(const std::vector<SandboxAnswer> answers, pool.run(lines, deadline));
    std::vector<result<EnvironmentStep>> steps;
    steps.reserve(answers.size());
    for (const SandboxAnswer& answer : answers) {
      if (answer.failure) {
        steps.emplace_back(fail(ErrorCode::kAborted, "{}: {}",
                                sandbox_failure_name(*answer.failure), answer.detail));
        continue;
      }
      result<EnvironmentStep> step = read_step(answer.line, steps.size());
      if (!step) step = fail(ErrorCode::kAborted, "{}", step.error().message);
      steps.push_back(std::move(step));
    }
    return steps;
  };
}

result<EnvironmentTurns> make_command_environment(SandboxOptions options) {
  TROUPE_TRY(std::unique_ptr<SandboxPool> opened, SandboxPool::open(std::move(options)));
  // Registries are copied, and an environment with them: all copies run on one pool.
  const std::shared_ptr<SandboxPool> pool = std::move(opened);
  return [pool, turns = command_environment_on(*pool)](std::span<const EnvironmentInput> inputs,
                                                       Deadline deadline) {
    return turns(inputs, deadline);
  };
}

}  // namespace troupe::actors
