#include "actors/pacing/token_account.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace troupe::actors {

std::string_view waste_reason_name(WasteReason reason) {
  constexpr std::array<std::string_view, kWasteReasons> kNames{"restart", "hedge", "redundant",
                                                               "failed", "dropped"};
  return kNames[static_cast<std::size_t>(reason)];
}

std::int64_t TokenAccount::wasted_total() const {
  std::int64_t total = 0;
  for (const std::int64_t tokens : wasted) total += tokens;
  return total;
}

void LengthBias::Side::add(std::int64_t length) {
  ++samples;
  tokens += length;
  const auto bits = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)));
  ++histogram[std::min(bits, kBuckets - 1)];
}

double LengthBias::Side::mean() const {
  return samples == 0 ? 0.0 : static_cast<double>(tokens) / static_cast<double>(samples);
}

double LengthBias::ratio() const {
  const double all = started.mean();
  return kept.samples == 0 || all == 0.0 ? 1.0 : kept.mean() / all;
}

std::string LengthBias::to_string() const {
  return fmt::format("kept {} samples of mean length {:.1f}, started {} of {:.1f}, ratio {:.3f}",
                     kept.samples, kept.mean(), started.samples, started.mean(), ratio());
}

}  // namespace troupe::actors
