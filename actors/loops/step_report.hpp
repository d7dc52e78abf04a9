#pragma once

// What one training step tells, and the stopwatch that fills `timing_s/…`.
//
// **Threads:** controller's thread.

#include "runtime/base/clock.hpp"
#include "runtime/observe/metrics.hpp"
#include "runtime/task/failure.hpp"
#include "runtime/task/task.hpp"

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace troupe::actors {

struct StepReport {
  std::int64_t step = 0;
  runtime::Metrics metrics;
};

/// Times awaited phases on a world's clock.
class StepTimer {
 public:
  StepTimer(const Clock& clock, runtime::Metrics& metrics) : clock_(clock), metrics_(metrics) {}

  /// Awaits `work`; adds its seconds as `timing_s/<phase>` (summed when a phase comes twice).
  template <class T>
  runtime::task<T> timed(std::string phase, runtime::task<T> work) {
    const TimePoint begin = clock_.now();
    if constexpr (std::is_void_v<T>) {
      co_await std::move(work);
      add(phase, begin);
    } else {
      T value = co_await std::move(work);
      add(phase, begin);
      co_return value;
    }
  }

  void add(const std::string& phase, TimePoint begin) {
    metrics_.add("timing_s/" + phase, seconds(clock_.now() - begin), runtime::Reduction::kSum);
  }

 private:
  const Clock& clock_;
  runtime::Metrics& metrics_;
};

}  // namespace troupe::actors
