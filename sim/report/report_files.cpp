#include "sim/report/report_files.hpp"

#include "runtime/observe/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::sim {
namespace {

using runtime::Trace;
using runtime::TracePlace;

/// Rows of a page's timeline: more nodes do not tell more.
constexpr int kNodesShown = 24;

std::string node_name(const DevicePool& pool, int device) {
  return fmt::format("{} node {}", pool.name, device / pool.device.per_node);
}

std::string replica_name(int replica) {
  return replica < 0 ? std::string("environments") : fmt::format("rollout replica {}", replica);
}

/// Step that was under way at `at`, or -1.
std::int64_t step_at(const SimOutcome& outcome, TimePoint at) {
  for (const SimStep& step : outcome.steps)
    if (at >= step.begin && at < step.end) return step.step;
  return -1;
}

/// Calls `visit(first device, devices)` for the part of a span on each node.
template <class Visit>
void for_each_node(const DevicePool& pool, const PhaseSpan& span, int nodes_most, Visit visit) {
  const int per_node = pool.device.per_node;
  const int end = span.first_device + span.devices;
  for (int device = span.first_device; device < end;) {
    const int next = std::min((device / per_node + 1) * per_node, end);
    if (device / per_node < nodes_most) visit(device, next - device);
    device = next;
  }
}

void add_phases(const SimReport& report, Trace& trace) {
  for (const PhaseSpan& span : report.outcome.phases.spans()) {
    const DevicePool& pool = report.job.pools[span.pool];
    for_each_node(pool, span, pool.devices, [&](int device, int devices) {
      const std::string thread = span.role == "rollout" ? fmt::format("{} devices {}-{}", span.role,
                                                                      device, device + devices - 1)
                                                        : span.role;
      trace.span({.place = {.process = node_name(pool, device), .thread = thread},
                  .name = span.phase,
                  .category = "compute",
                  .begin = span.begin,
                  .end = span.end,
                  .step = step_at(report.outcome, span.begin)});
    });
  }
}

/// Trajectories of a replica in as few rows as they need.
void add_trajectories(const SimOutcome& outcome, Trace& trace) {
  std::vector<const TrajectorySpan*> spans;
  for (const TrajectorySpan& span : outcome.trajectories) spans.push_back(&span);
  std::ranges::stable_sort(spans, {}, [](const TrajectorySpan* span) { return span->begin; });
  std::map<int, std::vector<TimePoint>> rows;  // when each row of a replica is free
  for (const TrajectorySpan* span : spans) {
    auto& free = rows[span->replica];
    auto row = std::ranges::find_if(free, [&](TimePoint at) { return at <= span->begin; });
    if (row == free.end()) row = free.insert(free.end(), span->end);
    *row = span->end;
    trace.span({.place = {.process = replica_name(span->replica),
                          .thread = fmt::format("slot {}", row - free.begin())},
                .name = fmt::format("group {} sample {}, {} tokens, {} (versions {} to {})",
                                    span->group, span->sample, span->tokens, span->outcome,
                                    span->oldest_version, span->newest_version),
                .category = "trajectory",
                .begin = span->begin,
                .end = span->end,
                .step = -1});
  }
}

void add_counters(const SimReport& report, Trace& trace) {
  for (const KvSample& sample : report.outcome.kv) {
    const std::string process = replica_name(sample.replica);
    trace.counter(process, "KV tokens", sample.at, static_cast<double>(sample.tokens));
    trace.counter(process, "running", sample.at, static_cast<double>(sample.running));
    trace.counter(process, "waiting", sample.at, static_cast<double>(sample.waiting));
  }
  for (const WeightLanding& landing : report.outcome.landings) {
    trace.span({.place = {.process = "weights", .thread = "publication"},
                .name = fmt::format("version {}", landing.version),
                .category = "transfer",
                .begin = landing.begin,
                .end = landing.end,
                .step = -1});
    trace.counter("weights", "version", landing.end, static_cast<double>(landing.version));
  }
  for (const FailureSpan& failure : report.outcome.failures)
    trace.span(
        {.place = {.process = "failures (declared)",
                   .thread = failure.replica < 0 ? failure.role : replica_name(failure.replica)},
         .name = "down",
         .category = "wait",
         .begin = failure.begin,
         .end = failure.end,
         .step = -1});
  for (const SimStep& step : report.outcome.steps)
    trace.span({.place = {.process = "loop", .thread = "steps"},
                .name = fmt::format("step {}", step.step),
                .category = "wait",
                .begin = step.begin,
                .end = step.end,
                .step = step.step});
}

/// Rows are nodes and names are roles, as a page draws them.
runtime::TraceFile timeline_of(const SimReport& report) {
  runtime::TraceFile file;
  for (const PhaseSpan& span : report.outcome.phases.spans()) {
    const DevicePool& pool = report.job.pools[span.pool];
    for_each_node(pool, span, kNodesShown, [&](int device, int) {
      file.spans.push_back({.place = {.process = span.role, .thread = node_name(pool, device)},
                            .name = span.phase,
                            .category = "compute",
                            .begin = span.begin,
                            .end = span.end,
                            .step = step_at(report.outcome, span.begin)});
    });
  }
  std::ranges::stable_sort(file.spans, {}, &runtime::TraceSpan::begin);
  return file;
}

/// A line of the report's text: its label ends at a colon, or where a column begins.
std::pair<std::string, std::string> label_and_value(const std::string& line) {
  constexpr std::size_t kLabelMost = 48;
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const std::string text = line.substr(begin);
  const std::size_t end = std::min(text.find(": "), text.find("  "));
  if (end > kLabelMost) return {"", text};
  const std::size_t value = text.find_first_not_of(": ", end);
  return {text.substr(0, end), value == std::string::npos ? "" : text.substr(value)};
}

runtime::MetricsRow row_of(const SimReport& report, const SimStep& step) {
  runtime::MetricsRow row{.step = step.step, .values = {}};
  row.values["perf/throughput"] = step.tokens_per_s;
  row.values["perf/wall_s"] = seconds(step.end - TimePoint{});
  row.values["timing_s/step"] = step.span_s;
  for (const auto& [name, part] : step.phases_s) row.values["timing_s/" + name] = part;
  for (const PoolUse& pool : step.pools) {
    row.values["idle/" + pool.pool] = pool.idle_share;
    for (const auto& [cause, share] : pool.idle_by)
      row.values["idle/" + pool.pool + "/" + cause] = share;
  }
  const bool streams = report.job.mode != SimMode::kSynchronous;
  if (streams)
    for (const auto& [age, groups] : step.staleness)
      row.values[fmt::format("staleness/age_{}/groups", age)] = static_cast<double>(groups);
  row.values["mfu/update"] = step.update_mfu;
  row.values["mfu/run"] = step.run_mfu;
  for (const auto& [link, bytes] : step.bytes_by_link)
    row.values["traffic_gb/" + link] = bytes / 1e9;
  row.values["tokens/generated"] = step.generated_tokens;
  row.values["tokens/recomputed"] = step.recomputed_tokens;
  return row;
}

}  // namespace

std::unique_ptr<Trace> trace_of(const SimReport& report, const TraceOptions& options) {
  auto trace = std::make_unique<Trace>(
      Trace::Options{.events_max = options.events_max, .origin = TimePoint{}});
  add_phases(report, *trace);
  add_trajectories(report.outcome, *trace);
  add_counters(report, *trace);
  return trace;
}

std::string report_page(const SimReport& report, const std::string& config_yaml) {
  runtime::ReportData page;
  page.title = "Simulated run: " + report.name;
  page.facts.emplace_back("what this is", "a simulation; no device was used");
  const std::string text = report_text(report);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    page.facts.push_back(label_and_value(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  for (const SimStep& step : report.outcome.steps) page.metrics.push_back(row_of(report, step));
  page.trace = timeline_of(report);
  page.config_yaml = config_yaml;
  return runtime::render_report(page);
}

}  // namespace troupe::sim
