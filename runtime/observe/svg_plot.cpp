#include "runtime/observe/svg_plot.hpp"

#include "runtime/observe/svg_draw.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace troupe::runtime {
namespace {

using svg::Scale;

constexpr double kMostValue = 1e290;
constexpr std::size_t kBucketsMax = 500;
constexpr std::size_t kBarsMax = 200;
constexpr std::size_t kNamedBarsMax = 64;

/// Into the range where differences and tenths of values are normal numbers.
double bounded(double value) {
  return std::fabs(value) < 1 / kMostValue ? 0 : std::clamp(value, -kMostValue, kMostValue);
}

struct Extent {
  double low = 0;
  double high = 0;
  bool any = false;
  void add(double value) {
    low = any ? std::min(low, value) : value;
    high = any ? std::max(high, value) : value;
    any = true;
  }
  /// A range that is never empty, with a little air.
  void widen(double share) {
    if (high - low <= std::max(std::fabs(high), std::fabs(low)) * 1e-9) {
      const double air = high == 0 ? 1 : std::fabs(high) * 0.1;
      low -= air;
      high += air;
    } else {
      const double air = (high - low) * share;
      low -= air;
      high += air;
    }
  }
};

/// Keeps the first, smallest, largest and last point of each of at most kBucketsMax stretches, so
/// that a spike stays visible. Gaps (non-finite values) stay gaps.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& all) {
  if (all.size() <= 4 * kBucketsMax) return all;
  std::vector<std::pair<double, double>> kept;
  const std::size_t width = (all.size() + kBucketsMax - 1) / kBucketsMax;
  for (std::size_t begin = 0; begin < all.size(); begin += width) {
    const std::size_t end = std::min(all.size(), begin + width);
    std::set<std::size_t> wanted{begin, end - 1};
    std::size_t lowest = begin;
    std::size_t highest = begin;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(all[i].second)) continue;
      if (!(all[lowest].second <= all[i].second)) lowest = i;
      if (!(all[highest].second >= all[i].second)) highest = i;
    }
    wanted.insert({lowest, highest});
    for (std::size_t i : wanted) kept.push_back(all[i]);
  }
  return kept;
}

std::string polyline(const std::vector<std::pair<double, double>>& points, const Scale& x,
                     const Scale& y, std::size_t colour) {
  std::string out;
  std::string run;
  std::size_t run_length = 0;
  double last_x = 0;
  double last_y = 0;
  const auto flush = [&] {
    if (run_length == 1) {  // a point between gaps would be invisible as a line
      out += fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"3\" class=\"{}\"/>", last_x,
                         last_y, svg::fill_class(colour));
    } else if (run_length > 1) {
      out +=
          fmt::format("<polyline points=\"{}\" class=\"l {}\"/>", run, svg::stroke_class(colour));
    }
    run.clear();
    run_length = 0;
  };
  for (const auto& [step, value] : points) {
    if (!std::isfinite(step) || !std::isfinite(value)) {
      flush();
      continue;
    }
    last_x = x(bounded(step));
    last_y = y(bounded(value));
    run += fmt::format("{}{:.2f},{:.2f}", run.empty() ? "" : " ", last_x, last_y);
    ++run_length;
  }
  flush();
  return out;
}

std::string empty_plot(std::string_view title, double width) {
  return svg::open(width, svg::kTop + 40, title) +
         svg::text(svg::kLeft, svg::kTop + 20, "start", "no values recorded") + "</svg>";
}

/// Name and last finite value, for the legend.
std::string legend_entry(const PlotSeries& series) {
  for (auto at = series.points.rbegin(); at != series.points.rend(); ++at) {
    if (std::isfinite(at->second)) return series.name + " " + short_number(at->second);
  }
  return series.name;
}

}  // namespace

std::string line_plot(std::string_view title, const std::vector<PlotSeries>& series,
                      std::string_view unit) {
  Extent steps;
  Extent values;
  for (const auto& one : series) {
    for (const auto& [step, value] : one.points) {
      if (!std::isfinite(step) || !std::isfinite(value)) continue;
      steps.add(bounded(step));
      values.add(bounded(value));
    }
  }
  if (!values.any) return empty_plot(title, svg::kWidth);
  steps.widen(0);
  values.widen(0.06);
  const double bottom = svg::kTop + svg::kPlotHeight;
  const Scale x{steps.low, steps.high, svg::kLeft, svg::kWidth - svg::kRight};
  const Scale y{values.low, values.high, bottom, svg::kTop};
  std::string body = svg::vertical_axis(y, svg::kWidth) + svg::horizontal_axis(x, bottom, unit);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < series.size(); ++i) {
    body += polyline(thinned(series[i].points), x, y, i);
    names.push_back(legend_entry(series[i]));
  }
  double legend_height = 0;
  body += svg::legend(names, svg::kWidth, bottom + svg::kAxisHeight, legend_height);
  return svg::open(svg::kWidth, bottom + svg::kAxisHeight + legend_height + 4, title) + body +
         "</svg>";
}

