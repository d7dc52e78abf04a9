#pragma once

// The drawing vocabulary that the plots share: frame, scales, ticks, legend, colours.
// Used by svg_plot.cpp and svg_timeline.cpp only.
// **Threads:** pure.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime::svg {

inline constexpr double kWidth = 640;       // half of a page
inline constexpr double kWideWidth = 1290;  // a whole row of it
inline constexpr double kLeft = 58;
inline constexpr double kRight = 14;
inline constexpr double kTop = 30;
inline constexpr double kPlotHeight = 170;
inline constexpr double kAxisHeight = 34;

/// Names the style class of colour `index`; the classes are in the report's style sheet.
std::string stroke_class(std::size_t index);
std::string fill_class(std::size_t index);
inline constexpr std::size_t kColours = 10;

/// A linear map from values to pixels.
struct Scale {
  double low = 0;
  double high = 1;
  double from = 0;
  double to = 1;
  double operator()(double value) const;
};

std::string number(double pixels);  ///< two decimals
std::string open(double width, double height, std::string_view title);
std::string text(double x, double y, std::string_view anchor, std::string_view words,
                 std::string_view style = "t");
std::string line(double x1, double y1, double x2, double y2, std::string_view style);
/// Grid and labels of a vertical axis at the left, and of a horizontal one at the bottom.
std::string vertical_axis(const Scale& y, double width);
std::string horizontal_axis(const Scale& x, double bottom, std::string_view unit);
/// Rows of coloured names from `y` down; `height` returns how much room they took.
std::string legend(const std::vector<std::string>& names, double width, double y, double& height);

}  // namespace troupe::runtime::svg
