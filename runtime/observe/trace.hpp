#pragma once

// What ran where and when, in the form that chrome://tracing and Perfetto load.
//
// A process of the trace is a worker group or a device, a thread is a rank. Spans, counters and
// flow arrows go to a bounded buffer and are written as one JSON file, atomically.
// **Threads:** any thread may record; `write` may run meanwhile and sees a consistent moment.
// **Invariants:** at most `events_max` events are kept, the newest; `dropped` counts the rest.
// Names are cut at 200 bytes. Non-finite counter values are dropped, as JSON has none.
// **Cost:** one short lock and the copy of the names per event.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// Where an event belongs: a row of the picture.
struct TracePlace {
  std::string process;  ///< worker group or device, e.g. `policy`
  std::string thread;   ///< rank, e.g. `rank 1`
  auto operator<=>(const TracePlace&) const = default;
};

struct TraceSpan {
  TracePlace place;
  std::string name;      ///< e.g. `update`
  std::string category;  ///< e.g. `compute`; `wait` does not count as busy
  TimePoint begin;
  TimePoint end;
  std::int64_t step = -1;  ///< training step, or -1
  bool operator==(const TraceSpan&) const = default;
};

enum class FlowPoint { kStart, kStep, kEnd };

class Trace {
 public:
  struct Options {
    std::size_t events_max = std::size_t{1} << 18;
    TimePoint origin = SteadyClock().now();  ///< time 0 of the file
  };
  Trace() : Trace(Options{}) {}
  explicit Trace(Options options) : options_(options) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// A complete event. A span that ends before it begins is kept with length 0.
  void span(TraceSpan span);
  /// A sample of a quantity over time, drawn as a graph.
  void counter(std::string_view process, std::string_view name, TimePoint at, double value);
  /// One point of an arrow between spans; points with one id belong together. `at` lies inside
  /// the span that the arrow touches.
  void flow(std::uint64_t id, std::string_view name, const TracePlace& place, TimePoint at,
            FlowPoint point);

  /// Kept spans, in order of their begin.
  std::vector<TraceSpan> spans() const;
  std::int64_t dropped() const;
  std::size_t size() const;

  std::string to_json() const;
  result<void> write(const std::string& path) const;

 private:
  struct Event {
    enum class Kind { kSpan, kCounter, kFlow } kind = Kind::kSpan;
    TraceSpan span;        // place, name and begin serve all kinds
    double value = 0;      // counter
    std::uint64_t id = 0;  // flow
    FlowPoint point = FlowPoint::kStart;
  };
  void keep(Event event);
  double microseconds(TimePoint at) const;

  const Options options_;
  mutable std::mutex mutex_;  // guards events_ and dropped_
  std::deque<Event> events_;
  std::int64_t dropped_ = 0;
};

/// Records a span from construction to destruction.
class ScopedSpan {
 public:
  ScopedSpan(Trace* trace, TracePlace place, std::string name, std::string category = "compute",
             std::int64_t step = -1);
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;
  ~ScopedSpan();

 private:
  Trace* trace_;  // may be null: then nothing is recorded
  TraceSpan span_;
};

/// What a report needs of a trace file; times are relative to the trace's origin.
struct TraceFile {
  std::vector<TraceSpan> spans;  ///< in order of their begin
  std::int64_t dropped = 0;
};

/// Reads the spans of a file that `Trace::write` made. Events of other kinds are skipped. kCorrupt
/// names what is wrong; files above 1 GiB are refused.
result<TraceFile> read_trace(const std::string& path);
result<TraceFile> parse_trace(std::string_view json, std::string_view source);

}  // namespace troupe::runtime
