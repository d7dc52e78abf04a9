#include "actors/environment/guess_environment.hpp"

#include "runtime/base/rng.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace troupe::actors {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  text = trimmed(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

result<std::int64_t> secret_of(const EnvironmentRow& row) {
  const auto secret = whole_number(row.ground_truth);
  if (!secret)
    return fail(ErrorCode::kCorrupt, "guess: prompt {}: ground truth '{}', wanted a whole number",
                row.prompt_id, row.ground_truth.substr(0, 80));
  return *secret;
}

PromptRow row_of(const GuessTaskOptions& options, const char* split, std::int64_t index,
                 std::int64_t secret) {
  PromptRow row;
  row.prompt_id = static_cast<std::uint64_t>(index);
  row.data_source = "troupe/guess";
  row.prompt = {
      Message{.role = "user", .content = fmt::format("guess {}-{}:", options.low, options.high)}};
  row.ability = "search";
  row.ground_truth = std::to_string(secret);
  row.extra_info = fmt::format(R"({{"index":{},"split":"{}"}})", index, split);
  row.response = row.ground_truth;
  return row;
}

}  // namespace

result<std::string> GuessEnvironment::reset(const EnvironmentRow& row) const {
  TROUPE_TRY([[maybe_unused]] const std::int64_t secret, secret_of(row));
  return "0";
}

result<EnvironmentStep> GuessEnvironment::step(const EnvironmentInput& input) const {
  TROUPE_TRY(const std::int64_t secret, secret_of(input.row));
  const auto before = whole_number(input.state);
  if (!before || *before < 0)
    return fail(ErrorCode::kCorrupt, "guess: state '{}', wanted a count of guesses",
                input.state.substr(0, 80));
  EnvironmentStep step{
      .text = {}, .state = std::to_string(*before + 1), .done = false, .score = {}};
  const auto guess = whole_number(input.response);
  if (!guess) {
    step.text = "?";
  } else if (*guess == secret) {
    step.done = true;
    step.score = std::max(0.0, 1.0 - turn_cost * static_cast<double>(*before));
  } else {
    step.text = secret < *guess ? "<" : ">";
  }
  return step;
}

result<GuessTaskRows> make_guess_rows(const GuessTaskOptions& options) {
  constexpr std::int64_t kRowsMax = 1'000'000;
  if (options.low > options.high || options.high - options.low >= kRowsMax)
    return fail(ErrorCode::kInvalidArgument, "guess: range {}-{}", options.low, options.high);
  for (const std::int64_t rows :
       {options.train_rows, options.validation_rows, options.warmup_rows}) {
    if (rows < 0 || rows > kRowsMax)
      return fail(ErrorCode::kInvalidArgument, "guess: {} rows, wanted 0 to {}", rows, kRowsMax);
  }
  Rng rng(options.seed);
  const auto span = static_cast<std::uint64_t>(options.high - options.low + 1);
  const auto make = [&](const char* split, std::int64_t count) {
    std::vector<PromptRow> rows;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto secret = options.low + static_cast<std::int64_t>(rng.below(span));
      rows.push_back(row_of(options, split, i, secret));
    }
    return rows;
  };
  GuessTaskRows rows;
  rows.train = make("train", options.train_rows);
  rows.validation = make("validation", options.validation_rows);
  rows.warmup = make("warmup", options.warmup_rows);
  return rows;
}

}  // namespace troupe::actors
