#pragma once

// Guess a number: the worked example of a multi-turn environment.
//
// The row's ground truth is the number. Each turn the model says one; the environment answers `<`
// (the number is smaller), `>` (larger) or `?` (that was no number), and ends the episode when it
// is right. The score is 1 for the first guess and `turn_cost` less for each further one, so that
// halving the range is what pays.
// **Threads:** a value; pure.
// **Invariants:** the state is the count of guesses so far, in decimal.

#include "actors/data/row.hpp"
#include "actors/environment/environment.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::actors {

struct GuessEnvironment {
  double turn_cost = 0.1;

  /// kCorrupt when the ground truth is no whole number.
  result<std::string> reset(const EnvironmentRow& row) const;
  result<EnvironmentStep> step(const EnvironmentInput& input) const;
};

struct GuessTaskOptions {
  std::int64_t low = 0;
  std::int64_t high = 9;
  std::int64_t train_rows = 512;
  std::int64_t validation_rows = 64;
  std::int64_t warmup_rows = 256;  ///< supervised: one guess of the range, drawn evenly
  std::uint64_t seed = 0;
};

struct GuessTaskRows {
  std::vector<PromptRow> train;
  std::vector<PromptRow> validation;
  std::vector<PromptRow> warmup;
};

/// Rows of `troupe/guess`: prompt `guess 0-9:`, ground truth the number. Numbers are drawn evenly,
/// so rows repeat: what is learned is how to search. kInvalidArgument for options out of range.
result<GuessTaskRows> make_guess_rows(const GuessTaskOptions& options);

}  // namespace troupe::actors
