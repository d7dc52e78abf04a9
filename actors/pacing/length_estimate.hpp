#pragma once

// How long an answer will be: from its own group's finished samples, else a hint (the prompt's last
// epoch), else the mean of everything seen.
//
// **Threads:** a value type.
// **Invariants:** estimates are at least what was already generated plus one, at most the bound on
// new tokens; integers only, equal histories give equal estimates.

#include <cstdint>

namespace troupe::actors {

/// What is known about one group.
struct GroupLength {
  std::int64_t hint = 0;      ///< 0: none
  std::int64_t finished = 0;  ///< samples
  std::int64_t tokens = 0;    ///< of them
  std::int64_t longest = 0;
};

class LengthEstimate {
 public:
  explicit LengthEstimate(std::int64_t new_tokens_max) : new_tokens_max_(new_tokens_max) {}

  void finished(GroupLength& group, std::int64_t tokens);
  bool knows(const GroupLength& group) const { return group.finished > 0 || group.hint > 0; }
  /// Final length of a sample that has `tokens` now.
  std::int64_t length(const GroupLength& group, std::int64_t tokens) const;
  std::int64_t remaining(const GroupLength& group, std::int64_t tokens) const {
    return length(group, tokens) - tokens;
  }

 private:
  std::int64_t new_tokens_max_;
  std::int64_t samples_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace troupe::actors
