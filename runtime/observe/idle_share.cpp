#include "runtime/observe/idle_share.hpp"

#include <algorithm>
#include <vector>

namespace troupe::runtime {

IdleShare idle_share(std::span<const TraceSpan> spans, TimePoint begin, TimePoint end, IdleBy by) {
  std::map<std::string, std::vector<std::pair<TimePoint, TimePoint>>> busy;
  for (const auto& span : spans) {
    auto& intervals = busy[by == IdleBy::kThread ? span.place.thread
                                                 : span.place.process + " " + span.place.thread];
    const TimePoint from = std::max(span.begin, begin);
    const TimePoint to = std::min(span.end, end);
    if (from < to && span.category != "wait") intervals.emplace_back(from, to);
  }
  IdleShare share;
  if (begin >= end || busy.empty()) return share;
  for (auto& [worker, intervals] : busy) {
    std::sort(intervals.begin(), intervals.end());
    Duration covered{0};
    TimePoint reached = begin;
    for (const auto& [from, to] : intervals) {
      if (to <= reached) continue;
      covered += to - std::max(from, reached);
      reached = to;
    }
    const double idle =
        1.0 - static_cast<double>(covered.count()) / static_cast<double>((end - begin).count());
    share.by_worker[worker] = std::clamp(idle, 0.0, 1.0);
    share.mean += share.by_worker[worker] / static_cast<double>(busy.size());
    share.max = std::max(share.max, share.by_worker[worker]);
  }
  return share;
}

std::pair<TimePoint, TimePoint> step_window(std::span<const TraceSpan> spans, std::int64_t step) {
  std::pair<TimePoint, TimePoint> window{};
  bool found = false;
  for (const auto& span : spans) {
    if (span.step != step) continue;
    window.first = found ? std::min(window.first, span.begin) : span.begin;
    window.second = found ? std::max(window.second, span.end) : span.end;
    found = true;
  }
  return window;
}

}  // namespace troupe::runtime
