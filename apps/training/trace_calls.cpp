#include "apps/training/trace_calls.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace troupe::apps {

void TraceCalls::on_call(const runtime::CallSpan& span) {
  runtime::TraceSpan row{
      .place = {std::string(span.group), fmt::format("rank {}", span.rank.value)},
      .name = std::string(span.method),
      .category = span.ok ? "compute" : "failed",
      .begin = span.begin,
      .end = span.end,
      .step = step_.load()};
  {
    const std::lock_guard lock(mutex_);
    if (spans_.size() < kSpansMax) spans_.push_back(row);
  }
  trace_.span(std::move(row));
}

std::vector<runtime::TraceSpan> TraceCalls::take_spans() {
  const std::lock_guard lock(mutex_);
  return std::exchange(spans_, {});
}

}  // namespace troupe::apps
