#pragma once

// `CallTrace`: told about every method that ran on a rank, for traces and idle shares.
//
// Ownership: outlives the groups that report to it.
// **Threads:** called on engine threads, several at a time; must not block.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"

#include <string_view>

namespace troupe::runtime {

/// One run of one method on one rank. The views live for the duration of the callback.
struct CallSpan {
  std::string_view group;
  RankId rank;
  std::string_view method;
  std::string_view phase;  ///< lane phase; empty when the method needs no lane
  CallId call;             ///< the same on all ranks of one call
  TimePoint submitted;     ///< when the controller called
  TimePoint begin;         ///< when the method began, after its turn in the lane came
  TimePoint end;
  bool ok = true;
};

class CallTrace {
 public:
  virtual ~CallTrace() = default;
  virtual void on_call(const CallSpan& span) = 0;
};

}  // namespace troupe::runtime
