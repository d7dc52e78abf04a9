#include "runtime/observe/svg_draw.hpp"

#include "runtime/base/utf8.hpp"
#include "runtime/observe/svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::runtime {

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : replace_invalid_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\n':
      case '\t':
        out += c;
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
          out += ' ';
        else
          out += c;
    }
  }
  return out;
}

std::string short_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::fabs(value);
  if (size >= 1000 && size < 1e7) return fmt::format("{:.0f}", value);
  return fmt::format("{:.4g}", value == 0 ? 0.0 : value);
}

std::vector<double> axis_ticks(double low, double high, int count) {
  const double raw = (high / 2 - low / 2) / (count / 2.0);  // halves: high - low may overflow
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i < 4 * count; ++i) {
    const double tick = (first + i) * step;
    if (!(tick <= high + step * 1e-9)) break;
    ticks.push_back(std::fabs(tick) < step * 1e-9 ? 0 : tick);
  }
  return ticks;
}

namespace svg {

std::string stroke_class(std::size_t index) { return fmt::format("s{}", index % kColours); }
std::string fill_class(std::size_t index) { return fmt::format("f{}", index % kColours); }

double Scale::operator()(double value) const {
  const double share = (value / 2 - low / 2) / (high / 2 - low / 2);
  return from + std::clamp(share, -0.5, 1.5) * (to - from);
}

std::string number(double pixels) { return fmt::format("{:.2f}", pixels); }

std::string open(double width, double height, std::string_view title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\">"
      "<title>{}</title>{}",
      width, height, escaped(title), text(kLeft, 16, "start", title, "h"));
}

std::string text(double x, double y, std::string_view anchor, std::string_view words,
                 std::string_view style) {
  return fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\" class=\"{}\">{}</text>", x,
                     y, anchor, style, escaped(words));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" class=\"{}\"/>",
                     x1, y1, x2, y2, style);
}

std::string vertical_axis(const Scale& y, double width) {
  std::string out;
  for (double tick : axis_ticks(y.low, y.high, 4)) {
    out += line(kLeft, y(tick), width - kRight, y(tick), "g");
    out += text(kLeft - 6, y(tick) + 3.5, "end", short_number(tick));
  }
  return out;
}

std::string horizontal_axis(const Scale& x, double bottom, std::string_view unit) {
  std::string out = line(x.from, bottom, x.to, bottom, "a");
  for (double tick : axis_ticks(x.low, x.high, 8)) {
    out += line(x(tick), bottom, x(tick), bottom + 4, "a");
    out += text(x(tick), bottom + 15, "middle", short_number(tick));
  }
  return out + text(x.to, bottom + 28, "end", unit);
}

std::string legend(const std::vector<std::string>& names, double width, double y, double& height) {
  std::string out;
  double x = kLeft;
  height = names.empty() ? 0 : 18;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto characters = std::count_if(names[i].begin(), names[i].end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    });
    const double room = 24 + 6.3 * static_cast<double>(characters);
    if (x > kLeft && x + room > width - kRight) {
      x = kLeft;
      height += 18;
    }
    const double row = y + height - 18;
    out += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"10\" height=\"10\" rx=\"2\" class=\"{}\"/>", x,
        row, fill_class(i));
    out += text(x + 14, row + 9, "start", names[i]);
    x += room;
  }
  return out;
}

}  // namespace svg
}  // namespace troupe::runtime
