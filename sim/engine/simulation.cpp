#include "sim/engine/simulation.hpp"

#include <optional>

namespace troupe::sim {
namespace {

/// Later than anything: how far an executor looks for timers when no event bounds it.
constexpr Duration kFar = std::chrono::hours(24) * 365 * 100;

}  // namespace

EventId Simulation::at(TimePoint at, Process& process, std::uint32_t kind, std::uint64_t argument,
                       EventClass event_class) {
  TROUPE_CHECK(at >= now(), "simulation: event {} at {} ns is past, it is {} ns",
               process.name_of(kind), at.time_since_epoch().count(),
               now().time_since_epoch().count());
  if (process.id_ == 0) process.id_ = ++processes_;
  return queue_.push(at, event_class, Event{&process, kind, argument});
}

result<void> Simulation::run_one() {
  const auto popped = queue_.pop();
  if (!popped) return {};
  const Event& event = popped->event;
  if (++events_ > options_.events_max)
    return fail(ErrorCode::kResourceExhausted,
                "simulation: {} events were not enough, the last was {} at {:.9f} s",
                options_.events_max, event.process->name_of(event.kind),
                seconds(popped->at.time_since_epoch()));
  clock_.advance_to(popped->at);
  if (options_.log != nullptr)
    options_.log->record(popped->at, event.process->name_of(event.kind), event.process->id_,
                         event.argument);
  event.process->on_event(*this, event);
  return {};
}

result<void> Simulation::run() {
  while (!queue_.empty()) TROUPE_TRY_VOID(run_one());
  return {};
}

result<void> Simulation::run_until(TimePoint until) {
  while (true) {
    const auto next = queue_.next_time();
    if (!next || *next > until) break;
    TROUPE_TRY_VOID(run_one());
  }
  clock_.advance_to(until);
  return {};
}

result<bool> Simulation::advance() {
  const std::optional<TimePoint> next = queue_.next_time();
  const TimePoint until = next ? *next : now() + kFar;
  // Moves the clock to whatever comes first: a timer of the executor, or the event.
  if (executor_.core()->wait(until)) return true;
  if (!next) return false;
  while (queue_.next_time() == next) TROUPE_TRY_VOID(run_one());
  return true;
}

}  // namespace troupe::sim
