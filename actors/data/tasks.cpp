#include "actors/data/tasks.hpp"

#include "actors/data/countdown_maker.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

namespace troupe::actors {
namespace {

constexpr std::array<std::pair<TaskKind, std::string_view>, 5> kNames{{
    {TaskKind::kSort, "sort"},
    {TaskKind::kReverse, "reverse"},
    {TaskKind::kCopy, "copy"},
    {TaskKind::kChainSum, "chain-sum"},
    {TaskKind::kCountdown, "countdown"},
}};
constexpr std::int64_t kItemsMax = 64;
constexpr std::int64_t kCountdownItemsMax = 6;
constexpr std::int64_t kValueMax = 1'000'000;
constexpr std::int64_t kRowsMax = 10'000'000;
/// Draws in a row that give nothing new before the difficulty counts as used up.
constexpr int kRepeatsMax = 20'000;

/// A task instance before it becomes a row.
struct Instance {
  std::string prompt;
  std::string answer;
  std::string ground_truth;
  bool ground_truth_is_json = false;
};

std::string joined(const std::vector<std::int64_t>& values, std::string_view between = " ") {
  return fmt::format("{}", fmt::join(values, between));
}

result<void> check_range(std::string_view name, std::int64_t value, std::int64_t low,
                         std::int64_t high) {
  if (value < low || value > high)
    return fail(ErrorCode::kInvalidArgument, "task: {} is {}, wanted {} to {}", name, value, low,
                high);
  return {};
}

result<void> check_options(const TaskOptions& options) {
  const bool countdown = options.kind == TaskKind::kCountdown;
  const std::int64_t items_low = countdown || options.kind == TaskKind::kChainSum ? 2 : 1;
  const std::int64_t items_high = countdown ? kCountdownItemsMax : kItemsMax;
  const std::int64_t value_low = countdown ? 1 : -kValueMax;
  TROUPE_TRY_VOID(check_range("items_min", options.items_min, items_low, items_high));
  TROUPE_TRY_VOID(check_range("items_max", options.items_max, options.items_min, items_high));
  TROUPE_TRY_VOID(check_range("value_min", options.value_min, value_low, kValueMax));
  TROUPE_TRY_VOID(check_range("value_max", options.value_max, options.value_min, kValueMax));
  TROUPE_TRY_VOID(check_range("target_max", options.target_max, 1, kValueMax));
  TROUPE_TRY_VOID(check_range("train_rows", options.train_rows, 0, kRowsMax));
  TROUPE_TRY_VOID(check_range("validation_rows", options.validation_rows, 0, kRowsMax));
  TROUPE_TRY_VOID(check_range("warmup_rows", options.warmup_rows, 0, kRowsMax));
  const std::int64_t values = options.value_max - options.value_min + 1;
  if (options.distinct_values && values < options.items_max)
    return fail(ErrorCode::kInvalidArgument, "task: {} distinct values for up to {} items", values,
                options.items_max);
  return {};
}

std::int64_t draw(Rng& rng, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
}

std::vector<std::int64_t> draw_values(const TaskOptions& options, Rng& rng) {
  const auto count = static_cast<std::size_t>(draw(rng, options.items_min, options.items_max));
  std::vector<std::int64_t> values;
  std::set<std::int64_t> seen;
  while (values.size() < count) {
    const std::int64_t value = draw(rng, options.value_min, options.value_max);
    if (!options.distinct_values || seen.insert(value).second) values.push_back(value);
  }
  return values;
}

std::string sequence_prompt(const TaskOptions& options, const std::vector<std::int64_t>& values) {
  if (!options.worded) return fmt::format("{}: {} =", task_kind_name(options.kind), joined(values));
  const char* request = options.kind == TaskKind::kSort ? "Sort these numbers in ascending order"
                        : options.kind == TaskKind::kReverse
                            ? "Write these numbers in reverse order"
                            : "Repeat these numbers";
  return fmt::format("{}: {}. Answer with the numbers only, separated by spaces.", request,
                     joined(values));
}

Instance sequence_instance(const TaskOptions& options, const std::vector<std::int64_t>& values) {
  std::vector<std::int64_t> wanted = values;
  if (options.kind == TaskKind::kSort) std::sort(wanted.begin(), wanted.end());
  if (options.kind == TaskKind::kReverse) std::reverse(wanted.begin(), wanted.end());
  const std::string answer = joined(wanted);
  return {.prompt = sequence_prompt(options, values), .answer = answer, .ground_truth = answer};
}

Instance chain_sum_instance(const TaskOptions& options, const std::vector<std::int64_t>& values,
                            Rng& rng) {
  std::string terms = std::to_string(values[0]);
  std::int64_t sum = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    const bool minus = options.subtraction && rng.below(2) == 1;
    terms += fmt::format(" {} {}", minus ? '-' : '+', values[i]);
    sum += minus ? -values[i] : values[i];
  }
  const std::string answer = std::to_string(sum);
  return {.prompt = options.worded ? fmt::format("What is {}? Answer with the number only.", terms)
                                   : fmt::format("sum: {} =", terms),
          .answer = answer,
          .ground_truth = answer};
}

std::string countdown_prompt(const TaskOptions& options, const std::vector<std::int64_t>& values,
                             std::int64_t target) {
  if (!options.worded) return fmt::format("countdown: {} -> {} =", joined(values), target);
  return fmt::format(
      "Use the numbers {}, each at most once, and + - * / to make {}. Answer with the expression "
      "only.",
      joined(values, ", "), target);
}

std::string_view source_of(const TaskOptions& options) {
  const bool worded_sum = options.worded && options.kind == TaskKind::kChainSum;
  return worded_sum ? "worded-sum" : task_kind_name(options.kind);
}

/// One random instance; empty when these numbers reach no target in range.
std::optional<Instance> draw_instance(const TaskOptions& options, Rng& rng) {
  const std::vector<std::int64_t> values = draw_values(options, rng);
  if (options.kind == TaskKind::kChainSum) return chain_sum_instance(options, values, rng);
  if (options.kind != TaskKind::kCountdown) return sequence_instance(options, values);
  const auto solved = make_countdown(values, options.target_max, rng);
  if (!solved) return std::nullopt;
  const nlohmann::json truth{{"numbers", values}, {"target", solved->target}};
  return Instance{.prompt = countdown_prompt(options, values, solved->target),
                  .answer = solved->expression,
                  .ground_truth = truth.dump(),
                  .ground_truth_is_json = true};
}

PromptRow to_row(const TaskOptions& options, Instance instance, std::string_view split,
                 std::size_t index) {
  const nlohmann::json extra{{"split", split}, {"index", index}};
  return PromptRow{.prompt_id = index,
                   .data_source = fmt::format("troupe/{}", source_of(options)),
                   .prompt = {{.role = "user", .content = std::move(instance.prompt)}},
                   .ability = std::string(task_kind_name(options.kind)),
                   .reward_style = "rule",
                   .ground_truth = std::move(instance.ground_truth),
                   .ground_truth_is_json = instance.ground_truth_is_json,
                   .extra_info = extra.dump(),
                   .response = std::move(instance.answer)};
}

/// Draws rows whose prompts no set has yet. Each set has its own stream of random numbers.
class RowMaker {
 public:
  explicit RowMaker(const TaskOptions& options) : options_(options) {}

