#pragma once

// Writes every call of a worker group into a trace: one span per rank.
//
// **Ownership:** borrows the trace.
// **Threads:** as CallTrace: any engine thread.

#include "runtime/group/call_trace.hpp"
#include "runtime/observe/trace.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace troupe::apps {

class TraceCalls final : public runtime::CallTrace {
 public:
  explicit TraceCalls(runtime::Trace& trace) : trace_(trace) {}

  /// Spans from now on belong to this training step.
  void set_step(std::int64_t step) { step_ = step; }
  void on_call(const runtime::CallSpan& span) override;
  /// Spans since the last call of this function, for the step's idle share.
  std::vector<runtime::TraceSpan> take_spans();

 private:
  static constexpr std::size_t kSpansMax = 1 << 16;

  runtime::Trace& trace_;
  std::mutex mutex_;  // guards spans_
  std::vector<runtime::TraceSpan> spans_;
  std::atomic<std::int64_t> step_{-1};
};

}  // namespace troupe::apps
