#pragma once

// A sample under way, and the group of samples that share one prompt.
//
// The *trunk* of a group is the sequence that prefills the prompt; members fork from it. A member
// that loses its KV (preemption) waits for the trunk again and recomputes its own output.
// **Ownership:** a group owns its trunk and members; the engine owns groups.
// **Threads:** one thread.
// **Invariants:** `computed` tokens have their keys and values in `blocks`; a running sequence that
// is not a finished trunk has at least one token that is not computed; a waiting one has no blocks.

#include "actors/rollout/block_pool.hpp"
#include "actors/rollout/generate_request.hpp"

#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

namespace troupe::actors {

struct PromptGroup;

enum class SequenceState { kWaiting, kRunning, kFinished };

struct Sequence {
  static constexpr std::int32_t kTrunk = INT32_MAX;

  SequenceId id;
  PromptGroup* group = nullptr;
  std::int32_t member = 0;  ///< place in the group; kTrunk for the trunk
  SequenceState state = SequenceState::kWaiting;

  std::vector<std::int32_t> tokens;  ///< prompt, then output
  std::int32_t prompt_tokens = 0;
  std::int32_t computed = 0;  ///< tokens whose KV is in the cache
  std::int64_t kv_era = 0;    ///< era of the weights that computed it; see BatchScheduler::new_era
  std::int64_t prompt_weights = 0;  ///< see BatchScheduler::new_weights; of its prompt's KV
  BlockTable blocks;

  // Output, one entry per generated token.
  std::uint32_t sample_index = 0;
  std::vector<float> log_probs;
  std::vector<float> full_log_probs;
  std::vector<WeightVersion> versions;
  std::string text;  ///< only when stop strings are set

  bool is_trunk() const { return member == kTrunk; }
  std::int32_t length() const { return static_cast<std::int32_t>(tokens.size()); }
  std::int32_t output_tokens() const { return length() - prompt_tokens; }
  /// Tokens still to run through the model.
  std::int32_t pending() const { return length() - computed; }
};

struct PromptGroup {
  std::int64_t arrival = 0;  ///< order of submission: earlier groups go first
  std::uint64_t prompt_id = 0;
  /// Groups of one key that have the same prompt may take its KV from each other; 0: none does.
  std::uint64_t prompt_key = 0;
  SamplingOptions sampling;
  Sequence trunk;
  std::vector<std::unique_ptr<Sequence>> members;
  std::int32_t waiting = 0;     ///< members in state kWaiting
  std::int32_t unfinished = 0;  ///< members not in state kFinished
  bool begun = false;           ///< its trunk was scheduled once

  bool trunk_ready() const {
    return trunk.state == SequenceState::kRunning && trunk.pending() == 0;
  }
};

/// Order in which sequences are served; the last one is preempted first.
inline std::strong_ordering priority(const Sequence& a, const Sequence& b) {
  if (const auto by_arrival = a.group->arrival <=> b.group->arrival; by_arrival != 0)
    return by_arrival;
  return a.member <=> b.member;
}

}  // namespace troupe::actors
