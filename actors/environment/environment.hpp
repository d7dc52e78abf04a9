#pragma once

// The environment vocabulary: what a multi-turn environment is given, what it answers, and the
// registry that finds the environment of a row by its data source.
//
// An environment holds nothing between turns: its state is bytes that travel with the sample, so a
// turn may be asked anywhere and again. Any type with these two functions is one:
//
//     struct Echo {
//       result<std::string> reset(const EnvironmentRow& row) const;         // the first state
//       result<EnvironmentStep> step(const EnvironmentInput& input) const;  // one turn
//     };
//     EnvironmentRegistry environments = default_environments();
//     environments.add("my/echo", Echo{});
//
// One that is better asked about many samples at once is a function: `add_batch`
// (command_environment.hpp runs a command in a sandbox that way).
// **Ownership:** a registry is a value that owns its environments.
// **Threads:** turns may be asked from many threads when `reset` and `step` are pure.
// **Invariants:** an unknown data source is an error; scores are finite (`EnvironmentServer`
// checks).

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::actors {

/// What is known about a sample's prompt. Views live as long as the call.
struct EnvironmentRow {
  std::string_view data_source;   ///< picks the environment
  std::string_view prompt;        ///< decoded
  std::string_view ground_truth;  ///< text; JSON text where the row holds an object
  std::string_view extra_info;    ///< JSON object text; may be empty
  std::uint64_t prompt_id = 0;
  std::uint32_t sample_index = 0;
};

struct EnvironmentInput {
  EnvironmentRow row{};
  std::int64_t turn = 1;        ///< counts from 1
  std::string_view state{};     ///< from `reset` (in the first turn) or the last step
  std::string_view response{};  ///< decoded, of this turn, without special tokens
};

/// What comes next: text for the model to read, or the end.
struct EnvironmentStep {
  std::string text{};   ///< not read when done
  std::string state{};  ///< any bytes; what the next turn gets
  bool done = false;
  std::optional<double> score{};  ///< of the whole sample, when done; empty: reward rules score it

  bool operator==(const EnvironmentStep&) const = default;
};

template <class E>
concept Environment = requires(const E& environment, const EnvironmentRow& row,
                               const EnvironmentInput& input) {
  { environment.reset(row) } -> std::convertible_to<result<std::string>>;
  { environment.step(input) } -> std::convertible_to<result<EnvironmentStep>>;
};

/// One turn of many samples. In the first turn of a sample (`turn` = 1) its state is empty and the
/// environment begins it. An inner error is a sample's failure, which may be tried again; an outer
/// one means that the environment itself fails.
using EnvironmentTurns = std::function<result<std::vector<result<EnvironmentStep>>>(
    std::span<const EnvironmentInput>, Deadline)>;

template <Environment E>
EnvironmentTurns make_environment(E environment) {
  return [environment = std::move(environment)](
             std::span<const EnvironmentInput> inputs,
             Deadline deadline) -> result<std::vector<result<EnvironmentStep>>> {
    std::vector<result<EnvironmentStep>> steps;
    for (EnvironmentInput input : inputs) {
      if (deadline.passed()) {
        steps.emplace_back(fail(ErrorCode::kDeadline, "environment: deadline passed before turn"));
        continue;
      }
      std::string begun;
      if (input.turn == 1) {
        result<std::string> state = environment.reset(input.row);
        if (!state) {
          steps.emplace_back(fail(std::move(state).error()));
          continue;
        }
        begun = *std::move(state);
        input.state = begun;
      }
      steps.push_back(environment.step(input));
    }
    return steps;
  };
}

class EnvironmentRegistry {
 public:
  /// `name` is a data source, or the start of some ending in `*`. kAlreadyExists, kInvalidArgument.
  template <Environment E>
  result<void> add(std::string name, E environment) {
    return add_batch(std::move(name), make_environment(std::move(environment)));
  }
  result<void> add_batch(std::string name, EnvironmentTurns turns);

  bool covers(std::string_view data_source) const { return find(data_source) != nullptr; }
  /// Exact names win over prefixes, long prefixes over short ones; null when none covers it.
  const EnvironmentTurns* find(std::string_view data_source) const;
  /// Registered names in order.
  std::vector<std::string> names() const;

 private:
  std::map<std::string, EnvironmentTurns, std::less<>> environments_;
};

/// The built-in environments: `troupe/guess` (guess_environment.hpp).
EnvironmentRegistry default_environments();

}  // namespace troupe::actors
