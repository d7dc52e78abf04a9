#include "runtime/observe/report.hpp"

#include "runtime/base/file.hpp"
#include "runtime/observe/idle_share.hpp"
#include "runtime/observe/report_rollout.hpp"
#include "runtime/observe/svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <string_view>

namespace troupe::runtime {
namespace {

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;
 --page:#fbfbfa;--card:#fff;--ink:#22242a;--soft:#6a6f7a;--rule:#e3e4e8}
@media(prefers-color-scheme:dark){:root{
 --page:#16181d;--card:#1f2229;--ink:#e4e6eb;--soft:#9aa1ad;--rule:#343944}}
body{margin:0 auto;max-width:1360px;padding:24px;background:var(--page);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 10px}
.soft{color:var(--soft)}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:12px 0}
.facts dt{color:var(--soft)}.facts dd{margin:0;overflow-wrap:anywhere}
.numbers{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0}
.numbers div{background:var(--card);border:1px solid var(--rule);border-radius:8px;
 padding:10px 16px}
.numbers b{display:block;font-size:20px;font-variant-numeric:tabular-nums}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr));gap:14px}
.plots>div,.wide{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:8px}
.wide{margin-bottom:14px}svg{width:100%;height:auto;display:block}
svg .t{font-size:11px;fill:var(--soft)}svg .h{font-size:13px;font-weight:600;fill:var(--ink)}
svg .g{stroke:var(--rule);stroke-width:1}svg .a{stroke:var(--soft);stroke-width:1}
svg .l{fill:none;stroke-width:1.8;stroke-linejoin:round}svg .w{opacity:.35}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:2px 14px 2px 0;text-align:right;border-bottom:1px solid var(--rule)}
td:first-child,th:first-child{text-align:left;overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px;
 overflow-x:auto}
details{margin:14px 0}summary{cursor:pointer;font-weight:600}
)css";

std::string colour_style() {
  constexpr const char* kPalette[] = {"#3b7dd8", "#e07b39", "#2f9e66", "#c44e6e", "#8a63c9",
                                      "#b08a1e", "#1f9bb0", "#8c6a56", "#d05fb4", "#7a8794"};
  std::string css;
  int index = 0;
  for (const char* colour : kPalette) {
    css += fmt::format("svg .s{0}{{stroke:{1}}}svg .f{0}{{fill:{1}}}", index++, colour);
  }
  return css;
}

/// A plot of the front part: whichever of its metrics exist. A name that ends in `*` stands for
/// all metrics with that beginning.
struct Wanted {
  const char* title;
  std::vector<const char*> names;
};

const std::vector<Wanted>& wanted_plots() {
  static const std::vector<Wanted> plots{
      {"Reward", {"critic/rewards/mean", "critic/score/mean"}},
      {"Validation", {"val-core/*", "val/*"}},
      {"Response length, tokens",
       {"response_length/mean", "response_length/min", "response_length/max"}},
      {"KL", {"actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"}},
      {"Entropy", {"actor/entropy"}},
      {"Gradient norm", {"actor/grad_norm", "critic/grad_norm", "train/grad_norm"}},
      {"Loss", {"actor/pg_loss", "critic/vf_loss", "train/loss"}},
      {"Clipped share",
       {"actor/pg_clipfrac", "actor/pg_clipfrac_lower", "response_length/clip_ratio"}},
      {"Throughput, tokens/s", {"perf/throughput"}},
      {"Learning rate", {"actor/lr", "critic/lr", "train/lr"}},
  };
  return plots;
}

