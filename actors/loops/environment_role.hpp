#pragma once

// What a loop asks of environments: one turn of some samples at a time.
//
// A sample's answer is sampled until its turn ends; the environment reads it and says what comes
// next: tokens of its own (tool output, the next observation), or that the episode is over, with or
// without a score. Token in, token out: nothing is tokenised again, and the environment's tokens
// are masked from the loss. Its state is bytes that travel with the sample's trajectory, so a turn
// is a pure function of its argument: it may be asked again, by anybody, after any crash.
// **Threads:** value types; the role is called on the controller's thread.
// **Invariants:** answers are in the order of the turns, one each; an answer that is not `done` has
// tokens.

#include "runtime/batch/batch.hpp"
#include "runtime/task/task.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

struct EnvironmentTurn {
  std::uint64_t group = 0;
  std::uint32_t sample_index = 0;
  std::vector<std::int32_t> response{};  ///< sampled in this turn
  std::vector<std::byte> state{};        ///< what it answered last; empty: the first turn
  runtime::Batch row{};                  ///< one row: the prompt's columns
};

struct EnvironmentAnswer {
  std::vector<std::int32_t> tokens{};  ///< appended behind the response
  std::vector<std::byte> state{};
  bool done = false;              ///< the episode is over; `tokens` are not used
  std::optional<double> score{};  ///< of the whole sample, when done; empty: rewards score it
  /// Not empty: the environment gave the sample up. Its group is dropped, reason `failed`.
  std::string failure{};
  bool operator==(const EnvironmentAnswer&) const = default;
};

template <class Role>
concept EnvironmentRole = requires(Role& role, std::vector<EnvironmentTurn> turns) {
  /// Throws `Failure` when environments are lost; the turns are then asked again.
  { role.turn(std::move(turns)) } -> std::same_as<runtime::task<std::vector<EnvironmentAnswer>>>;
};

/// For worlds without environments.
struct NoEnvironment {
  runtime::task<std::vector<EnvironmentAnswer>> turn(std::vector<EnvironmentTurn> turns) {
    co_return std::vector<EnvironmentAnswer>(turns.size(), {.tokens = {}, .done = true});
  }
};

/// `W::Environment`, where a world has it.
template <class W>
struct EnvironmentOf {
  using type = NoEnvironment;
};
template <class W>
requires EnvironmentRole<typename W::Environment>
struct EnvironmentOf<W> {
  using type = typename W::Environment;
};

}  // namespace troupe::actors
