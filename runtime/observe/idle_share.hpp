#pragma once

// How much of a stretch of time ranks did nothing, from the spans of a trace.
//
// **Threads:** pure.
// **Invariants:** shares lie in [0, 1]; overlapping and nested spans count once.

#include "runtime/observe/trace.hpp"

#include <map>
#include <span>
#include <string>

namespace troupe::runtime {

/// Which spans belong to one worker of the statistic.
enum class IdleBy {
  kThread,  ///< by rank over all groups: colocated groups share rank i's device
  kPlace,   ///< by group and rank
};

struct IdleShare {
  double mean = 0;  ///< over the workers seen in `spans`; 0 when there is none
  double max = 0;
  std::map<std::string, double> by_worker;
};

/// Share of [begin, end) in which a worker had no span but those of category `wait`. Every worker
/// that occurs anywhere in `spans` counts, also when it did nothing in this window.
IdleShare idle_share(std::span<const TraceSpan> spans, TimePoint begin, TimePoint end,
                     IdleBy by = IdleBy::kThread);

/// Window of a training step: from the first begin to the last end of its spans; equal ends when
/// the step has none.
std::pair<TimePoint, TimePoint> step_window(std::span<const TraceSpan> spans, std::int64_t step);

}  // namespace troupe::runtime
