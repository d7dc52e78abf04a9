#pragma once

// Plots as inline SVG, drawn here so that a report needs no script and no network.
//
// **Threads:** pure.
// **Invariants:** output is well-formed XML whatever the names and values (everything is escaped,
// every coordinate is finite); NaN and infinities are gaps.
// **Cost:** at most ~2 000 vertices a series, whatever its length.

#include "runtime/observe/trace.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::runtime {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points = {};  ///< (step, value), steps increasing
};

/// Lines over steps, or what `unit` names, with axes, a legend and the last values. `title` is
/// drawn above.
std::string line_plot(std::string_view title, const std::vector<PlotSeries>& series,
                      std::string_view unit = "step");

struct PlotBar {
  std::string name;
  double value = 0;
};

/// One bar for each name, with its value; negative and non-finite values count 0. At most 64 bars.
std::string bar_plot(std::string_view title, std::string_view unit,
                     const std::vector<PlotBar>& bars);

/// Stacked bars over steps, one colour per series; negative and non-finite values count 0. Steps
/// are joined (averaged) when there are too many to tell apart.
std::string stacked_plot(std::string_view title, std::string_view unit,
                         const std::vector<PlotSeries>& series);

/// What one row of a timeline is.
enum class TimelineRows {
  kLane,   ///< a rank, over all groups: who has the device of rank i when
  kPlace,  ///< a group and rank
};

/// One box per span, coloured by what ran; a box tells its numbers when pointed at. Shows the spans
/// that touch [begin, end].
std::string timeline_plot(std::string_view title, std::span<const TraceSpan> spans, TimePoint begin,
                          TimePoint end, TimelineRows rows = TimelineRows::kPlace);

/// Text for HTML and XML: entities for & < > " ', no control characters, valid UTF-8.
std::string escaped(std::string_view text);

/// `0.0123`, `1.2e+09`, `17`: at most four digits.
std::string short_number(double value);

/// About `count` round numbers that cover [low, high]; finite bounds, low < high.
std::vector<double> axis_ticks(double low, double high, int count);

}  // namespace troupe::runtime
