#include "actors/environment/environment_server.hpp"

#include "actors/data/prompt_loader.hpp"
#include "runtime/batch/checksum.hpp"
#include "runtime/wire/wire.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Reduction;

/// What travels as a sample's state: the environment's own, and whose it is.
struct StateFrame {
  std::string environment;
  std::int64_t turns = 0;  ///< answered so far
  std::string state;
  std::uint32_t checksum = 0;
  static constexpr auto fields() {
    using runtime::field;
    using T = StateFrame;
    return std::tuple{field("environment", &T::environment), field("turns", &T::turns),
                      field("state", &T::state), field("checksum", &T::checksum)};
  }
};

std::uint32_t state_sum(const StateFrame& frame) {
  const std::string all = fmt::format("{}\n{}\n{}", frame.environment, frame.turns, frame.state);
  return runtime::crc32c(std::as_bytes(std::span(all)));
}

std::string place_of(const EnvironmentTurn& turn) {
  return fmt::format("environment: turn of group {} sample {}", turn.group, turn.sample_index);
}

/// A turn with all that its input points into.
struct OpenTurn {
  const EnvironmentTurn* asked = nullptr;
  std::string environment;
  const EnvironmentTurns* turns = nullptr;
  Batch row;
  std::string prompt;
  std::string response;
  std::string state;
  EnvironmentInput input;
};

result<StateFrame> read_state(const EnvironmentTurn& turn, const std::string& environment,
                              const EnvironmentOptions& options) {
  if (turn.state.empty())
    return StateFrame{.environment = environment, .turns = 0, .state = {}, .checksum = 0};
  auto frame = runtime::decode_value<StateFrame>(turn.state);
  if (!frame)
    return fail(std::move(frame).error().wrap(ErrorCode::kCorrupt, place_of(turn) + ": its state"));
  if (frame->checksum != state_sum(*frame))
    return fail(ErrorCode::kCorrupt, "{}: its state of {} bytes is damaged", place_of(turn),
                turn.state.size());
  if (frame->environment != environment)
    return fail(ErrorCode::kCorrupt, "{}: its state is of environment {}, the row's is {}",
                place_of(turn), frame->environment, environment);
  if (frame->turns < 1 || frame->turns >= options.turns_max)
    return fail(ErrorCode::kCorrupt, "{}: {} turns were answered, wanted 1 to {}", place_of(turn),
                frame->turns, options.turns_max - 1);
  return frame;
}

result<void> check_row(const EnvironmentTurn& turn) {
  if (turn.row.rows() != 1)
    return fail(ErrorCode::kInvalidArgument, "{}: {} prompt rows, wanted 1", place_of(turn),
                turn.row.rows());
  for (const std::string_view name : {column::kPromptIds, column::kPrompts, column::kDataSource,
                                      column::kGroundTruth, column::kExtraInfo}) {
    if (!turn.row.has(name))
      return fail(ErrorCode::kNotFound, "{}: its row has no column {}", place_of(turn), name);
  }
  return {};
}

/// The one word by which a failed turn is counted: the sandbox's reason where there is one.
std::string reason_of(const Error& error) {
  if (error.code == ErrorCode::kAborted) {
    const std::string word = error.message.substr(0, error.message.find(':'));
    const auto is_word = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
    if (!word.empty() && std::all_of(word.begin(), word.end(), is_word)) return word;
  }
  return std::string(error_code_name(error.code));
}

}  // namespace