std::string bar_plot(std::string_view title, std::string_view unit,
                     const std::vector<PlotBar>& bars) {
  const std::size_t count = std::min(bars.size(), kNamedBarsMax);
  const auto height_of = [](double value) {
    return std::isfinite(value) && value > 0 ? std::min(bounded(value), kMostValue / 1e3) : 0.0;
  };
  double highest = 0;
  for (std::size_t i = 0; i < count; ++i) highest = std::max(highest, height_of(bars[i].value));
  if (highest <= 0) return empty_plot(title, svg::kWidth);
  const double bottom = svg::kTop + svg::kPlotHeight;
  const Scale y{0, highest * 1.08, bottom, svg::kTop};
  const double slot = (svg::kWidth - svg::kLeft - svg::kRight) / static_cast<double>(count);
  std::string body = svg::vertical_axis(y, svg::kWidth);
  for (std::size_t i = 0; i < count; ++i) {
    const double middle = svg::kLeft + slot * (static_cast<double>(i) + 0.5);
    const double width = std::min(slot * 0.8, 60.0);
    const double top = y(height_of(bars[i].value));
    body += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" class=\"{}\">"
        "<title>{}: {} {}</title></rect>",
        middle - width / 2, top, width, bottom - top, svg::fill_class(0), escaped(bars[i].name),
        short_number(height_of(bars[i].value)), escaped(unit));
    body += svg::text(middle, top - 4, "middle", short_number(height_of(bars[i].value)));
    body += svg::text(middle, bottom + 15, "middle", bars[i].name);
  }
  body += svg::line(svg::kLeft, bottom, svg::kWidth - svg::kRight, bottom, "a");
  body += svg::text(svg::kWidth - svg::kRight, bottom + 28, "end", unit);
  return svg::open(svg::kWidth, bottom + svg::kAxisHeight + 4, title) + body + "</svg>";
}

std::string stacked_plot(std::string_view title, std::string_view unit,
                         const std::vector<PlotSeries>& series) {
  std::map<double, std::vector<double>> bars;  // step → height per series
  for (std::size_t i = 0; i < series.size(); ++i) {
    for (const auto& [step, value] : series[i].points) {
      if (!std::isfinite(step)) continue;
      auto& heights = bars[bounded(step)];
      heights.resize(series.size(), 0);
      if (std::isfinite(value) && value > 0)
        heights[i] = std::min(bounded(value), kMostValue / 1e3);
    }
  }
  const std::size_t joined = (bars.size() + kBarsMax - 1) / kBarsMax;
  std::vector<std::pair<double, std::vector<double>>> drawn;
  std::size_t count = 0;
  for (const auto& [step, heights] : bars) {
    if (count++ % std::max<std::size_t>(joined, 1) == 0) {
      drawn.emplace_back(step, std::vector<double>(series.size(), 0));
    }
    for (std::size_t i = 0; i < series.size(); ++i) {
      drawn.back().second[i] += heights[i] / static_cast<double>(joined);
    }
  }
  double highest = 0;
  for (const auto& [step, heights] : drawn) {
    double total = 0;
    for (double height : heights) total += height;
    highest = std::max(highest, total);
  }
  if (highest <= 0) return empty_plot(title, svg::kWideWidth);
  const double bottom = svg::kTop + svg::kPlotHeight;
  const Scale y{0, highest * 1.05, bottom, svg::kTop};
  const double slot =
      (svg::kWideWidth - svg::kLeft - svg::kRight) / static_cast<double>(drawn.size());
  std::string body = svg::vertical_axis(y, svg::kWideWidth);
  const std::size_t label_every = std::max<std::size_t>(1, drawn.size() / 16);
  for (std::size_t bar = 0; bar < drawn.size(); ++bar) {
    const double left = svg::kLeft + slot * static_cast<double>(bar);
    double total = 0;
    for (std::size_t i = 0; i < series.size(); ++i) {
      const double height = drawn[bar].second[i];
      if (height <= 0) continue;
      const double top = y(total + height);
      body += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" class=\"{}\">"
          "<title>step {}: {} {} {}</title></rect>",
          left, top, std::min(slot * 0.9, 60.0), y(total) - top, svg::fill_class(i),
          short_number(drawn[bar].first), escaped(series[i].name), short_number(height),
          escaped(unit));
      total += height;
    }
    if (bar % label_every == 0) {
      body += svg::text(left, bottom + 15, "start", short_number(drawn[bar].first));
    }
  }
  body += svg::line(svg::kLeft, bottom, svg::kWideWidth - svg::kRight, bottom, "a");
  body += svg::text(svg::kWideWidth - svg::kRight, bottom + 28, "end",
                    joined > 1 ? fmt::format("step, each bar the mean of {}", joined) : "step");
  std::vector<std::string> names;
  for (const auto& one : series) names.push_back(one.name);
  double legend_height = 0;
  body += svg::legend(names, svg::kWideWidth, bottom + svg::kAxisHeight, legend_height);
  return svg::open(svg::kWideWidth, bottom + svg::kAxisHeight + legend_height + 4, title) + body +
         "</svg>";
}

}  // namespace troupe::runtime
