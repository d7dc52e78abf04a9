#pragma once

// Declared generation times: makes a fast engine behave as if its samples took as long as those of
// a large model, so that pacing and straggler tools can be measured on small machines. What is
// measured with it is labelled `simulated/`.
//
// A sample's duration is log-normal and keyed by what it is, not by who draws it: the same sample
// takes the same time on every rank, after every resume and in every loop.
// **Threads:** pure functions; a clock says itself who may call it.
// **Invariants:** durations are above 0 and at most a day.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/wire/wire_traits.hpp"

#include <cstdint>
#include <span>
#include <tuple>

namespace troupe::actors {

struct SimulatedDelay {
  double median_s = 0;  ///< of a sample; 0: nothing is simulated
  double sigma = 0;     ///< of the logarithm of the duration
  std::uint64_t seed = 0;

  bool operator==(const SimulatedDelay&) const = default;
  bool on() const { return median_s > 0; }
  /// kInvalidArgument naming the field: median 0 to a day, sigma 0 to 4.
  result<void> check() const;
  /// How long sample `sample` of prompt `prompt_id` takes when it is sampled under `sampling_seed`.
  Duration of(std::uint64_t prompt_id, std::uint32_t sample, std::uint64_t sampling_seed) const;

  static constexpr auto fields() {
    using runtime::field;
    using T = SimulatedDelay;
    return std::tuple{field("median_s", &T::median_s), field("sigma", &T::sigma),
                      field("seed", &T::seed)};
  }
};

/// When the last of `durations` ends if `slots` of them run at a time, each next one in the slot
/// that gets free first.
Duration simulated_makespan(std::span<const Duration> durations, std::int64_t slots);

/// A clock that can wait. **Threads:** one waits at a time.
class WaitingClock : public Clock {
 public:
  virtual void sleep_for(Duration span) = 0;
};

class SteadyWaitingClock final : public WaitingClock {
 public:
  TimePoint now() const override { return SteadyClock().now(); }
  void sleep_for(Duration span) override;
};

}  // namespace troupe::actors
