#include "sim/report/compare.hpp"
#include "sim/report/sim_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace troupe::sim {
namespace {

constexpr std::size_t kConstantsShown = 3;

/// Names and shares, the largest first: `gen 61.0 %, host 2.1 %`.
std::string shares(const std::map<std::string, double>& by) {
  std::vector<std::pair<std::string, double>> sorted(by.begin(), by.end());
  std::ranges::stable_sort(sorted, std::greater{}, &std::pair<std::string, double>::second);
  std::vector<std::string> texts;
  for (const auto& [name, share] : sorted)
    if (share >= 5e-4) texts.push_back(fmt::format("{} {:.1f} %", name, 100 * share));
  return fmt::format("{}", fmt::join(texts, ", "));
}

class Text {
 public:
  explicit Text(const SimReport& report) : report_(report) {}

  std::string write() {
    head();
    numbers();
    pools();
    memory();
    staleness();
    traffic();
    faults();
    sensitivity();
    for (const std::string& note : report_.notes) line("not simulated: {}", note);
    line("simulated; no device was used; digest {:016x}, {} events", report_.outcome.digest,
         report_.outcome.events);
    return std::move(out_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  void number(const std::string& label, const std::string& name, double scale, const char* unit) {
    const auto at = report_.numbers.find(name);
    if (at == report_.numbers.end()) return;
    const Spread& spread = at->second;
    std::string text = fmt::format("{:<26}{:>12.4g} {}", label, spread.value * scale, unit);
    if (report_.samples > 1)
      text = fmt::format("{:<50}{:.4g} to {:.4g}", text, spread.p10 * scale, spread.p90 * scale);
    line("{}", text);
  }

  void head() {
    const SimJob& job = report_.job;
    line("{}: {}, {} on {} devices, {} prompts × {} samples a step; mean of steps {} to {}",
         report_.name, sim_mode_name(job.mode), job.policy.model.name, report_.devices,
         job.prompts_per_step, job.group_size, report_.warm_up_steps + 1,
         report_.outcome.steps.size());
    for (const std::string& one : report_.placement) line("  {}", one);
    if (report_.samples > 1)
      line("p10 to p90 at the right: {} runs with other seeds and constants inside their ranges{}",
           report_.samples,
           report_.samples_failed == 0
               ? std::string()
               : fmt::format(", {} of which do not fit: {}", report_.samples_failed,
                             report_.first_failure));
  }

  void numbers() {
    number("step", "step_s", 1, "s");
    std::vector<std::pair<double, std::string>> parts;
    for (const auto& [name, spread] : report_.numbers)
      if (name.starts_with("parts/") && spread.value > 0) parts.emplace_back(spread.value, name);
    std::ranges::stable_sort(parts, std::greater{}, &std::pair<double, std::string>::first);
    for (const auto& [value, name] : parts) number("  " + name.substr(6), name, 1, "s");
    number("tokens/s", "tokens_per_s", 1, "");
    number("tokens/s/GPU", "tokens_per_s_device", 1, "");
    number("MFU of updates", "update_mfu", 100, "%");
    number("MFU of the whole run", "run_mfu", 100, "%");
    number("cost of a step", "cost_per_step", 1, "$");
    number("cost of 10^6 tokens", "cost_per_million_tokens", 1, "$");
  }

  void pools() {
    for (const PoolUse& pool : report_.pools) {
      line("{}: busy {}", pool.pool, shares(pool.busy_by));
      const std::string causes = shares(pool.idle_by);
      line("  idle {:.1f} %{}{}", 100 * pool.idle_share, causes.empty() ? "" : ", waiting for ",
           causes);
    }
  }

  void memory() {
    for (const PoolMemory& pool : report_.memory) {
      line("memory of a device of {}: {:.1f} of {:.1f} GB at most", pool.pool, pool.peak() / 1e9,
           pool.device_bytes / 1e9);
      for (const PoolMemory::Entry& entry : pool.entries)
        line("  {:<24}{:>8.1f} GB, {:.1f} kept while others work", entry.role, entry.bytes / 1e9,
             entry.kept_bytes / 1e9);
    }
    line("KV cache of an engine: {} tokens", report_.kv_pool_tokens);
  }

  void staleness() {
    if (report_.staleness.empty()) return;
    std::vector<std::string> ages;
    for (const auto& [age, groups] : report_.staleness)
      ages.push_back(fmt::format("{} old {}", age, groups));
    line("staleness in versions, groups: {}", fmt::join(ages, ", "));
  }

  void traffic() {
    std::vector<std::string> links;
    for (const auto& [name, bytes] : report_.bytes_by_link)
      if (bytes > 0) links.push_back(fmt::format("{} {:.2f} GB", name, bytes / 1e9));
    if (!links.empty()) line("traffic of a step: {}", fmt::join(links, ", "));
  }

  void faults() {
    if (report_.preemptions > 0 || report_.recomputed_tokens > 0)
      line("of a step: {:.1f} preemptions, {:.0f} tokens prefilled again", report_.preemptions,
           report_.recomputed_tokens);
    if (report_.failures > 0) line("failures: {} (declared)", report_.failures);
    for (const auto& [reason, groups] : report_.outcome.groups.dropped)
      line("groups that were dropped: {} ({})", groups, reason);
  }

  void sensitivity() {
    const std::size_t shown = std::min(kConstantsShown, report_.sensitivity.size());
    if (shown == 0) return;
    line("constants that the step time hangs on most:");
    for (std::size_t i = 0; i < shown; ++i) {
      const Sensitivity& one = report_.sensitivity[i];
      const ConstantInfo& info = info_of(one.constant);
      const auto end = [](const std::optional<double>& step_s) {
        return step_s ? fmt::format("{:.4g} s", *step_s) : std::string("does not fit");
      };
      line("  {:<22}{:.4g} {}; at {:.3g}: {}, at {:.3g}: {} ({})", info.name,
           report_.job.constants[one.constant], info.unit, one.low, end(one.step_at_low_s),
           one.high, end(one.step_at_high_s), info.source);
    }
  }

  const SimReport& report_;
  std::string out_;
};

}  // namespace

std::string report_text(const SimReport& report) { return Text(report).write(); }

std::string comparison_text(const SimReport& a, const SimReport& b) {
  std::string out = fmt::format("{:<26}{:>16}{:>16}{:>10}\n", "", "A", "B", "B / A");
  out += fmt::format("A: {}\nB: {}\n", a.name, b.name);
  for (const ComparedNumber& one : compared_numbers(a, b))
    out += fmt::format("{:<26}{:>16.4g}{:>16.4g}{:>10}\n", one.label, one.a, one.b,
                       one.a > 0 ? fmt::format("{:.3f}", one.b / one.a) : std::string("-"));
  for (const std::string& reason : reasons(a, b)) out += reason + "\n";
  out += "simulated; no device was used\n";
  return out;
}

}  // namespace troupe::sim
