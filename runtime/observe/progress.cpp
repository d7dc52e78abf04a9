#include "runtime/observe/progress.hpp"

#include "runtime/base/utf8.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace troupe::runtime {
namespace {

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

int columns_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string compact(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::fabs(value);
  if (size >= 1e6) return fmt::format("{:.1f}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.1f}k", value / 1e3);
  if (size >= 100 || value == std::floor(value)) return fmt::format("{:.0f}", value);
  return fmt::format("{:.1f}", value);
}

}  // namespace

std::string fitted(std::string_view text, int columns) {
  std::string clean = replace_invalid_utf8(text);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  if (columns <= 0) return {};
  if (columns_of(clean) <= columns) return clean;
  std::size_t end = 0;
  for (int count = 0; end < clean.size(); ++end) {
    if (starts_character(clean[end]) && ++count == columns) break;
  }
  return clean.substr(0, end) + "…";
}

std::string duration_text(Duration span) {
  const auto total = std::max<std::int64_t>(0, std::llround(seconds(span)));
  if (total < 60) return fmt::format("{} s", total);
  if (total < 3600) return fmt::format("{} m {:02} s", total / 60, total % 60);
  if (total < 86400) return fmt::format("{} h {:02} m", total / 3600, total % 3600 / 60);
  return fmt::format("{} d {:02} h", total / 86400, total % 86400 / 3600);
}

std::string progress_text(const ProgressReport& report, std::optional<Duration> left, int columns) {
  std::vector<std::string> parts;
  parts.push_back(report.steps_total > 0
                      ? fmt::format("{} {}/{}", report.label, report.step, report.steps_total)
                      : fmt::format("{} {}", report.label, report.step));
  if (report.reward) parts.push_back(fmt::format("reward {:.3f}", *report.reward));
  if (report.loss) parts.push_back(fmt::format("loss {:.4g}", *report.loss));
  if (!report.note.empty()) parts.push_back(report.note);
  if (left) parts.push_back(duration_text(*left) + " left");
  if (report.response_length) {
    parts.push_back(fmt::format("length {}", compact(*report.response_length)));
  }
  if (report.tokens_per_second) {
    parts.push_back(fmt::format("{} tok/s", compact(*report.tokens_per_second)));
  }
  std::string text = fitted(parts[0], columns);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::string longer = text + "  " + fitted(parts[i], columns);
    if (columns_of(longer) > columns) continue;  // a shorter one may still fit
    text = longer;
  }
  return text;
}

ProgressLine::Options ProgressLine::options_for(std::FILE* stream) {
  Options options;
  const int fd = ::fileno(stream);
  const char* terminal = std::getenv("TERM");
  options.live =
      fd >= 0 && ::isatty(fd) == 1 && (terminal == nullptr || std::string_view(terminal) != "dumb");
  winsize size{};
  if (options.live && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.columns = size.ws_col;
  } else if (!options.live) {
    options.columns = 200;
  }
  return options;
}

ProgressLine::ProgressLine(std::FILE* stream, Options options, const Clock& clock)
    : stream_(stream), options_(options), clock_(clock) {}

std::optional<Duration> ProgressLine::time_left(const ProgressReport& report) {
  constexpr std::size_t kStepsRemembered = 20;
  if (recent_.empty() || recent_.back().first != report.step) {
    recent_.emplace_back(report.step, clock_.now());
    if (recent_.size() > kStepsRemembered) recent_.pop_front();
  }
  const auto [first_step, first_time] = recent_.front();
  const auto [last_step, last_time] = recent_.back();
  if (report.steps_total <= 0 || last_step <= first_step) return std::nullopt;
  const double per_step =
      seconds(last_time - first_time) / static_cast<double>(last_step - first_step);
  const double left =
      per_step * static_cast<double>(std::max<std::int64_t>(0, report.steps_total - report.step));
  return Duration(static_cast<std::int64_t>(std::min(left, 1e9) * 1e9));
}

void ProgressLine::update(const ProgressReport& report) {
  const auto left = time_left(report);
  if (options_.live) {
    // One column stays free: writing the last one makes some terminals wrap.
    shown_ = progress_text(report, left, options_.columns - 1);
    std::fprintf(stream_, "\r\x1b[2K%s", shown_.c_str());
  } else {
    std::fprintf(stream_, "%s\n", progress_text(report, left, options_.columns).c_str());
  }
  std::fflush(stream_);
}

void ProgressLine::say(std::string_view line) {
  const std::string text = fitted(line, 10'000);
  if (options_.live && !shown_.empty()) {
    std::fprintf(stream_, "\r\x1b[2K%s\n%s", text.c_str(), shown_.c_str());
  } else {
    std::fprintf(stream_, "%s\n", text.c_str());
  }
  std::fflush(stream_);
}

void ProgressLine::finish() {
  if (shown_.empty()) return;
  std::fputc('\n', stream_);
  std::fflush(stream_);
  shown_.clear();
}

}  // namespace troupe::runtime