bool matches(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

std::vector<std::string> names_of(const std::vector<MetricsRow>& rows) {
  std::set<std::string> names;
  for (const auto& row : rows) {
    for (const auto& [name, value] : row.values) names.insert(name);
  }
  return {names.begin(), names.end()};
}

PlotSeries series_of(const std::vector<MetricsRow>& rows, const std::string& name) {
  PlotSeries series{.name = name, .points = {}};
  for (const auto& row : rows) {
    const auto at = row.values.find(name);
    if (at != row.values.end()) {
      series.points.emplace_back(static_cast<double>(row.step), at->second);
    }
  }
  return series;
}

std::optional<double> first_of(const PlotSeries& series) {
  for (const auto& [step, value] : series.points) {
    if (std::isfinite(value)) return value;
  }
  return std::nullopt;
}

std::optional<double> last_of(const PlotSeries& series) {
  for (auto at = series.points.rbegin(); at != series.points.rend(); ++at) {
    if (std::isfinite(at->second)) return at->second;
  }
  return std::nullopt;
}

class Page {
 public:
  explicit Page(const ReportData& data) : data_(data), names_(names_of(data.metrics)) {}

  std::string render() {
    out_ =
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width,initial-scale=1\"><title>" +
        escaped(data_.title) + "</title><style>" + std::string(kStyle) + colour_style() +
        "</style></head><body>\n";
    head();
    plots();
    out_ += rollout_section(data_.metrics, data_.trace ? &*data_.trace : nullptr, plotted_);
    timing();
    timeline();
    other_metrics();
    table();
    if (!data_.config_yaml.empty()) {
      out_ += "<details><summary>Configuration</summary><pre>" + escaped(data_.config_yaml) +
              "</pre></details>\n";
    }
    return std::move(out_) + "</body></html>\n";
  }

 private:
  void number(std::string_view label, const std::string& value) {
    out_ += "<div><b>" + escaped(value) + "</b><span class=\"soft\">" + escaped(label) +
            "</span></div>";
  }

  void change(std::string_view label, const std::string& metric) {
    const PlotSeries series = series_of(data_.metrics, metric);
    const auto first = first_of(series);
    if (first) number(label, short_number(*first) + " → " + short_number(*last_of(series)));
  }

  void head() {
    out_ += "<h1>" + escaped(data_.title) + "</h1>\n";
    if (!data_.facts.empty()) {
      out_ += "<dl class=\"facts\">";
      for (const auto& [name, value] : data_.facts) {
        out_ += "<dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd>";
      }
      out_ += "</dl>\n";
    }
    out_ += simulation_note(data_.metrics);
    out_ += "<div class=\"numbers\">";
    number("steps recorded", std::to_string(data_.metrics.size()));
    if (!data_.metrics.empty()) number("last step", std::to_string(data_.metrics.back().step));
    change("reward", "critic/rewards/mean");
    for (const auto& name : names_) {
      if (matches("val-core/*", name)) change(name, name);
    }
    change("response length, tokens", "response_length/mean");
    change("loss", "train/loss");
    if (const auto rate = last_of(series_of(data_.metrics, "perf/throughput"))) {
      number("tokens/s at the end", short_number(*rate));
    }
    idle_number();
    share_number("trainer idle share, mean", "trainer/idle_ratio");
    share_number("rollout idle share, mean", "rollouter/idle_ratio");
    out_ += "</div>\n";
  }

  void share_number(std::string_view label, const std::string& metric) {
    double total = 0;
    int count = 0;
    for (const auto& [step, value] : series_of(data_.metrics, metric).points) {
      if (!std::isfinite(value)) continue;
      total += value;
      ++count;
    }
    if (count > 0) number(label, fmt::format("{:.1f} %", 100 * total / count));
  }

  void idle_number() {
    if (!data_.trace) return;
    double total = 0;
    int steps = 0;
    std::set<std::int64_t> seen;
    std::vector<TraceSpan> ranks;  // the controller is no rank, and mostly waits
    for (const auto& span : data_.trace->spans) {
      if (!span.place.thread.starts_with("rank ")) continue;
      ranks.push_back(span);
      seen.insert(span.step);
    }
    for (auto at = seen.rbegin(); at != seen.rend() && *at >= 0 && steps < 20; ++at, ++steps) {
      const auto [begin, end] = step_window(ranks, *at);
      total += idle_share(ranks, begin, end).mean;
    }
    if (steps > 0) {
      number(fmt::format("rank idle share, last {} steps", steps),
             fmt::format("{:.1f} %", 100 * total / steps));
    }
  }

  void plots() {
    out_ += "<h2>Learning</h2><div class=\"plots\">\n";
    std::vector<std::string> missing;
    for (const auto& plot : wanted_plots()) {
      std::vector<PlotSeries> series;
      for (const char* pattern : plot.names) {
        for (const auto& name : names_) {
          if (!matches(pattern, name) || series.size() >= 10) continue;
          series.push_back(series_of(data_.metrics, name));
          plotted_.insert(name);
        }
      }
      if (series.empty())
        missing.emplace_back(plot.title);
      else
        out_ += "<div>" + line_plot(plot.title, series) + "</div>\n";
    }
    out_ += wall_clock_plots(data_.metrics) + "</div>\n";
    if (!missing.empty()) {
      out_ += fmt::format("<p class=\"soft\">Not recorded in this run: {}.</p>\n",
                          escaped(fmt::format("{}", fmt::join(missing, "; "))));
    }
  }

  void timing() {
    std::vector<PlotSeries> series;
    for (const auto& name : names_) {
      if (!name.starts_with("timing_s/")) continue;
      plotted_.insert(name);
      if (name == "timing_s/step") continue;  // the sum of the others
      series.push_back(series_of(data_.metrics, name));
      series.back().name = name.substr(std::string_view("timing_s/").size());
    }
    if (series.empty()) return;
    if (series.size() > 10) {  // the longest get a colour of their own
      const auto total = [](const PlotSeries& one) {
        double sum = 0;
        for (const auto& [step, value] : one.points) {
          if (std::isfinite(value)) sum += value;
        }
        return sum;
      };
      std::stable_sort(series.begin(), series.end(),
                       [&](const auto& a, const auto& b) { return total(a) > total(b); });
      series.resize(10);
    }
    out_ += "<h2>Time per step</h2><div class=\"wide\">" +
            stacked_plot("Time per step by phase, seconds", "s", series) + "</div>\n";
  }

  void timeline() {
    if (!data_.trace || data_.trace->spans.empty()) return;
    const auto& spans = data_.trace->spans;
    TimePoint begin = spans.front().begin;
    TimePoint end = spans.front().end;
    std::int64_t last_step = -1;
    for (const auto& span : spans) {
      end = std::max(end, span.end);
      last_step = std::max(last_step, span.step);
    }
    out_ += "<h2>Timeline of devices and ranks</h2>\n";
    if (last_step >= 0) {
      const auto [step_begin, step_end] = step_window(spans, last_step);
      out_ +=
          "<div class=\"wide\">" +
          timeline_plot(fmt::format("Step {}: who has which rank's device", last_step), spans,
                        step_begin, step_end, TimelineRows::kLane) +
          "</div>\n<div class=\"wide\">" +
          timeline_plot(fmt::format("Step {} by group", last_step), spans, step_begin, step_end) +
          "</div>\n";
    }
    out_ += "<div class=\"wide\">" +
            timeline_plot("Whole trace", spans, begin, end, TimelineRows::kLane) + "</div>\n";
    if (data_.trace->dropped > 0) {
      out_ += fmt::format("<p class=\"soft\">{} older events were dropped from the trace.</p>\n",
                          data_.trace->dropped);
    }
  }

  void other_metrics() {
    constexpr std::size_t kPlotsMax = 80;
    std::string inner;
    std::size_t count = 0;
    for (const auto& name : names_) {
      if (plotted_.contains(name) || ++count > kPlotsMax) continue;
      inner += "<div>" + line_plot(name, {series_of(data_.metrics, name)}) + "</div>\n";
    }
    if (count == 0) return;
    out_ += fmt::format(
        "<details><summary>Other metrics ({})</summary><div class=\"plots\">\n{}"
        "</div></details>\n",
        count, inner);
  }

  void table() {
    if (names_.empty()) return;
    constexpr std::size_t kRowsMax = 2000;
    out_ +=
        "<details><summary>Numbers</summary><table><tr><th>metric</th><th>first</th><th>last</th>"
        "<th>smallest</th><th>largest</th></tr>\n";
    for (std::size_t i = 0; i < std::min(names_.size(), kRowsMax); ++i) {
      const PlotSeries series = series_of(data_.metrics, names_[i]);
      double low = std::numeric_limits<double>::infinity();
      double high = -low;
      for (const auto& [step, value] : series.points) {
        if (!std::isfinite(value)) continue;
        low = std::min(low, value);
        high = std::max(high, value);
      }
      const auto shown = [](std::optional<double> v) {
        return v ? short_number(*v) : std::string("–");
      };
      const bool any = low <= high;
      out_ += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                          escaped(names_[i]), shown(first_of(series)), shown(last_of(series)),
                          any ? short_number(low) : "–", any ? short_number(high) : "–");
    }
    out_ += "</table></details>\n";
  }

  const ReportData& data_;
  const std::vector<std::string> names_;
  std::set<std::string> plotted_;
  std::string out_;
};

}  // namespace

std::string render_report(const ReportData& data) { return Page(data).render(); }

result<void> write_report(const ReportFiles& files) {
  ReportData data{
      .title = files.title, .facts = files.facts, .metrics = {}, .trace = {}, .config_yaml = {}};
  TROUPE_TRY(data.metrics, read_metrics(files.metrics));
  const auto exists = [](const std::string& path) {
    std::error_code ignored;
    return !path.empty() && std::filesystem::exists(path, ignored);
  };
  if (exists(files.evaluations)) {
    TROUPE_TRY(auto evaluations, read_metrics(files.evaluations));
    join_rows(data.metrics, std::move(evaluations));
  }
  if (exists(files.trace)) {
    TROUPE_TRY(data.trace, read_trace(files.trace));
  }
  if (exists(files.config)) {
    TROUPE_TRY(data.config_yaml, read_text_file(files.config, std::size_t{4} << 20));
  }
  return write_text_file(files.output, render_report(data));
}

}  // namespace troupe::runtime
