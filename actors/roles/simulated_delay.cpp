#include "actors/roles/simulated_delay.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <thread>
#include <vector>

namespace troupe::actors {
namespace {

constexpr double kDaySeconds = 86'400;
constexpr double kSigmaMax = 4;

}  // namespace

result<void> SimulatedDelay::check() const {
  if (!(median_s >= 0 && median_s <= kDaySeconds))
    return fail(ErrorCode::kInvalidArgument, "simulated delay: median_s is {}, wanted 0 to {}",
                median_s, kDaySeconds);
  if (!(sigma >= 0 && sigma <= kSigmaMax))
    return fail(ErrorCode::kInvalidArgument, "simulated delay: sigma is {}, wanted 0 to {}", sigma,
                kSigmaMax);
  return {};
}

Duration SimulatedDelay::of(std::uint64_t prompt_id, std::uint32_t sample,
                            std::uint64_t sampling_seed) const {
  const std::uint64_t key = mix_seed(mix_seed(mix_seed(seed, prompt_id), sample), sampling_seed);
  const double drawn_s = median_s * std::exp(sigma * Rng(key).normal());
  const double bounded_s = std::clamp(drawn_s, 1e-9, kDaySeconds);
  return Duration(std::llround(bounded_s * 1e9));
}

Duration simulated_makespan(std::span<const Duration> durations, std::int64_t slots) {
  TROUPE_CHECK(slots >= 1, "simulated delay: {} slots", slots);
  std::priority_queue<Duration, std::vector<Duration>, std::greater<>> running;  // their ends
  Duration last{0};
  for (const Duration& duration : durations) {
    Duration begin{0};
    if (static_cast<std::int64_t>(running.size()) == slots) {
      begin = running.top();
      running.pop();
    }
    running.push(begin + duration);
    last = std::max(last, begin + duration);
  }
  return last;
}

void SteadyWaitingClock::sleep_for(Duration span) { std::this_thread::sleep_for(span); }

}  // namespace troupe::actors
