// Proves that a report is one well-formed, self-contained page whatever is in the run: missing
// metrics, single points, NaN, huge numbers, hostile names. A small strict reader checks the tags.

#include "runtime/observe/report.hpp"

#include "runtime/base/file.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/observe/svg_plot.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>

namespace troupe::runtime {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TimePoint at(std::int64_t nanoseconds) { return TimePoint(Duration(nanoseconds)); }

/// Empty when every element is closed in order and no attribute holds nan, inf or a bare quote;
/// else what is wrong.
std::string markup_problem(const std::string& page) {
  static const std::set<std::string> empty_elements{"meta", "!doctype"};
  std::vector<std::string> open;
  for (std::size_t i = 0; i < page.size(); ++i) {
    if (page[i] == '>') return "bare > at " + page.substr(i > 40 ? i - 40 : 0, 80);
    if (page[i] == '&') {
      const auto end = page.find(';', i);
      if (end == std::string::npos || end - i > 6) return "bare & at " + page.substr(i, 40);
    }
    if (page[i] != '<') continue;
    const auto end = page.find('>', i);
    if (end == std::string::npos) return "tag without end";
    std::string tag = page.substr(i + 1, end - i - 1);
    if (tag.find('<') != std::string::npos) return "< inside a tag: " + tag;
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "odd quotes: " + tag;
    i = end;
    const std::string name =
        tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1))
        return "unexpected </" + tag.substr(1) + ">";
      open.pop_back();
      continue;
    }
    if (tag.find("\"nan") != std::string::npos || tag.find("\"inf") != std::string::npos ||
        tag.find("\"-nan") != std::string::npos || tag.find("\"-inf") != std::string::npos ||
        tag.find(",nan") != std::string::npos) {
      return "not a number in " + tag;
    }
    if (tag.back() == '/' || empty_elements.contains(name)) continue;
    open.push_back(name);
    if (name == "style") i = page.find("</style>", i) - 1;  // CSS has its own >
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

MetricsRow row(std::int64_t step, std::map<std::string, double, std::less<>> values) {
  return {.step = step, .values = std::move(values)};
}

ReportData usual_run() {
  ReportData data;
  data.title = "grpo sort";
  data.facts = {{"command", "troupe train sort.yaml"}};
  data.config_yaml = "trainer:\n  seed: 1\n";
  data.trace.emplace();
  for (std::int64_t step = 1; step <= 40; ++step) {
    const double x = static_cast<double>(step);
    data.metrics.push_back(row(step, {{"critic/rewards/mean", 1 - 1 / x},
                                      {"response_length/mean", 20 + x},
                                      {"actor/kl_loss", 0.001 * x},
                                      {"actor/entropy", 2 / x},
                                      {"actor/grad_norm", 1.5},
                                      {"timing_s/gen", 1.0},
                                      {"timing_s/update_actor", 0.5},
                                      {"timing_s/step", 1.6},
                                      {"perf/throughput", 1000 * x},
                                      {"my/own", x}}));
    if (step % 10 == 0) data.metrics.back().values["val-core/sort/exact/mean@1"] = x / 40;
    for (int rank = 0; rank < 2; ++rank) {
      const auto begin = step * 1'000'000'000;
      data.trace->spans.push_back({{"rollout", "rank " + std::to_string(rank)},
                                   "generate",
                                   "compute",
                                   at(begin),
                                   at(begin + 600'000'000),
                                   step});
      data.trace->spans.push_back({{"policy", "rank " + std::to_string(rank)},
                                   "update",
                                   "compute",
                                   at(begin + 600'000'000),
                                   at(begin + 900'000'000),
                                   step});
    }
  }
  return data;
}

