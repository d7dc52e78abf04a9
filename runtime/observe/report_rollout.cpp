#include "runtime/observe/report_rollout.hpp"

#include "runtime/observe/svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr std::string_view kAgePrefix = "staleness/age_";
constexpr std::string_view kAgeSuffix = "/groups";
constexpr std::string_view kWall = "perf/wall_s";

/// `staleness/age_3/groups` → "3"; `…age_17_up/groups` → "17_up". Empty: another metric.
std::string_view age_of(std::string_view name) {
  if (!name.starts_with(kAgePrefix) || !name.ends_with(kAgeSuffix)) return {};
  name.remove_prefix(kAgePrefix.size());
  name.remove_suffix(kAgeSuffix.size());
  return name;
}

int age_number(std::string_view age) {
  int number = 0;
  std::from_chars(age.data(), age.data() + age.size(), number);
  return number;
}

/// Groups by the age of their oldest token, over the whole run.
std::vector<PlotBar> age_bars(const std::vector<MetricsRow>& rows, std::set<std::string>& shown) {
  std::map<std::pair<int, std::string>, double> groups;
  for (const MetricsRow& row : rows) {
    for (const auto& [name, value] : row.values) {
      const std::string_view age = age_of(name);
      if (age.empty()) continue;
      shown.insert(name);
      if (std::isfinite(value)) groups[{age_number(age), std::string(age)}] += value;
    }
  }
  std::vector<PlotBar> bars;
  for (const auto& [age, count] : groups) {
    const bool more = age.second.ends_with("_up");
    bars.push_back({fmt::format("{}{}", age.first, more ? " and up" : ""), count});
  }
  return bars;
}

PlotSeries over(const std::vector<MetricsRow>& rows, std::string_view x, const std::string& name) {
  PlotSeries series{.name = name, .points = {}};
  for (const MetricsRow& row : rows) {
    const auto value = row.values.find(name);
    const auto at = row.values.find(x);
    if (value == row.values.end() || (!x.empty() && at == row.values.end())) continue;
    series.points.emplace_back(x.empty() ? static_cast<double>(row.step) : at->second,
                               value->second);
  }
  // A restart of the run begins before the steps it does again.
  std::stable_sort(series.points.begin(), series.points.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return series;
}

bool any_name(const std::vector<MetricsRow>& rows, std::string_view prefix) {
  return std::any_of(rows.begin(), rows.end(), [&](const MetricsRow& row) {
    const auto at = row.values.lower_bound(prefix);
    return at != row.values.end() && at->first.starts_with(prefix);
  });
}

/// The whole run by group and rank, without the controller, which mostly waits.
std::string gantt(const TraceFile& trace) {
  std::vector<TraceSpan> ranks;
  for (const TraceSpan& span : trace.spans)
    if (span.place.thread.starts_with("rank ")) ranks.push_back(span);
  if (ranks.empty()) return {};
  TimePoint end = ranks.front().end;
  for (const TraceSpan& span : ranks) end = std::max(end, span.end);
  return "<div class=\"wide\">" +
         timeline_plot("Trainer and rollout replicas over the whole run", ranks,
                       ranks.front().begin, end) +
         "</div>\n";
}

}  // namespace

std::string rollout_section(const std::vector<MetricsRow>& rows, const TraceFile* trace,
                            std::set<std::string>& shown) {
  const std::vector<PlotBar> ages = age_bars(rows, shown);
  if (ages.empty()) return {};
  std::string out = "<h2>Rollout beside training</h2><div class=\"plots\">\n";
  out += "<div>" +
         bar_plot("Staleness: age of the oldest token when it was trained on, versions", "groups",
                  ages) +
         "</div>\n";
  const auto plot = [&](std::string_view title, std::initializer_list<const char*> names) {
    std::vector<PlotSeries> series;
    for (const char* name : names) {
      PlotSeries one = over(rows, {}, name);
      if (one.points.empty()) continue;
      shown.insert(name);
      series.push_back(std::move(one));
    }
    if (!series.empty()) out += "<div>" + line_plot(title, series) + "</div>\n";
  };
  plot("Idle share", {"trainer/idle_ratio", "rollouter/idle_ratio"});
  plot("Staleness, versions", {"staleness/mean", "staleness/max", "staleness/publish_lag"});
  plot("Groups", {"async/in_flight", "async/queue_depth", "async/groups_open"});
  plot("Wasted tokens", {"async/wasted_tokens", "async/recomputed_tokens"});
  out += "</div>\n";
  if (trace != nullptr) out += gantt(*trace);
  return out;
}

std::string wall_clock_plots(const std::vector<MetricsRow>& rows) {
  std::set<std::string> names;
  for (const MetricsRow& row : rows) {
    if (!row.values.contains(kWall)) continue;
    for (const auto& [name, value] : row.values)
      if (name == "critic/rewards/mean" || name.starts_with("val-core/")) names.insert(name);
  }
  std::vector<PlotSeries> rewards;
  std::vector<PlotSeries> held_out;
  for (const std::string& name : names) {
    auto& series = name.starts_with("val-core/") ? held_out : rewards;
    if (series.size() < 10) series.push_back(over(rows, kWall, name));
  }
  std::string out;
  if (!rewards.empty())
    out += "<div>" + line_plot("Reward over wall-clock", rewards, "seconds") + "</div>\n";
  if (!held_out.empty())
    out += "<div>" + line_plot("Validation over wall-clock", held_out, "seconds") + "</div>\n";
  return out;
}

std::string simulation_note(const std::vector<MetricsRow>& rows) {
  if (!any_name(rows, "simulated/")) return {};
  return "<p class=\"soft\">Generation delays in this run are <b>simulated</b>: samples take "
         "declared durations (actor_rollout_ref.rollout.simulated_delay in the configuration). "
         "Times and idle shares show what overlap gives under these, not the speed of this "
         "machine.</p>\n";
}

void join_rows(std::vector<MetricsRow>& rows, std::vector<MetricsRow> more) {
  for (MetricsRow& row : more) {
    const auto at =
        std::lower_bound(rows.begin(), rows.end(), row.step,
                         [](const MetricsRow& one, std::int64_t step) { return one.step < step; });
    if (at == rows.end() || at->step != row.step) {
      rows.insert(at, std::move(row));
      continue;
    }
    for (const auto& [name, value] : row.values) at->values.try_emplace(name, value);
  }
}

}  // namespace troupe::runtime
