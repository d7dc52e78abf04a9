#pragma once

// A trajectory: one sample as a value that can stop anywhere and go on anywhere.
//
// It holds everything that the rest of the sample depends on, so partial rollout, interruption for
// new weights, migration to another rank, re-issue after a crash and a checkpoint are one
// operation: `resume_request` here, `absorb` there. Draws are keyed by (seed, prompt id, sample
// index, position), so "random state" is a position, and a resumed sample goes on with the draws
// that it would have had.
//
// Environments append tokens of their own between turns (`append_environment`): they are masked
// from the loss, have no log-probs and no version. What comes before the last of them is prompt to
// the engine, what was sampled after it is the engine's prefix; nothing is tokenised again.
// **Ownership:** owns its bytes. **Threads:** a value type.
// **Invariants (`check`):** `log_probs`, `full_log_probs`, `versions` and `mask` have one entry per
// token; `sampler_position` = prompt + tokens; a token is masked in from the start only if it was
// sampled; `absorb` extends, it never rewrites: an answer that disagrees with what is already there
// is refused, the same answer twice changes nothing.

#include "actors/rollout/generate_request.hpp"
#include "actors/rollout/sampling_options.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// The version of a token that no weights produced.
inline constexpr WeightVersion kNoVersion{-1};

/// Oldest and newest weights in one trajectory or group. Empty: nothing was sampled yet.
struct VersionSpan {
  WeightVersion oldest = kNoVersion;
  WeightVersion newest = kNoVersion;
  bool operator==(const VersionSpan&) const = default;

  bool empty() const { return oldest == kNoVersion; }
  /// Versions crossed: 0 when one version made it all.
  std::int64_t crossed() const { return newest.value - oldest.value; }
  void add(WeightVersion version);
  void add(const VersionSpan& other);
};

enum class TrajectoryState : std::uint8_t {
  kPartial,   ///< goes on when somebody resumes it
  kFinished,  ///< `reason` says how it ended
};

struct Trajectory {
  std::uint64_t group = 0;         ///< issue number in the staleness ledger
  std::uint64_t prompt_id = 0;     ///< row in the data set; keys the draws
  std::uint32_t sample_index = 0;  ///< place in the group; keys the draws
  WeightVersion issued_at{0};      ///< published version when the ledger admitted the group

  std::vector<std::int32_t> prompt{};
  std::vector<std::int32_t> tokens{};  ///< sampled and environment tokens after the prompt
  std::vector<float> log_probs{};      ///< of the distribution drawn from; 0 for environment tokens
  std::vector<float> full_log_probs{};    ///< without truncation; 0 for environment tokens
  std::vector<WeightVersion> versions{};  ///< kNoVersion for environment tokens
  std::vector<std::uint8_t> mask{};       ///< 1: counts in the loss
  SamplingOptions sampling{};             ///< its seed is the step's
  std::uint64_t sampler_position = 0;     ///< of the next draw, from the start of the prompt
  std::int64_t turn_begin = 0;            ///< tokens up to here are prompt to the engine
  std::vector<std::byte> environment{};   ///< state of the environment, its own format
  TrajectoryState state = TrajectoryState::kPartial;
  StopReason reason = StopReason::kAborted;  ///< how the last piece ended
  std::string text{};                        ///< of the last turn, when stop strings are set
  std::optional<double> score{};             ///< reward, once there is one

  bool operator==(const Trajectory&) const = default;

  /// The start of a sample: nothing generated yet.
  static Trajectory begin(std::uint64_t group, std::uint64_t prompt_id, std::uint32_t sample_index,
                          WeightVersion issued_at, std::vector<std::int32_t> prompt,
                          SamplingOptions sampling);

  /// kInvalidArgument naming group, sample, field and both values.
  result<void> check() const;

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
  /// Tokens that may still follow; environment tokens count against `max_new_tokens` too.
  std::int64_t budget_left() const { return sampling.max_new_tokens - length(); }
  /// Weights that made its sampled tokens, masked or not.
  VersionSpan span() const;

  /// What to ask an engine so that this sample goes on. kConflict when it is finished, or when its
  /// budget is used up.
  result<GenerateRequest> resume_request() const;

  /// Takes what an engine answered to `resume_request`; its tokens begin with the prefix that was
  /// sent. `kAborted` leaves it partial, `kFailed` is the sequence's error and changes nothing.
  /// kConflict when the answer is of another sample or does not extend this one.
  result<void> absorb(const GeneratedSequence& answer);

  /// Takes a piece of a sample under way: what came behind the first `from` tokens, and how the
  /// turn ended if it did (`text` as engines give it). Extends, never rewrites: what is there
  /// already must be repeated bit for bit, so the same piece twice changes nothing. kConflict for a
  /// gap, a fork, a piece of an earlier turn, or more tokens than the budget has.
  result<void> extend(std::int64_t from, const SamplePrefix& piece,
                      std::optional<StopReason> ended = std::nullopt, std::string_view text = {});

  /// A turn of the environment: its tokens (masked) and its new state; the sample goes on behind
  /// them. kConflict when that leaves no budget: nothing changes then.
  result<void> append_environment(std::span<const std::int32_t> added,
                                  std::vector<std::byte> environment_state);

  /// Forgets all tokens from `length` on. CHECKs that it lies in this turn.
  void rewind(std::int64_t length);

  /// Masks sampled tokens of weights older than `oldest`; how many it masked. They go on counting
  /// in denominators, so that masking never makes a gradient larger.
  std::int64_t mask_older_than(WeightVersion oldest);
  std::int64_t tokens_in_loss() const;
};

/// One request for samples of one group, so that they share a prefill. kConflict when two differ in
/// group, prompt, turn or sampling.
result<GenerateRequest> resume_group(std::span<const Trajectory> samples);

}  // namespace troupe::actors
