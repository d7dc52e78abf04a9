#pragma once

// `PlanRound`: which rank processes of a group hold, and what the last call is that any has begun.
//
// Pure: it decides when to begin a round, whom to tell and when the round is complete; RemoteRanks
// does the telling and acts on the outcome.
// **Threads:** one owner.
// **Invariants:** a round is complete when every rank that lives has answered it; answers to other
// rounds are ignored; each `want` is covered by a round that completes after it.

#include "runtime/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::runtime {

class PlanRound {
 public:
  explicit PlanRound(std::size_t ranks) : ranks_(ranks) {}

  /// Something must be agreed upon. The number of the round to announce, or nothing when one is
  /// under way, which will do.
  std::optional<std::uint64_t> want();
  /// True when this was the last answer that the round waited for.
  bool held(RankId rank, std::uint64_t round, CallId last_begun);
  /// The rank has died; true when the round waited for it alone.
  bool gone(RankId rank);
  /// The round's decision was told to all. The number of the next round, if one is wanted.
  std::optional<std::uint64_t> told();
  /// Asked for after the decision of the present round was made.
  void decided() { decided_ = true; }

  std::uint64_t round() const { return round_; }
  bool open() const { return open_; }
  /// The last call that any rank has begun, of a complete round.
  CallId last_begun() const { return last_begun_; }

 private:
  struct State {
    bool gone = false;
    bool held = false;
  };
  bool complete() const;
  std::uint64_t begin();

  std::vector<State> ranks_;
  std::uint64_t round_ = 0;
  bool open_ = false;
  bool decided_ = false;
  bool again_ = false;
  CallId last_begun_{0};
};

}  // namespace troupe::runtime
