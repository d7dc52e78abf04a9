#include "sim/world/step_account.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace troupe::sim {
namespace {

constexpr std::string_view kTiming = "timing_s/";
constexpr std::string_view kAge = "staleness/age_";
constexpr std::string_view kDropped = "async/dropped_";
constexpr std::string_view kGroups = "/groups";

/// The loop's phases and its histogram of ages, out of its own metrics.
void read_report(const runtime::Metrics& metrics, SimStep& step) {
  for (const auto& [name, entry] : metrics) {
    const double value = entry.value().value_or(0);
    if (name.starts_with(kTiming)) {
      if (name != "timing_s/step") step.phases_s[name.substr(kTiming.size())] = value;
    } else if (name.starts_with(kAge) && name.ends_with(kGroups) && value > 0) {
      std::int64_t age = 0;
      std::from_chars(name.data() + kAge.size(), name.data() + name.size(), age);
      step.staleness[age] += static_cast<std::int64_t>(value);
    }
  }
  constexpr std::string_view kSpan = "staleness/span/";
  if (const auto span = metrics.value(std::string(kSpan) + "mean")) step.span_mean = *span;
  if (const auto span = metrics.value(std::string(kSpan) + "max")) step.span_max = *span;
  step.replicas_lost = static_cast<std::int64_t>(metrics.value("async/replicas_lost").value_or(0));
}

}  // namespace

StepAccounts::StepAccounts(SimWorld& world, bool keep_phases, SimOutcome& outcome)
    : world_(world), keep_phases_(keep_phases), outcome_(outcome), begin_(world.clock().now()) {
  for (const DevicePool& pool : world.job().pools) {
    devices_ += pool.devices;
    peak_ += pool.devices * pool.device.flops;
  }
  mark_ = mark();
}

StepAccounts::Mark StepAccounts::mark() const {
  Mark now{.totals = world_.totals()};
  for (const ReplicaStatistics& one : world_.replica_statistics()) {
    now.tokens += one.tokens;
    now.prefill_tokens += one.prefill_tokens;
    now.recomputed_tokens += one.recomputed_tokens;
    now.preemptions += one.preemptions;
  }
  now.port_bytes = world_.port_bytes();
  now.adapter_bytes = world_.adapter_bytes();
  return now;
}

void StepAccounts::count(const Mark& before, const Mark& now, SimStep& step) const {
  const WorldTotals& a = before.totals;
  const WorldTotals& b = now.totals;
  step.samples = b.samples - a.samples;
  step.prompt_tokens = b.prompt_tokens - a.prompt_tokens;
  step.answer_tokens = b.answer_tokens - a.answer_tokens;
  step.generated_tokens = static_cast<double>(now.tokens - before.tokens);
  if (step.span_s > 0) {
    step.tokens_per_s = (step.prompt_tokens + step.answer_tokens) / step.span_s;
    step.tokens_per_s_device = step.tokens_per_s / devices_;
    step.run_mfu = (b.flops - a.flops) / (step.span_s * peak_);
  }
  if (b.update_peak > a.update_peak)
    step.update_mfu = (b.update_flops - a.update_flops) / (b.update_peak - a.update_peak);
  step.bytes_by_link = {{"local", b.local_bytes - a.local_bytes},
                        {"node", b.node_bytes - a.node_bytes},
                        {"network", b.network_bytes - a.network_bytes},
                        {"device_port", now.port_bytes - before.port_bytes},
                        {"adapter", now.adapter_bytes - before.adapter_bytes}};
  step.preemptions = now.preemptions - before.preemptions;
  step.recomputed_tokens = static_cast<double>(now.recomputed_tokens - before.recomputed_tokens);
  step.trainer_failures = b.trainer_failures - a.trainer_failures;
}

void StepAccounts::end_step(actors::StepReport report) {
  world_.flush_phases();
  SimStep step{.step = report.step, .begin = begin_, .end = world_.clock().now()};
  step.span_s = seconds(step.end - step.begin);
  const Mark now = mark();
  count(mark_, now, step);
  mark_ = now;
  begin_ = step.end;
  read_report(report.metrics, step);
  const auto& spans = world_.phases().spans();
  step.pools = pool_use(world_.job().pools, std::span(spans).subspan(spans_), step.begin, step.end);
  if (keep_phases_)
    spans_ = spans.size();
  else
    world_.phases().clear();
  for (const auto& [name, entry] : report.metrics)
    if (name.starts_with(kDropped) && entry.value().value_or(0) > 0)
      outcome_.groups.dropped[name.substr(kDropped.size())] +=
          static_cast<std::int64_t>(*entry.value());
  step.metrics = std::move(report.metrics);
  outcome_.steps.push_back(std::move(step));
}

void StepAccounts::end_run() {
  outcome_.end = world_.clock().now();
  outcome_.phases = world_.phases();
  outcome_.memory = memory_of(world_.job());
  outcome_.replicas = world_.replica_statistics();
  outcome_.kv_pool_tokens = world_.kv_pool_tokens();
  RunTrace& trace = world_.trace();
  outcome_.failures = std::move(trace.failures);
  outcome_.landings = std::move(trace.landings);
  outcome_.trajectories = std::move(trace.trajectories);
  outcome_.kv = std::move(trace.kv);
  outcome_.prompts = std::move(trace.prompts);
}

}  // namespace troupe::sim
