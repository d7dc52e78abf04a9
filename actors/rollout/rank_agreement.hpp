#pragma once

// What the ranks of a tensor-parallel engine tell each other so that they stay the same: before a
// step what each is about to do, and votes on things that must happen on all ranks or on none.
//
// Each rank keeps a digest of its history (submissions, aborts, updates, plans, tokens). One
// all-gather of a few numbers per step compares them; every rank sees all of them, so every rank
// comes to the same verdict.
// **Ownership:** borrows the collective.
// **Threads:** one thread.
// **Invariants:** every wait ends at `timeout`; a verdict other than go is the same on all ranks.
// **Cost:** a claim does not allocate.

#include "actors/rollout/digest.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/comm/collective.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// What a rank is about to do. Numbers only: they travel as they are.
struct RankClaim {
  enum Action : std::int64_t { kStep, kCanary };
  enum Refusal : std::int64_t { kNone, kWeights, kKv, kRequest };

  std::int64_t action = kStep;
  std::int64_t version = 0;  ///< of the weights that serve
  std::int64_t history = 0;
  std::int64_t plan = 0;         ///< digest of what runs
  std::int64_t refusal = kNone;  ///< why this rank cannot go on
  std::int64_t expired = 0;      ///< 1: its caller's deadline has passed
};
inline constexpr std::size_t kClaimNumbers = sizeof(RankClaim) / sizeof(std::int64_t);

enum class Verdict {
  kGo,
  kExpired,  ///< the deadline of some rank has passed
};

class RankAgreement {
 public:
  RankAgreement(runtime::Collective& group, Duration timeout);

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  Deadline deadline() const { return Deadline::in(timeout_); }
  runtime::Collective& group() { return *group_; }

  /// Compares. kConflict names the first rank that differs from rank 0 and what differs, or the
  /// first rank that refuses.
  result<Verdict> compare(const RankClaim& claim);

  /// Goes on only when `local` is a success and `subject` the same on all ranks. A rank gets its
  /// own error; others kAborted naming it and its message. kConflict: `what` differs.
  result<void> vote(std::string_view what, const result<void>& local, std::int64_t subject);

  /// The smallest value of all ranks.
  result<std::int64_t> minimum(std::int64_t value);

 private:
  runtime::Collective* group_;
  Duration timeout_;
  std::vector<std::int64_t> claims_;  // [R, kClaimNumbers]
};

}  // namespace troupe::actors
