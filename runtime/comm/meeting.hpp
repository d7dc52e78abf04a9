#pragma once

// Where the ranks of a group between processes meet: the core that rank 0 keeps.
//
// Each rank says what it calls; when all have, the core compares and says go, or why not, to all.
// A rank whose deadline passes asks to withdraw: the operation fails on every rank, unless it had
// begun. So an operation happens on all ranks or on none.
// **Threads:** one at a time; no clock, no input or output: what it returns is told to all ranks,
// in the order of the calls that returned it.
// **Invariants:** the first failure stays; after it nothing begins. A rank's departure alone is no
// failure, since messages that it sent are still heard, but it ends what waits for it.

#include "runtime/comm/posted_call.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::runtime {

/// What rank 0 tells all ranks, itself included.
struct Verdict {
  enum class Kind : std::uint8_t {
    kGo,      ///< `operation` has begun
    kFailed,  ///< the group, with `error`
    kGone,    ///< `rank` has left
  };
  Kind kind = Kind::kGo;
  std::uint64_t operation = 0;
  int rank = 0;
  std::optional<Error> error = {};
};

class Meeting {
 public:
  explicit Meeting(GroupLabels labels);

  /// `operation` is how many operations the rank has called, this one included.
  std::optional<Verdict> arrive(int rank, std::uint64_t operation, PostedCall call);
  /// The rank's deadline for `operation` has passed.
  std::optional<Verdict> withdraw(int rank, std::uint64_t operation);
  std::optional<Verdict> fail(Error error);
  std::optional<Verdict> depart(int rank);

  const std::optional<Error>& failure() const { return failure_; }

 private:
  const GroupLabels labels_;
  std::vector<PostedCall> calls_;
  std::vector<char> arrived_;
  std::vector<char> departed_;
  int arrived_count_ = 0;
  std::uint64_t begun_ = 0;
  std::optional<Error> failure_;
};

}  // namespace troupe::runtime
