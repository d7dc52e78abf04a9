#include "sim/report/compare.hpp"
#include "sim/report/sim_report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace troupe::sim {
namespace {

using nlohmann::json;

json histogram(const std::map<std::int64_t, std::int64_t>& counts) {
  json out = json::object();
  for (const auto& [key, count] : counts) out[std::to_string(key)] = count;
  return out;
}

json optional_number(const std::optional<double>& value) {
  return value ? json(*value) : json(nullptr);
}

json memory_json(const PoolMemory& pool) {
  json roles = json::object();
  for (const PoolMemory::Entry& entry : pool.entries)
    roles[entry.role] = {{"bytes", entry.bytes}, {"kept_bytes", entry.kept_bytes}};
  return {{"pool", pool.pool},
          {"device_bytes", pool.device_bytes},
          {"peak_bytes", pool.peak()},
          {"roles", roles}};
}

json step_json(const SimStep& step) {
  return {{"step", step.step},
          {"step_s", step.span_s},
          {"parts", step.phases_s},
          {"samples", step.samples},
          {"prompt_tokens", step.prompt_tokens},
          {"answer_tokens", step.answer_tokens},
          {"generated_tokens", step.generated_tokens}};
}

json constants_json(const SimReport& report) {
  json out = json::object();
  for (std::size_t i = 0; i < kConstants; ++i) {
    const auto constant = static_cast<Constant>(i);
    const ConstantInfo& info = info_of(constant);
    out[std::string(info.name)] = {{"value", report.job.constants[constant]},
                                   {"prior", info.prior},
                                   {"low", info.low},
                                   {"high", info.high},
                                   {"unit", info.unit},
                                   {"source", info.source}};
  }
  return out;
}

json report_object(const SimReport& report) {
  json out;
  out["simulated"] = true;
  out["name"] = report.name;
  out["mode"] = sim_mode_name(report.job.mode);
  out["model"] = report.job.policy.model.name;
  out["devices"] = report.devices;
  out["placement"] = report.placement;
  out["not_simulated"] = report.notes;
  json numbers = json::object();
  json parts = json::object();
  for (const auto& [name, spread] : report.numbers) {
    const json one = {{"value", spread.value}, {"p10", spread.p10}, {"p90", spread.p90}};
    if (name.starts_with("parts/"))
      parts[name.substr(6)] = one;
    else
      numbers[name] = one;
  }
  out["numbers"] = numbers;
  out["parts_s"] = parts;
  out["pools"] = json::array();
  for (const PoolUse& pool : report.pools)
    out["pools"].push_back({{"pool", pool.pool},
                            {"devices", pool.devices},
                            {"idle_share", pool.idle_share},
                            {"busy_by", pool.busy_by},
                            {"idle_by", pool.idle_by}});
  out["memory"] = json::array();
  for (const PoolMemory& pool : report.memory) out["memory"].push_back(memory_json(pool));
  out["kv_pool_tokens"] = report.kv_pool_tokens;
  out["staleness"] = histogram(report.staleness);
  out["versions_crossed"] = report.versions_crossed;
  out["bytes_by_link"] = report.bytes_by_link;
  out["preemptions"] = report.preemptions;
  out["recomputed_tokens"] = report.recomputed_tokens;
  out["failures"] = report.failures;
  const GroupCounts& groups = report.outcome.groups;
  out["groups"] = {{"issued", groups.issued},
                   {"trained", groups.trained},
                   {"open", groups.open},
                   {"dropped", groups.dropped}};
  out["samples"] = {{"runs", report.samples},
                    {"do_not_fit", report.samples_failed},
                    {"first_that_does_not", report.first_failure}};
  out["sensitivity"] = json::array();
  for (const Sensitivity& one : report.sensitivity)
    out["sensitivity"].push_back({{"constant", info_of(one.constant).name},
                                  {"low", one.low},
                                  {"high", one.high},
                                  {"step_at_low_s", optional_number(one.step_at_low_s)},
                                  {"step_at_high_s", optional_number(one.step_at_high_s)},
                                  {"swing_s", one.swing_s}});
  out["constants"] = constants_json(report);
  out["steps"] = json::array();
  for (const SimStep& step : report.outcome.steps) out["steps"].push_back(step_json(step));
  out["seed"] = report.job.seed;
  out["digest"] = fmt::format("{:016x}", report.outcome.digest);
  out["events"] = report.outcome.events;
  return out;
}

}  // namespace

std::string report_json(const SimReport& report) { return report_object(report).dump(2) + "\n"; }

std::string comparison_json(const SimReport& a, const SimReport& b) {
  json ratios = json::object();
  for (const ComparedNumber& one : compared_numbers(a, b))
    ratios[one.name] = one.a > 0 ? json(one.b / one.a) : json(nullptr);
  const json out = {
      {"a", report_object(a)}, {"b", report_object(b)}, {"ratios", ratios}, {"why", reasons(a, b)}};
  return out.dump(2) + "\n";
}

}  // namespace troupe::sim
