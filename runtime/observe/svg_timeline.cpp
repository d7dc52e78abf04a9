// The colocation timeline: who used which rank when.

#include "runtime/observe/svg_draw.hpp"
#include "runtime/observe/svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace troupe::runtime {
namespace {

constexpr std::size_t kBoxesMax = 4000;
constexpr std::size_t kRowsMax = 64;
constexpr std::size_t kNamesMax = 40;  // in the legend
constexpr double kRowHeight = 20;
constexpr double kLabelWidth = 150;

/// Ranks in counting order: shorter names first.
struct PlaceOrder {
  bool operator()(const TracePlace& a, const TracePlace& b) const {
    if (a.process != b.process) return a.process < b.process;
    if (a.thread.size() != b.thread.size()) return a.thread.size() < b.thread.size();
    return a.thread < b.thread;
  }
};

std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "…";
}

}  // namespace

std::string timeline_plot(std::string_view title, std::span<const TraceSpan> spans, TimePoint begin,
                          TimePoint end) {
  std::vector<const TraceSpan*> shown;
  std::map<TracePlace, std::size_t, PlaceOrder> rows;
  std::size_t hidden = 0;
  for (const auto& span : spans) {
    if (span.end < begin || span.begin > end) continue;
    if (!rows.contains(span.place) && rows.size() == kRowsMax) {
      ++hidden;
      continue;
    }
    rows.emplace(span.place, 0);
    shown.push_back(&span);
  }
  if (shown.size() > kBoxesMax) {  // the longest tell most
    std::nth_element(
        shown.begin(), shown.begin() + kBoxesMax, shown.end(),
        [](const auto* a, const auto* b) { return a->end - a->begin > b->end - b->begin; });
    hidden += shown.size() - kBoxesMax;
    shown.resize(kBoxesMax);
  }
  std::stable_sort(shown.begin(), shown.end(), [](const auto* a, const auto* b) {
    // A longer span that begins at the same time is the outer one: draw it first.
    return a->begin != b->begin ? a->begin < b->begin : a->end > b->end;
  });
  if (shown.empty() || end <= begin) {
    return svg::open(svg::kTop + 40, title) +
           svg::text(svg::kLeft, svg::kTop + 20, "start", "no spans recorded") + "</svg>";
  }
  std::size_t row_count = 0;
  for (auto& [place, row] : rows) row = row_count++;
  std::map<std::string, std::size_t> colours;
  std::vector<std::string> names;
  for (const auto* span : shown) {
    if (colours.emplace(span->name, names.size()).second) names.push_back(span->name);
  }
  const double bottom = svg::kTop + kRowHeight * static_cast<double>(row_count);
  const svg::Scale x{0, seconds(end - begin), kLabelWidth, svg::kWidth - svg::kRight};
  std::string body;
  for (const auto& [place, row] : rows) {
    const double y = svg::kTop + kRowHeight * static_cast<double>(row);
    body += svg::line(kLabelWidth, y + kRowHeight - 1, svg::kWidth - svg::kRight,
                      y + kRowHeight - 1, "g");
    body += fmt::format(
        "<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"end\" class=\"t\">{}<title>{}"
        "</title></text>",
        kLabelWidth - 6, y + 13, escaped(shortened(place.process + " " + place.thread, 24)),
        escaped(place.process + " " + place.thread));
  }
  for (const auto* span : shown) {
    const double left = x(std::max(0.0, seconds(span->begin - begin)));
    const double right = x(std::min(seconds(end - begin), seconds(span->end - begin)));
    const double y = svg::kTop + kRowHeight * static_cast<double>(rows[span->place]);
    body += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.0f}\" "
        "class=\"{}{}\"><title>{}, "
        "{}{}: {} s from {} s</title></rect>",
        left, y + 2, std::max(right - left, 0.4), kRowHeight - 5,
        svg::fill_class(colours[span->name]), span->category == "wait" ? " w" : "",
        escaped(span->name), escaped(span->place.process + " " + span->place.thread),
        span->step >= 0 ? fmt::format(", step {}", span->step) : "",
        short_number(seconds(span->end - span->begin)), short_number(seconds(span->begin - begin)));
  }
  body += svg::line(kLabelWidth, bottom, svg::kWidth - svg::kRight, bottom, "a");
  for (double tick : axis_ticks(x.low, x.high, 6)) {
    body += svg::line(x(tick), svg::kTop, x(tick), bottom + 4, "g");
    body += svg::text(x(tick), bottom + 15, "middle", short_number(tick));
  }
  body +=
      svg::text(svg::kWidth - svg::kRight, bottom + 28, "end",
                hidden > 0 ? fmt::format("seconds; {} short spans not drawn", hidden) : "seconds");
  if (names.size() > kNamesMax) names.resize(kNamesMax);
  double legend_height = 0;
  body += svg::legend(names, bottom + svg::kAxisHeight, legend_height);
  return svg::open(bottom + svg::kAxisHeight + legend_height + 4, title) + body + "</svg>";
}

}  // namespace troupe::runtime