TEST(Report, ShowsEachPartOfAUsualRun) {
  const std::string page = render_report(usual_run());
  EXPECT_EQ(markup_problem(page), "");
  for (const char* part :
       {"Reward", "Validation", "Response length", "KL", "Entropy", "Gradient norm",
        "Time per step", "Timeline of devices and ranks", "Step 40", "Whole trace",
        "rollout rank 0", "generate", "rank idle share", "0 → 0.975", "trainer:", "my/own",
        "Not recorded in this run", "troupe train sort.yaml"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

TEST(Report, LeavesTheControllerOutOfTheRanksIdleShare) {
  ReportData data = usual_run();
  const std::string page = render_report(data);
  const auto tile = [](const std::string& text) {
    const auto end = text.find("rank idle share");
    return text.substr(end - 80, 80);
  };
  const TraceSpan last = data.trace->spans.back();
  data.trace->spans.push_back({{"controller", "controller"},
                               "save",
                               "io",
                               last.end,
                               last.end + (last.end - last.begin),
                               last.step});
  EXPECT_EQ(tile(render_report(data)), tile(page));
}

TEST(Report, NeedsNothingFromOutside) {
  const std::string page = render_report(usual_run());
  for (const char* part : {"<script", "<link", "<img", "@import", "url(", "src=", "href="}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
  // The only address is the name of the SVG language, which is not fetched.
  for (auto found = page.find("http"); found != std::string::npos;
       found = page.find("http", found + 1)) {
    EXPECT_EQ(page.compare(found, 26, "http://www.w3.org/2000/svg"), 0);
  }
}

TEST(Report, SurvivesEmptySingleAndNonFiniteRuns) {
  EXPECT_EQ(markup_problem(render_report({})), "");
  ReportData data;
  data.trace.emplace();
  EXPECT_EQ(markup_problem(render_report(data)), "");
  for (double value : {kNan, kInf, -kInf, 0.0, -0.0, 1e308, -1e308, 5e-324, 1.0}) {
    data.metrics = {
        row(0, {{"critic/rewards/mean", value}, {"timing_s/gen", value}, {"x", value}})};
    const std::string one = render_report(data);
    EXPECT_EQ(markup_problem(one), "") << value;
    data.metrics.push_back(row(1, {{"critic/rewards/mean", 1e308}, {"timing_s/gen", 1e308}}));
    data.metrics.push_back(
        row(std::numeric_limits<std::int64_t>::max(), {{"critic/rewards/mean", -1e308}}));
    EXPECT_EQ(markup_problem(render_report(data)), "") << value;
  }
  data.trace->spans = {{{"p", "t"}, "n", "compute", at(5), at(5), 0}};
  EXPECT_EQ(markup_problem(render_report(data)), "");
}

TEST(Report, EscapesEverythingFromOutside) {
  const std::string evil = "</title></svg><script>alert(\"x\" + 'y')</script>&\x01\xff";
  ReportData data;
  data.title = evil;
  data.facts = {{evil, evil}};
  data.config_yaml = evil;
  data.metrics = {row(1, {{evil, 1}, {"timing_s/" + evil, 1}, {"val-core/" + evil, 1}})};
  data.trace.emplace();
  data.trace->spans = {{{evil, evil}, evil, evil, at(0), at(100), 1}};
  const std::string page = render_report(data);
  EXPECT_EQ(markup_problem(page), "");
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find('\x01'), std::string::npos);
  EXPECT_EQ(replace_invalid_utf8(page), page);
}

TEST(Report, RandomRunsStayWellFormed) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const auto value = [&]() -> double {
      switch (rng.below(6)) {
        case 0:
          return kNan;
        case 1:
          return kInf;
        case 2:
          return std::pow(10.0, static_cast<double>(rng.below(600)) - 300);
        case 3:
          return 0;
        default:
          return rng.normal();
      }
    };
    ReportData data;
    data.trace.emplace();
    const std::vector<std::string> names{
        "critic/rewards/mean", "actor/entropy", "timing_s/a", "timing_s/b<",
        "val-core/x",          "other&",        "actor/lr"};
    std::int64_t step = 0;
    for (std::uint64_t i = rng.below(300); i > 0; --i) {
      step += 1 + static_cast<std::int64_t>(rng.below(1000));
      MetricsRow one = row(step, {});
      for (const auto& name : names) {
        if (rng.below(3) > 0) one.values[name] = value();
      }
      data.metrics.push_back(std::move(one));
      const auto begin = static_cast<std::int64_t>(rng.below(1'000'000));
      data.trace->spans.push_back({{"g" + std::to_string(rng.below(90)), "r"},
                                   "n<",
                                   "wait",
                                   at(begin),
                                   at(begin + static_cast<std::int64_t>(rng.below(1000))),
                                   step});
    }
    EXPECT_EQ(markup_problem(render_report(data)), "") << "seed " << seed;
  }
}

TEST(Report, LongRunsStaySmall) {
  ReportData data;
  data.trace.emplace();
  for (std::int64_t step = 0; step < 100'000; ++step) {
    data.metrics.push_back(
        row(step, {{"critic/rewards/mean", step == 77'777 ? 50.0 : 0.5}, {"timing_s/gen", 1.0}}));
    data.trace->spans.push_back(
        {{"p", "t"}, "n", "compute", at(step * 10), at(step * 10 + 5), step});
  }
  const std::string page = render_report(data);
  EXPECT_LT(page.size(), std::size_t{2} << 20);
  EXPECT_EQ(markup_problem(page), "");
}

TEST(LinePlot, AThinnedSpikeStaysVisible) {
  PlotSeries flat{.name = "flat", .points = {}};
  for (int i = 0; i < 50'000; ++i) flat.points.emplace_back(i, 0.0);
  PlotSeries spike = flat;
  spike.points[31'415].second = 1;
  const auto y_values = [](const std::string& svg) {
    std::set<std::string> seen;
    const auto begin = svg.find("points=\"") + 8;
    const std::string points = svg.substr(begin, svg.find('"', begin) - begin);
    for (std::size_t comma = points.find(','); comma != std::string::npos;
         comma = points.find(',', comma + 1)) {
      seen.insert(points.substr(comma + 1, points.find(' ', comma) - comma - 1));
    }
    return seen.size();
  };
  EXPECT_EQ(y_values(line_plot("t", {flat})), 1U);
  EXPECT_EQ(y_values(line_plot("t", {spike})), 2U);
}

TEST(LinePlot, GapsBreakTheLineAndLonePointsAreDots) {
  const std::string svg = line_plot("t", {{"s", {{0, 1}, {1, 2}, {2, kNan}, {3, 3}, {4, kInf}}}});
  std::size_t lines = 0;
  for (auto found = svg.find("<polyline"); found != std::string::npos;
       found = svg.find("<polyline", found + 1))
    ++lines;
  EXPECT_EQ(lines, 1U);
  EXPECT_NE(svg.find("<circle"), std::string::npos);
  EXPECT_NE(line_plot("t", {}).find("no values recorded"), std::string::npos);
  EXPECT_NE(line_plot("t", {{"s", {{1, kNan}}}}).find("no values recorded"), std::string::npos);
}

TEST(AxisTicks, AreRoundAndCoverTheRange) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    const double low = rng.normal() * std::pow(10.0, static_cast<double>(rng.below(40)) - 20);
    const double high =
        low +
        std::fabs(rng.normal() + 0.01) * std::pow(10.0, static_cast<double>(rng.below(20)) - 10) +
        std::fabs(low) * 1e-6 + 1e-18;
    const auto ticks = axis_ticks(low, high, 5);
    EXPECT_GE(ticks.size(), 2U) << low << " " << high;
    EXPECT_LE(ticks.size(), 12U) << low << " " << high;
    for (double tick : ticks) {
      EXPECT_GE(tick, low - (high - low) * 0.01);
      EXPECT_LE(tick, high + (high - low) * 0.01);
    }
  }
}

TEST(BarPlot, DrawsOneBarANameAndSurvivesNonNumbers) {
  const std::string svg =
      bar_plot("ages", "groups", {{"0", 5}, {"1 <b>", 2}, {"2", kNan}, {"3", kInf}, {"4", -1}});
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_NE(svg.find("1 &lt;b&gt;: 2 groups"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  EXPECT_NE(bar_plot("ages", "groups", {}).find("no values recorded"), std::string::npos);
  EXPECT_NE(bar_plot("ages", "groups", {{"0", 0}}).find("no values recorded"), std::string::npos);
}

ReportData asynchronous_run() {
  ReportData data;
  for (std::int64_t step = 1; step <= 3; ++step)
    data.metrics.push_back({step,
                            {{"critic/rewards/mean", 0.1 * static_cast<double>(step)},
                             {"perf/wall_s", 2.0 * static_cast<double>(step)},
                             {"staleness/age_0/groups", 1},
                             {"staleness/age_2/groups", 3},
                             {"staleness/age_17_up/groups", 1},
                             {"trainer/idle_ratio", 0.25},
                             {"rollouter/idle_ratio", 0.5}}});
  return data;
}

TEST(Report, ShowsStalenessIdleSharesGanttAndScoresOverWallClock) {
  ReportData data = asynchronous_run();
  const auto at = [](int ms) { return TimePoint{std::chrono::milliseconds(ms)}; };
  data.trace.emplace();
  data.trace->spans = {{{"policy", "rank 0"}, "update", "compute", at(0), at(4), 1},
                       {{"rollout-1", "rank 0"}, "advance", "compute", at(1), at(6), 1},
                       {{"controller", "controller"}, "wait", "compute", at(0), at(9), 1}};
  const std::string page = render_report(data);
  EXPECT_NE(page.find("Rollout beside training"), std::string::npos);
  EXPECT_NE(page.find("2: 9 groups"), std::string::npos) << "ages are summed over steps";
  EXPECT_NE(page.find("17 and up: 3 groups"), std::string::npos);
  EXPECT_NE(page.find("trainer/idle_ratio"), std::string::npos);
  EXPECT_NE(page.find("<b>25.0 %</b>"), std::string::npos) << "trainer";
  EXPECT_NE(page.find("<b>50.0 %</b>"), std::string::npos) << "rollout";
  EXPECT_NE(page.find("Trainer and rollout replicas over the whole run"), std::string::npos);
  EXPECT_NE(page.find("Reward over wall-clock"), std::string::npos);
  EXPECT_EQ(page.find("simulated"), std::string::npos);
}

TEST(Report, SaysWhenDelaysWereSimulatedAndLeavesOutWhatASynchronousRunHasNot) {
  ReportData data = asynchronous_run();
  data.metrics.back().values["simulated/generation_delay_s"] = 0.05;
  EXPECT_NE(render_report(data).find("<b>simulated</b>"), std::string::npos);
  ReportData plain;
  plain.metrics = {{1, {{"critic/rewards/mean", 0.5}}}};
  const std::string page = render_report(plain);
  EXPECT_EQ(page.find("Rollout beside training"), std::string::npos);
  EXPECT_EQ(page.find("wall-clock"), std::string::npos);
}

TEST(WriteReport, JoinsEvaluationsWithTheStepsWhoseWeightsTheyJudged) {
  const std::string folder = testing::TempDir() + "troupe_report_evaluations_";
  const ReportFiles files{.metrics = folder + "metrics",
                          .evaluations = folder + "evaluations",
                          .trace = "",
                          .config = "",
                          .output = folder + "out.html"};
  ASSERT_TRUE(write_text_file(files.metrics,
                              "{\"step\":1,\"perf/wall_s\":1}\n{\"step\":2,\"perf/wall_s\":2}\n"));
  ASSERT_TRUE(write_text_file(files.evaluations,
                              "{\"step\":0,\"val-core/a/acc/mean@1\":0.25,\"perf/wall_s\":0}\n"
                              "{\"step\":2,\"val-core/a/acc/mean@1\":0.75,\"perf/wall_s\":9}\n"));
  ASSERT_TRUE(write_report(files));
  const auto page = read_text_file(files.output, 1 << 20);
  EXPECT_NE(page->find("Validation over wall-clock"), std::string::npos);
  EXPECT_NE(page->find("0.25 → 0.75"), std::string::npos);
  for (const auto& path : {files.metrics, files.evaluations, files.output})
    std::remove(path.c_str());
}

TEST(WriteReport, ReadsFilesAndNamesWhatIsMissingOrBroken) {
  const std::string folder = testing::TempDir() + "troupe_report_";
  const ReportFiles files{.metrics = folder + "metrics",
                          .trace = folder + "trace",
                          .config = folder + "config",
                          .output = folder + "out.html"};
  for (const auto& path : {files.metrics, files.trace, files.config, files.output})
    std::remove(path.c_str());
  EXPECT_EQ(write_report(files).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(write_text_file(files.metrics, "{\"step\":1,\"critic/rewards/mean\":0.5}\n"));
  ASSERT_TRUE(write_report(files));  // trace and config may be missing
  const auto page = read_text_file(files.output, 1 << 20);
  EXPECT_NE(page->find("Reward"), std::string::npos);
  ASSERT_TRUE(write_text_file(files.trace, "broken"));
  const auto broken = write_report(files);
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find(files.trace), std::string::npos);
  for (const auto& path : {files.metrics, files.trace, files.config, files.output})
    std::remove(path.c_str());
}

}  // namespace
}  // namespace troupe::runtime