  result<std::vector<PromptRow>> make(std::string_view split, std::uint64_t stream,
                                      std::int64_t count) {
    Rng rng(mix_seed(options_.seed, stream));
    std::vector<PromptRow> rows;
    int repeats = 0;
    while (std::ssize(rows) < count) {
      auto instance = draw_instance(options_, rng);
      if (!instance || !prompts_.insert(instance->prompt).second) {
        if (++repeats > kRepeatsMax)
          return fail(
              ErrorCode::kInvalidArgument,
              "task {}: found {} distinct prompts at this difficulty, wanted {} (more items "
              "or a wider range of values give more)",
              task_kind_name(options_.kind), prompts_.size(), wanted());
        continue;
      }
      repeats = 0;
      rows.push_back(to_row(options_, *std::move(instance), split, rows.size()));
    }
    return rows;
  }

 private:
  std::int64_t wanted() const {
    return options_.train_rows + options_.validation_rows + options_.warmup_rows;
  }

  const TaskOptions& options_;
  std::unordered_set<std::string> prompts_;
};

}  // namespace

result<TaskKind> task_kind_from_name(std::string_view name) {
  std::string known;
  for (const auto& [kind, text] : kNames) {
    if (text == name) return kind;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", text);
  }
  return fail(ErrorCode::kNotFound, "task '{}' is unknown (known: {})", name, known);
}

std::string_view task_kind_name(TaskKind kind) {
  return kNames[static_cast<std::size_t>(kind)].second;
}

result<TaskRows> make_task_rows(const TaskOptions& options) {
  TROUPE_TRY_VOID(check_options(options));
  RowMaker maker(options);
  TaskRows rows;
  // Held-out rows come first, so that no option of the other sets changes them.
  TROUPE_TRY(rows.validation, maker.make("validation", 1, options.validation_rows));
  TROUPE_TRY(rows.warmup, maker.make("warmup", 2, options.warmup_rows));
  TROUPE_TRY(rows.train, maker.make("train", 3, options.train_rows));
  return rows;
}

}  // namespace troupe::actors
