#include "actors/rollout/sampling_options.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

struct Range {
  const char* name;
  double value;
  double low;
  double high;
};

}  // namespace

result<void> SamplingOptions::check() const {
  constexpr double kLarge = 1e6;
  for (const Range& range :
       {Range{"temperature", temperature, 0.0, kLarge}, Range{"min_p", min_p, 0.0, 1.0},
        Range{"frequency_penalty", frequency_penalty, -2.0, 2.0},
        Range{"presence_penalty", presence_penalty, -2.0, 2.0}})
    if (!(range.value >= range.low && range.value <= range.high))
      return fail(ErrorCode::kInvalidArgument, "sampling: {} is {}, wanted {} to {}", range.name,
                  range.value, range.low, range.high);
  if (!(top_p > 0.0 && top_p <= 1.0))
    return fail(ErrorCode::kInvalidArgument, "sampling: top_p is {}, wanted above 0 to 1", top_p);
  if (!(repetition_penalty > 0.0 && repetition_penalty <= kLarge))
    return fail(ErrorCode::kInvalidArgument,
                "sampling: repetition_penalty is {}, wanted above 0 to {}", repetition_penalty,
                kLarge);
  if (max_new_tokens < 1)
    return fail(ErrorCode::kInvalidArgument, "sampling: max_new_tokens is {}, wanted ≥ 1",
                max_new_tokens);
  if (std::ranges::any_of(stop_strings, [](const std::string& s) { return s.empty(); }))
    return fail(ErrorCode::kInvalidArgument, "sampling: stop_strings holds an empty string");
  return {};
}

}  // namespace troupe::actors
