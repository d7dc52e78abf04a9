#include "sim/cost/step_profile.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace troupe::sim {

double StepProfile::step_s(std::int64_t sequences) const {
  TROUPE_CHECK(!points.empty(), "a profile of steps without points");
  if (sequences <= points.front().sequences || points.size() == 1) return points.front().step_s;
  const auto above = std::ranges::lower_bound(points, sequences, {}, &Point::sequences);
  const auto high = above == points.end() ? points.end() - 1 : above;
  const auto low = high - 1;
  const double share = static_cast<double>(sequences - low->sequences) /
                       static_cast<double>(high->sequences - low->sequences);
  return low->step_s + share * (high->step_s - low->step_s);
}

result<StepProfile> parse_step_profile(std::string_view text, const std::string& source) {
  StepProfile profile;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::ranges::replace(line, ',', ' ');
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::istringstream words(line);
    StepProfile::Point point;
    std::string rest;
    const bool read = static_cast<bool>(words >> point.sequences >> point.step_s);
    if (!read || words >> rest || point.sequences < 1 || !(point.step_s > 0) ||
        !std::isfinite(point.step_s)) {
      if (number == 1) continue;  // a heading
      return fail(ErrorCode::kCorrupt,
                  "{}:{}: '{}' is no step, wanted sequences from 1 and positive seconds", source,
                  number, line);
    }
    if (!profile.empty() && (point.sequences <= profile.points.back().sequences ||
                             point.step_s < profile.points.back().step_s))
      return fail(ErrorCode::kCorrupt,
                  "{}:{}: {} sequences in {} s after {} in {}; sequences must rise and times must "
                  "not fall",
                  source, number, point.sequences, point.step_s, profile.points.back().sequences,
                  profile.points.back().step_s);
    profile.points.push_back(point);
  }
  if (profile.empty()) return fail(ErrorCode::kCorrupt, "{}: no steps in it", source);
  return profile;
}

result<StepProfile> read_step_profile(const std::string& file) {
  TROUPE_TRY(const std::string text, read_text_file(file));
  return parse_step_profile(text, file);
}

}  // namespace troupe::sim
