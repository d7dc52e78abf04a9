#include "sim/report/compare.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace troupe::sim {
namespace {

constexpr std::size_t kPartsNamed = 3;

double value_of(const SimReport& report, const std::string& name) {
  const auto at = report.numbers.find(name);
  return at == report.numbers.end() ? 0 : at->second.value;
}

/// Parts of the step that either has, by how much they differ.
std::vector<ComparedNumber> parts_of(const SimReport& a, const SimReport& b) {
  std::set<std::string> names;
  for (const SimReport* report : {&a, &b})
    for (const auto& [name, spread] : report->numbers)
      if (name.starts_with("parts/") && spread.value > 0) names.insert(name);
  std::vector<ComparedNumber> parts;
  for (const std::string& name : names)
    parts.push_back({.name = name,
                     .label = "  " + name.substr(6) + ", s",
                     .a = value_of(a, name),
                     .b = value_of(b, name)});
  std::ranges::stable_sort(parts, std::greater{},
                           [](const ComparedNumber& one) { return std::abs(one.a - one.b); });
  return parts;
}

/// Device seconds of a step that all pools idle, by cause.
std::map<std::string, double> idle_by(const SimReport& report) {
  std::map<std::string, double> by;
  for (const PoolUse& pool : report.pools)
    for (const auto& [cause, share] : pool.idle_by)
      by[cause] += share * pool.devices / report.devices;
  return by;
}

std::string biggest(const std::map<std::string, double>& by) {
  const auto most = std::ranges::max_element(
      by, [](const auto& left, const auto& right) { return left.second < right.second; });
  if (most == by.end() || most->second <= 0) return "never waits";
  double sum = 0;
  for (const auto& [cause, share] : by) sum += share;
  return fmt::format("idles {:.1f} % of device time, most of it ({:.1f} %) waiting for {}",
                     100 * sum, 100 * most->second, most->first);
}

}  // namespace

std::vector<ComparedNumber> compared_numbers(const SimReport& a, const SimReport& b) {
  std::vector<ComparedNumber> all{{.name = "step_s", .label = "step, s"}};
  const std::vector<ComparedNumber> parts = parts_of(a, b);
  all.insert(all.end(), parts.begin(), parts.end());
  const std::vector<std::pair<const char*, const char*>> others{
      {"tokens_per_s", "tokens/s"},
      {"tokens_per_s_device", "tokens/s/GPU"},
      {"update_mfu", "MFU of updates"},
      {"run_mfu", "MFU of the whole run"},
      {"cost_per_step", "cost of a step, $"},
      {"cost_per_million_tokens", "cost of 10^6 tokens, $"}};
  for (const auto& [name, label] : others) all.push_back({.name = name, .label = label});
  for (ComparedNumber& one : all) {
    one.a = value_of(a, one.name);
    one.b = value_of(b, one.name);
  }
  return all;
}

std::vector<std::string> reasons(const SimReport& a, const SimReport& b) {
  const double step_a = value_of(a, "step_s");
  const double step_b = value_of(b, "step_s");
  const double change = step_b - step_a;
  std::vector<std::string> lines;
  std::vector<std::string> parts;
  for (const ComparedNumber& part : parts_of(a, b)) {
    const double moved = part.b - part.a;
    if (parts.size() == kPartsNamed || std::abs(moved) < 1e-3 * step_a) break;
    parts.push_back(fmt::format("{} {:+.4g} s", part.name.substr(6), moved));
  }
  if (parts.empty())
    lines.push_back(fmt::format("B takes as long as A ({:+.3g} s a step)", change));
  else
    lines.push_back(fmt::format("B takes {:.4g} s {} a step: {}", std::abs(change),
                                change < 0 ? "less" : "more", fmt::join(parts, ", ")));
  lines.push_back("A " + biggest(idle_by(a)));
  lines.push_back("B " + biggest(idle_by(b)));
  if (a.samples > 1 && b.samples > 1) {
    const Spread& one = a.numbers.at("step_s");
    const Spread& other = b.numbers.at("step_s");
    const bool apart = one.p90 < other.p10 || other.p90 < one.p10;
    lines.push_back(apart ? "p10 to p90 of the two step times do not overlap"
                          : "p10 to p90 of the two step times overlap: with these ranges of the "
                            "constants either may be faster");
  }
  return lines;
}

}  // namespace troupe::sim
