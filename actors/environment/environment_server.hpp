#pragma once

// Turns of samples at their environments: decodes what was sampled, asks, tokenises what the
// environment said, and keeps the bounds.
//
// Token in, token out: only the environment's own text is ever tokenised, as untrusted text, so a
// tool that prints `<|im_end|>` prints characters. What stands around it (the end of a chat turn
// and the beginning of the next) is trusted text of the options.
// **Ownership:** borrows tokenizer and registry.
// **Threads:** one engine thread.
// **Invariants:** one answer a turn, in order; an answer that is not done has 1 to
// `turn_tokens_max` tokens; state is framed with its turn and refused when it is of another
// environment or torn; a sample has at most `turns_max` turns. A failed turn is tried again, from
// the same state, `retries_max` times; then the sample ends as the options say and is counted.

#include "actors/environment/environment.hpp"
#include "actors/loops/environment_role.hpp"
#include "actors/text/tokenizer.hpp"
#include "runtime/base/units.hpp"
#include "runtime/observe/metrics.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::actors {

struct EnvironmentOptions {
  std::string environment = {};        ///< for every row; empty: the one of the row's data source
  std::int64_t turns_max = 8;          ///< of a sample
  std::int64_t turn_tokens_max = 256;  ///< of what the environment says in one turn; longer is cut
  Bytes state_max{std::int64_t{64} << 10};
  Duration turn_deadline = std::chrono::seconds(60);  ///< of one try of a call
  std::int64_t retries_max = 1;
  /// Score of a sample whose turns are used up.
  double exhausted_score = 0.0;
  /// Score of a sample whose environment failed; empty: the sample is given up (`failure` is set).
  std::optional<double> failure_score = {};
  std::string before = {};  ///< trusted text before what the environment says
  std::string after = {};   ///< trusted text behind it

  bool operator==(const EnvironmentOptions&) const = default;
  result<void> check() const;
};

class EnvironmentServer {
 public:
  /// kInvalidArgument, or kNotFound for a named environment that the registry lacks.
  static result<EnvironmentServer> create(const Tokenizer& tokenizer,
                                          const EnvironmentRegistry& environments,
                                          EnvironmentOptions options);

  /// kNotFound for a row without environment, kCorrupt for state that is not its own, kDeadline
  /// when `deadline` leaves no time; all name the turn.
  result<std::vector<EnvironmentAnswer>> turn(std::span<const EnvironmentTurn> turns,
                                              Deadline deadline = Deadline::by_default());

  /// `environment/turns`, `/done`, `/exhausted`, `/cut`, `/retries`, `/failed/<reason>` since the
  /// last call.
  runtime::Metrics take_metrics();

 private:
  class Round;
  EnvironmentServer(const Tokenizer& tokenizer, const EnvironmentRegistry& environments,
                    EnvironmentOptions options, std::vector<std::int32_t> before,
                    std::vector<std::int32_t> after);

  const Tokenizer& tokenizer_;
  const EnvironmentRegistry& environments_;
  EnvironmentOptions options_;
  std::vector<std::int32_t> before_;
  std::vector<std::int32_t> after_;
  runtime::Metrics metrics_;
};

}  // namespace troupe::actors
