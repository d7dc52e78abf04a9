// The colocation timeline: who used which rank when.

#include "runtime/observe/svg_draw.hpp"
#include "runtime/observe/svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

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

/// A span as it is drawn: in which row, under which name.
struct Box {
  const TraceSpan* span = nullptr;
  TracePlace row;
  std::string name;
};

/// The boxes that touch the window, outer ones first; counts those that do not fit the picture.
std::vector<Box> boxes_of(std::span<const TraceSpan> spans, TimePoint begin, TimePoint end,
                          TimelineRows by, std::size_t& hidden) {
  std::vector<Box> boxes;
  std::set<TracePlace> rows;
  for (const auto& span : spans) {
    if (span.end < begin || span.begin > end) continue;
    const TracePlace row =
        by == TimelineRows::kLane ? TracePlace{"", span.place.thread} : span.place;
    if (!rows.contains(row) && rows.size() == kRowsMax) {
      ++hidden;
      continue;
    }
    rows.insert(row);
    boxes.push_back(
        {&span, row, by == TimelineRows::kLane ? span.place.process + " " + span.name : span.name});
  }
  if (boxes.size() > kBoxesMax) {  // the longest tell most
    std::nth_element(boxes.begin(), boxes.begin() + kBoxesMax, boxes.end(),
                     [](const Box& a, const Box& b) {
                       return a.span->end - a.span->begin > b.span->end - b.span->begin;
                     });
    hidden += boxes.size() - kBoxesMax;
    boxes.resize(kBoxesMax);
  }
  std::stable_sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) {
    return a.span->begin != b.span->begin ? a.span->begin < b.span->begin
                                          : a.span->end > b.span->end;
  });
  return boxes;
}

std::string box_markup(const Box& box, const svg::Scale& x, double y, std::size_t colour,
                       TimePoint begin, TimePoint end) {
  const TraceSpan& span = *box.span;
  const double left = x(std::max(0.0, seconds(span.begin - begin)));
  const double right = x(std::min(seconds(end - begin), seconds(span.end - begin)));
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.0f}\" "
      "class=\"{}{}\"><title>{}, {}"
      "{}: {} s from {} s</title></rect>",
      left, y + 2, std::max(right - left, 0.4), kRowHeight - 5, svg::fill_class(colour),
      span.category == "wait" ? " w" : "", escaped(span.name),
      escaped(span.place.process + " " + span.place.thread),
      span.step >= 0 ? fmt::format(", step {}", span.step) : "",
      short_number(seconds(span.end - span.begin)), short_number(seconds(span.begin - begin)));
}

}  // namespace

std::string timeline_plot(std::string_view title, std::span<const TraceSpan> spans, TimePoint begin,
                          TimePoint end, TimelineRows by) {
  std::size_t hidden = 0;
  const std::vector<Box> boxes = boxes_of(spans, begin, end, by, hidden);
  constexpr double kEdge = svg::kWideWidth - svg::kRight;
  if (boxes.empty() || end <= begin) {
    return svg::open(svg::kWideWidth, svg::kTop + 40, title) +
           svg::text(svg::kLeft, svg::kTop + 20, "start", "no spans recorded") + "</svg>";
  }
  std::map<TracePlace, std::size_t, PlaceOrder> rows;
  std::map<std::string, std::size_t> colours;
  std::vector<std::string> names;
  for (const Box& box : boxes) {
    rows.emplace(box.row, 0);
    if (colours.emplace(box.name, names.size()).second) names.push_back(box.name);
  }
  const double bottom = svg::kTop + kRowHeight * static_cast<double>(rows.size());
  const svg::Scale x{0, seconds(end - begin), kLabelWidth, kEdge};
  std::string body;
  for (double tick : axis_ticks(x.low, x.high, 12)) {
    body += svg::line(x(tick), svg::kTop, x(tick), bottom + 4, "g");
    body += svg::text(x(tick), bottom + 15, "middle", short_number(tick));
  }
  std::size_t row_count = 0;
  for (auto& [place, row] : rows) {
    row = row_count++;
    const double y = svg::kTop + kRowHeight * static_cast<double>(row);
    const std::string label = place.process + (place.process.empty() ? "" : " ") + place.thread;
    body += svg::line(kLabelWidth, y + kRowHeight - 1, kEdge, y + kRowHeight - 1, "g");
    body += fmt::format(
        "<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"end\" "
        "class=\"t\">{}<title>{}</title></text>",
        kLabelWidth - 6, y + 13, escaped(shortened(label, 24)), escaped(label));
  }
  for (const Box& box : boxes) {
    body += box_markup(box, x, svg::kTop + kRowHeight * static_cast<double>(rows[box.row]),
                       colours[box.name], begin, end);
  }
  body += svg::line(kLabelWidth, bottom, kEdge, bottom, "a");
  body +=
      svg::text(kEdge, bottom + 28, "end",
                hidden > 0 ? fmt::format("seconds; {} short spans not drawn", hidden) : "seconds");
  if (names.size() > kNamesMax) names.resize(kNamesMax);
  double legend_height = 0;
  body += svg::legend(names, svg::kWideWidth, bottom + svg::kAxisHeight, legend_height);
  return svg::open(svg::kWideWidth, bottom + svg::kAxisHeight + legend_height + 4, title) + body +
         "</svg>";
}

}  // namespace troupe::runtime
