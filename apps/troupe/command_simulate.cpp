#include "apps/training/simulated_run.hpp"
#include "apps/troupe/sim_commands.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"
#include "sim/calibration/from_metrics.hpp"
#include "sim/report/report_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::apps {
namespace {

using runtime::Config;

constexpr unsigned kThreadsMost = 16;

struct SimulateWords {
  std::vector<std::string> words;
  std::vector<std::string> compared;
  std::string trace;
  std::string html;
  std::string metrics;
  bool json = false;
  bool quick = false;
  bool dry_run = false;
  bool catalogue = false;
  int threads = 0;
};

/// A configuration, and the run that it describes.
struct Read {
  std::string name;
  Config config;
  sim::Scenario scenario;
};

result<Read> read(const std::string& file, const std::vector<std::string>& overrides) {
  Read read;
  read.name = file.empty() ? "command line" : std::filesystem::path(file).filename().string();
  TROUPE_TRY(read.config, Config::load(simulate_schema(), file, overrides));
  TROUPE_TRY(read.scenario, simulated_scenario(read.config));
  return read;
}

sim::ReportOptions report_options(const SimulateWords& words, const std::string& name) {
  const int usual =
      static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, kThreadsMost));
  return {.name = name,
          .spread = !words.quick,
          .trace = !words.trace.empty(),
          .threads = words.threads > 0 ? words.threads : usual};
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

result<void> write_files(const SimulateWords& words, const sim::SimReport& report,
                         const Config& config) {
  if (!words.trace.empty()) {
    const auto trace = sim::trace_of(report);
    TROUPE_TRY_VOID(trace->write(words.trace));
    if (trace->dropped() > 0)
      fmt::print(stderr, "{}: the oldest {} events are left out; simulate fewer steps\n",
                 words.trace, trace->dropped());
  }
  if (words.html.empty()) return {};
  return write_text_file(words.html, sim::report_page(report, config.to_yaml(true)));
}

result<void> simulate_one(const SimulateWords& words, const ConfigWords& sorted) {
  TROUPE_TRY(const Read run, read(sorted.file, sorted.overrides));
  TROUPE_TRY(const sim::SimReport report,
             sim::make_report(run.scenario, report_options(words, run.name)));
  print(words.json ? sim::report_json(report) : sim::report_text(report));
  return write_files(words, report, run.config);
}

result<void> compare(const SimulateWords& words, const ConfigWords& sorted) {
  if (!sorted.file.empty())
    return fail(ErrorCode::kConfig,
                "command line: {} and --compare {} {}: give two configurations, not three",
                sorted.file, words.compared[0], words.compared[1]);
  if (!words.trace.empty() || !words.html.empty())
    return fail(ErrorCode::kConfig,
                "command line: --trace and --html are of one run, not of "
                "--compare");
  std::vector<sim::SimReport> reports;
  for (const std::string& file : words.compared) {
    TROUPE_TRY(const Read run, read(file, sorted.overrides));
    TROUPE_TRY(sim::SimReport report,
               sim::make_report(run.scenario, report_options(words, run.name)));
    reports.push_back(std::move(report));
  }
  print(words.json ? sim::comparison_json(reports[0], reports[1])
                   : sim::comparison_text(reports[0], reports[1]));
  return {};
}

/// Fits constants to a real run of this configuration, and prints them as the section to add.
result<void> calibrate(const SimulateWords& words, const ConfigWords& sorted) {
  TROUPE_TRY(const Read run, read(sorted.file, sorted.overrides));
  TROUPE_TRY(const auto steps, sim::read_metrics(words.metrics));
  TROUPE_TRY(const sim::FittedConstants fitted, sim::calibrate(run.scenario.job, steps));
  std::string text = fitted.to_text();
  text += "\nsimulation:\n  constants:\n";
  for (const sim::FittedConstant& one : fitted.fitted)
    fmt::format_to(std::back_inserter(text), "    {}: {:.6g}{}\n", sim::info_of(one.constant).name,
                   one.value, one.identified ? "" : "  # not determined by this run");
  print(text);
  return {};
}

void print_catalogue() {
  const sim::Catalogue& catalogue = sim::Catalogue::built_in();
  for (const std::string& name : catalogue.devices()) fmt::print("device    {}\n", name);
  for (const std::string& name : catalogue.models()) fmt::print("model     {}\n", name);
  for (const sim::ConstantInfo& info : sim::constant_table())
    fmt::print("constant  {:<22} {:<8g} from {:g} to {:g} {}; {}\n", info.name, info.prior,
               info.low, info.high, info.unit, info.source);
}

result<void> run_simulate(const SimulateWords& words) {
  log::set_up(log::Level::kWarn);  // the loops report to the log what stands in the report here
  if (words.catalogue) {
    print_catalogue();
    return {};
  }
  TROUPE_TRY(const ConfigWords sorted, sort_words(words.words));
  if (words.dry_run) {
    TROUPE_TRY(const Read run, read(sorted.file, sorted.overrides));
    print(run.config.to_yaml(true));
    return {};
  }
  if (!words.compared.empty()) return compare(words, sorted);
  if (!words.metrics.empty()) return calibrate(words, sorted);
  return simulate_one(words, sorted);
}

}  // namespace

Command add_simulate(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "simulate",
      "what a configuration of troupe train would take on devices of its section "
      "simulation; no device is used");
  const auto words = std::make_shared<SimulateWords>();
  command->add_option("words", words->words, "CONFIG.yaml and key.path=value overrides");
  command->add_option("--compare", words->compared, "two configurations, side by side")
      ->expected(2);
  command->add_option("--trace", words->trace, "write a trace for ui.perfetto.dev");
  command->add_option("--html", words->html, "write a page with numbers and a timeline");
  command->add_option("--calibrate", words->metrics,
                      "metrics.jsonl of a real run of this configuration: fit constants to it");
  command->add_flag("--json", words->json, "print JSON");
  command->add_flag("--quick", words->quick, "one run: no p10 and p90, no sensitivity");
  command->add_flag("--dry-run", words->dry_run, "check, print the configuration and stop");
  command->add_flag("--catalogue", words->catalogue, "list devices, models and constants");
  command->add_option("--threads", words->threads, "runs at a time; 0: one a core, at most 16")
      ->check(CLI::Range(0, 1024));
  return [words]() -> int {
    const auto done = run_simulate(*words);
    return done ? kExitDone : exit_with(done.error());
  };
}

}  // namespace troupe::apps