result<void> EnvironmentOptions::check() const {
  if (turns_max < 1 || turns_max > 100'000)
    return fail(ErrorCode::kInvalidArgument, "environment: turns_max is {}, wanted 1 to 100000",
                turns_max);
  if (turn_tokens_max < 1 || turn_tokens_max > 1'000'000)
    return fail(ErrorCode::kInvalidArgument,
                "environment: turn_tokens_max is {}, wanted 1 to 1000000", turn_tokens_max);
  if (state_max.value < 1 || state_max > mebibytes(64))
    return fail(ErrorCode::kInvalidArgument, "environment: state_max is {}, wanted 1 to 64 MiB",
                state_max.value);
  if (retries_max < 0 || retries_max > 100)
    return fail(ErrorCode::kInvalidArgument, "environment: retries_max is {}, wanted 0 to 100",
                retries_max);
  if (turn_deadline <= Duration::zero())
    return fail(ErrorCode::kInvalidArgument, "environment: turn_deadline is {} ns, wanted > 0",
                turn_deadline.count());
  if (!std::isfinite(exhausted_score) || !std::isfinite(failure_score.value_or(0.0)))
    return fail(ErrorCode::kInvalidArgument, "environment: scores {} and {}, wanted finite ones",
                exhausted_score, failure_score.value_or(0.0));
  return {};
}

constexpr std::size_t kFailureMax = 300;  // bytes of an environment's own words in an answer

/// One call: the turns that are open, and what became of them.
class EnvironmentServer::Round {
 public:
  Round(EnvironmentServer& server, std::size_t count) : server_(server), answers_(count) {}

  result<void> open(std::span<const EnvironmentTurn> turns) {
    turns_.resize(turns.size());
    for (std::size_t i = 0; i < turns.size(); ++i) TROUPE_TRY_VOID(open_one(turns[i], turns_[i]));
    return {};
  }

  /// Asks all that are open; who failed stays open.
  result<void> ask(std::vector<std::size_t>& open, Deadline deadline, bool last) {
    std::map<const EnvironmentTurns*, std::vector<std::size_t>> by_environment;
    for (const std::size_t one : open) by_environment[turns_[one].turns].push_back(one);
    open.clear();
    for (const auto& [environment, members] : by_environment) {
      std::vector<EnvironmentInput> inputs;
      for (const std::size_t one : members) inputs.push_back(turns_[one].input);
      TROUPE_TRY(std::vector<result<EnvironmentStep>> steps, (*environment)(inputs, deadline));
      if (steps.size() != members.size())
        return fail(ErrorCode::kConflict, "environment {}: {} steps for {} turns",
                    turns_[members.front()].environment, steps.size(), members.size());
      for (std::size_t i = 0; i < members.size(); ++i) {
        result<void> taken = take(members[i], std::move(steps[i]));
        if (taken) continue;
        if (last)
          give_up(members[i], taken.error());
        else
          open.push_back(members[i]);
      }
    }
    std::sort(open.begin(), open.end());
    return {};
  }

  std::vector<EnvironmentAnswer> answers() { return std::move(answers_); }

 private:
  result<void> open_one(const EnvironmentTurn& asked, OpenTurn& turn) {
    TROUPE_TRY_VOID(check_row(asked));
    const EnvironmentOptions& options = server_.options_;
    TROUPE_TRY(turn.row, asked.row.resolve());
    turn.asked = &asked;
    const std::string_view source = turn.row.column(column::kDataSource).text(0);
    turn.environment = options.environment.empty() ? std::string(source) : options.environment;
    turn.turns = server_.environments_.find(turn.environment);
    if (turn.turns == nullptr)
      return fail(ErrorCode::kNotFound, "{}: no environment for '{}' (known: {})", place_of(asked),
                  turn.environment, fmt::join(server_.environments_.names(), ", "));
    TROUPE_TRY(StateFrame frame, read_state(asked, turn.environment, options));
    turn.state = std::move(frame.state);
    turn.prompt = server_.tokenizer_.decode(turn.row.column(column::kPrompts).row<std::int32_t>(0));
    turn.response = server_.tokenizer_.decode(asked.response, {.skip_special = true});
    turn.input = {.row = {.data_source = source,
                          .prompt = turn.prompt,
                          .ground_truth = turn.row.column(column::kGroundTruth).text(0),
                          .extra_info = turn.row.column(column::kExtraInfo).text(0),
                          .prompt_id = static_cast<std::uint64_t>(
                              turn.row.column(column::kPromptIds).values<std::int64_t>()[0]),
                          .sample_index = asked.sample_index},
                  .turn = frame.turns + 1,
                  .state = turn.state,
                  .response = turn.response};
    return {};
  }

  /// An error: the step failed, or is not one.
  result<void> take(std::size_t at, result<EnvironmentStep> step) {
    if (!step) return fail(std::move(step).error());
    const EnvironmentOptions& options = server_.options_;
    const OpenTurn& turn = turns_[at];
    EnvironmentAnswer& answer = answers_[at];
    if (step->score && !std::isfinite(*step->score))
      return fail(ErrorCode::kInvalidArgument, "score {}", *step->score);
    if (step->done) {
      answer = {.tokens = {}, .state = {}, .done = true, .score = step->score, .failure = {}};
      count("done");
      return {};
    }
    if (turn.input.turn >= options.turns_max) {
      answer = {
          .tokens = {}, .state = {}, .done = true, .score = options.exhausted_score, .failure = {}};
      count("exhausted");
      return {};
    }
    if (static_cast<std::int64_t>(step->state.size()) > options.state_max.value)
      return fail(ErrorCode::kResourceExhausted, "state of {} bytes, at most {}",
                  step->state.size(), options.state_max.value);
    std::vector<std::int32_t> tokens = words(step->text);
    if (tokens.empty()) return fail(ErrorCode::kInvalidArgument, "said nothing, but is not done");
    StateFrame frame{.environment = turn.environment,
                     .turns = turn.input.turn,
                     .state = std::move(step->state),
                     .checksum = 0};
    frame.checksum = state_sum(frame);
    TROUPE_TRY(std::vector<std::byte> state, runtime::encode_value(frame));
    answer = {.tokens = std::move(tokens),
              .state = std::move(state),
              .done = false,
              .score = {},
              .failure = {}};
    return {};
  }

  /// The environment's text between what stands around it, cut to its bound.
  std::vector<std::int32_t> words(const std::string& text) {
    std::vector<std::int32_t> said = server_.tokenizer_.encode(text);
    const std::size_t room = static_cast<std::size_t>(server_.options_.turn_tokens_max) -
                             server_.before_.size() - server_.after_.size();
    if (said.size() > room) {
      said.resize(room);
      count("cut");
    }
    std::vector<std::int32_t> tokens = server_.before_;
    tokens.insert(tokens.end(), said.begin(), said.end());
    tokens.insert(tokens.end(), server_.after_.begin(), server_.after_.end());
    return tokens;
  }

  void give_up(std::size_t at, const Error& error) {
    const std::string reason = reason_of(error);
    count("failed");
    count("failed/" + reason);
    const auto& score = server_.options_.failure_score;
    answers_[at] = {.tokens = {},
                    .state = {},
                    .done = true,
                    .score = score,
                    .failure = score ? std::string{}
                                     : fmt::format("{} in {}: {}", reason, turns_[at].environment,
                                                   error.message.substr(0, kFailureMax))};
  }

  void count(const std::string& what) {
    server_.metrics_.add("environment/" + what, 1, Reduction::kSum);
  }

  EnvironmentServer& server_;
  std::vector<OpenTurn> turns_;
  std::vector<EnvironmentAnswer> answers_;
};

EnvironmentServer::EnvironmentServer(const Tokenizer& tokenizer,
                                     const EnvironmentRegistry& environments,
                                     EnvironmentOptions options, std::vector<std::int32_t> before,
                                     std::vector<std::int32_t> after)
    : tokenizer_(tokenizer),
      environments_(environments),
      options_(std::move(options)),
      before_(std::move(before)),
      after_(std::move(after)) {}

result<EnvironmentServer> EnvironmentServer::create(const Tokenizer& tokenizer,
                                                    const EnvironmentRegistry& environments,
                                                    EnvironmentOptions options) {
  TROUPE_TRY_VOID(options.check());
  std::vector<std::int32_t> before = tokenizer.encode(options.before, {.trusted = true});
  std::vector<std::int32_t> after = tokenizer.encode(options.after, {.trusted = true});
  const auto around = static_cast<std::int64_t>(before.size() + after.size());
  if (around >= options.turn_tokens_max)
    return fail(ErrorCode::kInvalidArgument,
                "environment: before and after have {} tokens, turn_tokens_max is {}", around,
                options.turn_tokens_max);
  if (!options.environment.empty() && environments.find(options.environment) == nullptr)
    return fail(ErrorCode::kNotFound, "environment: '{}' is not known (known: {})",
                options.environment, fmt::join(environments.names(), ", "));
  return EnvironmentServer(tokenizer, environments, std::move(options), std::move(before),
                           std::move(after));
}

result<std::vector<EnvironmentAnswer>> EnvironmentServer::turn(
    std::span<const EnvironmentTurn> turns, Deadline deadline) {
  Round round(*this, turns.size());
  TROUPE_TRY_VOID(round.open(turns));
  std::vector<std::size_t> open(turns.size());
  for (std::size_t i = 0; i < open.size(); ++i) open[i] = i;
  metrics_.add("environment/turns", static_cast<double>(turns.size()), Reduction::kSum);
  for (std::int64_t attempt = 0; !open.empty(); ++attempt) {
    if (deadline.passed())
      return fail(ErrorCode::kDeadline, "environment: {} of {} turns are open at the deadline",
                  open.size(), turns.size());
    if (attempt > 0)
      metrics_.add("environment/retries", static_cast<double>(open.size()), Reduction::kSum);
    const Deadline one{std::min(deadline.at, Deadline::in(options_.turn_deadline).at)};
    TROUPE_TRY_VOID(round.ask(open, one, attempt >= options_.retries_max));
  }
  return round.answers();
}

runtime::Metrics EnvironmentServer::take_metrics() { return std::exchange(metrics_, {}); }

}  // namespace troupe::actors
