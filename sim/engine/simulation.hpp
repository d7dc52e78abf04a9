#pragma once

// A discrete-event simulation: virtual time, processes that get events, and a log of what happened.
//
//   class Server : public Process {
//     void on_event(Simulation& simulation, const Event& event) override { … }
//   };
//   simulation.after(service_time, server, kDone, job);
//
// Loop programs run on the same virtual time: `run_task` drives a coroutine executor and the events
// together, so that a coroutine awaits what a process completes (`runtime::make_pending`) and both
// see one clock.
// **Ownership:** borrows processes, which outlive their pending events.
// **Threads:** one; many simulations may run side by side in one process.
// **Invariants:** time never goes back; the same processes and seeds give the same events in the
// same order on every machine, which `digest` of the log shows. Nothing reads the machine's clock.
// **Cost:** bench/sim_events.

#include "runtime/base/result.hpp"
#include "runtime/task/executor.hpp"
#include "runtime/task/virtual_clock.hpp"
#include "sim/engine/event_log.hpp"
#include "sim/engine/event_queue.hpp"

#include <cstdint>
#include <string_view>
#include <utility>

namespace troupe::sim {

class Simulation;
struct Event;

/// Something that events happen to.
class Process {
 public:
  virtual ~Process() = default;
  virtual void on_event(Simulation& simulation, const Event& event) = 0;
  /// Of one of its kinds of event, for the log and for errors.
  virtual std::string_view name_of(std::uint32_t kind) const = 0;

 private:
  friend class Simulation;
  std::uint32_t id_ = 0;  ///< in order of first scheduling; 0: not yet
};

struct Event {
  Process* process = nullptr;
  std::uint32_t kind = 0;      ///< the process's own numbering
  std::uint64_t argument = 0;  ///< and what it makes of it
};

struct SimulationOptions {
  std::uint64_t events_max = 4'000'000'000;  ///< a run that needs more ends with an error
  EventLog* log = nullptr;                   ///< told of every event, if given
};

class Simulation {
 public:
  explicit Simulation(SimulationOptions options = {}) : options_(options), executor_(clock_) {}
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  TimePoint now() const { return clock_.now(); }
  const Clock& clock() const { return clock_; }
  runtime::Executor& executor() { return executor_; }

  /// CHECKs that `at` is not past.
  EventId at(TimePoint at, Process& process, std::uint32_t kind, std::uint64_t argument = 0,
             EventClass event_class = EventClass::kDefault);
  /// CHECKs that `span` is not negative.
  EventId after(Duration span, Process& process, std::uint32_t kind, std::uint64_t argument = 0,
                EventClass event_class = EventClass::kDefault) {
    return at(now() + span, process, kind, argument, event_class);
  }
  bool cancel(EventId id) { return queue_.cancel(id); }
  bool pending(EventId id) const { return queue_.pending(id); }

  /// Runs events up to and including `until`, and leaves the clock there; kResourceExhausted naming
  /// the last event when `events_max` were not enough.
  result<void> run_until(TimePoint until);
  /// Runs until nothing is pending.
  result<void> run();

  /// Runs coroutine `main` and all events that it needs. Errors: its own; kAborted when it waits
  /// for something that no pending event will bring; `run`'s.
  template <class T>
  result<T> run_task(runtime::task<T> main) {
    runtime::pending<T> outcome = executor_.spawn(std::move(main));
    TROUPE_TRY_VOID(drive([&outcome] { return outcome.ready(); }));
    return outcome.shared()->take();
  }

  std::uint64_t events() const { return events_; }

 private:
  template <class Over>
  result<void> drive(Over over) {
    while (true) {
      executor_.run_ready();
      if (over()) return {};
      const TimePoint since = now();
      TROUPE_TRY(const bool went_on, advance());
      if (!went_on)
        return fail(ErrorCode::kAborted,
                    "simulation: the program waits since {:.9f} s for what no event will bring",
                    seconds(since.time_since_epoch()));
    }
  }
  /// To the next instant at which an event or a timer is due; runs its events. False: none is.
  result<bool> advance();
  result<void> run_one();

  const SimulationOptions options_;
  runtime::VirtualClock clock_;
  EventQueue<Event> queue_;
  std::uint64_t events_ = 0;
  std::uint32_t processes_ = 0;
  runtime::Executor executor_;  // last: its coroutines end before what they use
};

}  // namespace troupe::sim
