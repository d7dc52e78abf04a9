#include "tests/conformance/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

// The page, part by part. It is compared with what lies in docs, so that nothing in it may depend
// on the machine.

namespace troupe::conformance {
namespace {

template <class... Args>
void say(std::string& page, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(page), format, std::forward<Args>(args)...);
}

std::string signed_percent(double predicted, double measured) {
  return fmt::format("{:+.0f} %", 100 * (predicted / measured - 1));
}

/// A list's entry over lines of at most 118 columns, as far as words allow.
void entry(std::string& page, const std::string& text) {
  std::istringstream words(text);
  std::string line = "-";
  std::string word;
  while (words >> word) {
    if (line.size() + 1 + word.size() > 118) {
      page += line + "\n";
      line = " ";
    }
    line += " " + word;
  }
  page += line + "\n";
}

std::string verdict(bool right) { return right ? "right" : "**wrong**"; }

std::string ranking(const std::map<std::string, double>& spans, const std::string& best) {
  if (fastest(spans) == best) return "right";
  return ties(spans, best) ? "tie" : "**wrong**";
}

void heading(std::string& page) {
  page +=
      "# Conformance with published tables\n\n"
      "What the simulator says to figures that others measured. This page is what a command "
      "prints, and a test\ncompares the two:\n\n"
      "    ninja -C build/release conformance && build/release/tests/conformance > "
      "docs/conformance.md\n\n"
      "Rows and their sources: [published.yaml](../tests/conformance/published.yaml). "
      "*Priors*: the constants of the\ntable at the end, one set for all rows. "
      "*Fitted*: those named with each system, fitted to its\nmarked row alone; errors of fits "
      "are those of the other rows.\n";
}

void summary(std::string& page, const Results& results) {
  page += "\n## Step times\n\n";
  page += "| system | times | priors: median | worst | fitted: median | worst |\n";
  page += "|---|---|---|---|---|---|\n";
  const auto line = [&page](const std::string& name, const Errors& prior, const Errors& fitted) {
    say(page, "| {} | {} | {:.0f} % | {:.0f} % | {:.0f} % | {:.0f} % |\n", name, prior.count,
        100 * prior.median, 100 * prior.worst, 100 * fitted.median, 100 * fitted.worst);
  };
  for (const SystemResult& one : results.systems)
    line(one.system.title, one.prior(Part::kSteps), one.held_out(Part::kSteps));
  line("all steps", results.prior(Part::kSteps), results.held_out(Part::kSteps));
  line("phases of verl's steps", results.prior(Part::kPhases), results.held_out(Part::kPhases));
}

/// Whether each goal is kept, from the results themselves.
void goals(std::string& page, const Results& results) {
  page += "\n## Goals\n\n| goal | reached | |\n|---|---|---|\n";
  const auto line = [&page](const std::string& goal, const std::string& reached, bool met) {
    say(page, "| {} | {} | {} |\n", goal, reached, met ? "met" : "**missed**");
  };
  const auto share = [&line](const std::string& goal, double reached, double bar) {
    line(fmt::format("{}: at most {:.0f} %", goal, 100 * bar),
         fmt::format("{:.0f} %", 100 * reached), reached <= bar);
  };
  const auto errors = [&](const std::string& of, Part part) {
    const Errors prior = results.prior(part);
    const Errors held_out = results.held_out(part);
    share(of + " with priors, median", prior.median, 0.20);
    share(of + " with priors, worst", prior.worst, 0.40);
    share(of + " after fits to one row of a system, other rows, median", held_out.median, 0.08);
    share(of + " after fits to one row of a system, other rows, worst", held_out.worst, 0.15);
  };
  errors("step times", Part::kSteps);
  errors("phases of verl's steps", Part::kPhases);
  double transition = 0;
  for (const auto& [fact, span] : results.transitions)
    if (!fact.read_off) transition = std::max(transition, std::abs(span / fact.measured - 1));
  share("from training to generation", transition, 0.15);
  std::size_t right = 0;
  for (const auto& [fact, spans] : results.placements) right += fastest(spans) == fact.best ? 1 : 0;
  line("placements: all rankings right", fmt::format("{} of {}", right, results.placements.size()),
       right == results.placements.size());
  double gain = 0;
  for (const auto& [fact, spans] : results.generation_tp)
    gain = std::max(gain, std::abs(saved(spans, fact.best) - fact.less));
  share("gains by tensor parallelism of generation, in points off", gain, 0.10);
  double tail = 0;
  for (const auto& [fact, time] : results.tails)
    tail = std::max(tail, std::abs(time.tail_s / time.rollout_s - fact.tail / fact.rollout));
  share("shares of tails, in points off", tail, 0.10);
  std::size_t fits = 0;
  for (const auto& [fact, need] : results.memory) fits += need.fits == fact.fits ? 1 : 0;
  line("what fits: all right", fmt::format("{} of {}", fits, results.memory.size()),
       fits == results.memory.size());
}

void system_table(std::string& page, const SystemResult& result) {
  say(page, "\n### {}\n\nSource: {}.\n\n", result.system.title, result.system.source);
  page += "| run | phase | published s | priors s | error | fitted s | error |\n";
  page += "|---|---|---|---|---|---|---|\n";
  for (const Compared& one : result.compared)
    say(page, "| {}{} | {} | {:.1f} | {:.1f} | {} | {:.1f} | {} |\n", one.row,
        one.fit_row ? " (fitted to)" : "", one.phase, one.measured_s, one.prior_s,
        signed_percent(one.prior_s, one.measured_s), one.fitted_s,
        signed_percent(one.fitted_s, one.measured_s));
  page += "\nFitted:";
  for (const sim::FittedConstant& one : result.fit.fitted)
    say(page, "{} {} {:.3g} → {:.3g}{}", &one == result.fit.fitted.data() ? "" : ",",
        sim::info_of(one.constant).name, one.prior, one.value,
        one.at_bound     ? " (at its bound)"
        : one.identified ? ""
                         : " (not identified)");
  page += ".\n";
}

void transitions(std::string& page, const Results& results) {
  page +=
      "\n## From training to generation\n\nHybridFlow, figure 14. Read-offs from the figure "
      "judge nothing.\n\n| model | published s | priors s | error |\n|---|---|---|---|\n";
  for (const auto& [fact, span] : results.transitions)
    say(page, "| {}{} | {:.1f} | {:.1f} | {} |\n", fact.name, fact.read_off ? " (read off)" : "",
        fact.measured, span, signed_percent(span, fact.measured));
}

void blind(std::string& page, const Results& results) {
  page +=
      "\n## Steps that no constant had been seen with\n\nNeMo-RL 0.6 on GB200, first predicted "
      "when all constants but `nvlink_latency` had\ntheir present values; no part of any goal. As "
      "published, 235B takes longer on 128 devices than on 64, and 30B one\nstep off longer than "
      "on "
      "policy: no model of the same software on the same devices says so.\n\n"
      "| run | published s | priors s | error |\n|---|---|---|---|\n";
  for (const auto& [row, phases] : results.blind) {
    const double measured = row.measured.at("step");
    say(page, "| {} | {:.1f} | {:.1f} | {} |\n", row.name, measured, phases.at("step"),
        signed_percent(phases.at("step"), measured));
  }
}

void training(std::string& page, const Results& results) {
  page +=
      "\n## Training alone\n\nMixtures of experts in bf16, chosen evenly: rows that support the "
      "priors of training and are no part of\nany goal.\n\n"
      "| run | published tokens/s and device | priors | error |\n|---|---|---|---|\n";
  for (const auto& [fact, rate] : results.training)
    say(page, "| {} | {:.0f} | {:.0f} | {} |\n", fact.name, fact.tokens_per_s, rate,
        signed_percent(rate, fact.tokens_per_s));
}

void generation_tp(std::string& page, const Results& results) {
  page +=
      "\n## Tensor parallelism of generation\n\nHybridFlow, figure 15: 16 A100, all colocated. "
      "Seconds with the priors.\n\n"
      "| model | seconds by size | largest is slowest | published gain | predicted gain |\n"
      "|---|---|---|---|---|\n";
  for (const auto& [fact, spans] : results.generation_tp) {
    std::string list;
    bool slowest = true;
    for (const auto& [size, span] : spans) {
      say(list, "{}{}: {:.0f}", list.empty() ? "" : ", ", size, span);
      slowest = slowest && span <= spans.rbegin()->second;
    }
    say(page, "| {} | {} | {} | {:.0f} % at {} | {:.0f} %, best {} |\n", fact.name, list,
        verdict(slowest), 100 * fact.less, fact.best, 100 * saved(spans, fact.best),
        fastest(spans));
  }
}

void placements(std::string& page, const Results& results) {
  page +=
      "\n## Placements of PPO's four models\n\nHybridFlow, figure 12: equal sizes, A100 with one "
      "200 Gb/s adapter a node. Seconds a step with the priors. *Tie*: within 2 % of the "
      "fastest.\n\n"
      "| model | devices | colocate | split | standalone | published best | ranking |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const auto& [fact, spans] : results.placements) {
    const auto span = [&spans = spans](const char* name) {
      const auto found = spans.find(name);
      return found == spans.end() ? std::string("does not fit")
                                  : fmt::format("{:.0f}", found->second);
    };
    say(page, "| {} | {} | {} | {} | {} | {} | {} |\n", fact.model.name, fact.gpus,
        span("colocate"), span("split"), span("standalone"), fact.best, ranking(spans, fact.best));
  }
}

void tails(std::string& page, const Results& results) {
  page +=
      "\n## Tails\n\nSeer, baseline: share of the rollout that the last tenth of requests takes. "
      "Lengths: log-normal with the\npublished mean and bound; its width is an assumption of the "
      "file.\n\n| run | rollout s | predicted | tail share | predicted |\n|---|---|---|---|---|\n";
  for (const auto& [fact, time] : results.tails)
    say(page, "| {} | {:.0f} | {:.0f} ({}) | {:.0f} % | {:.0f} % |\n", fact.name, fact.rollout,
        time.rollout_s, signed_percent(time.rollout_s, fact.rollout),
        100 * fact.tail / fact.rollout, 100 * time.tail_s / time.rollout_s);
}

void memory(std::string& page, const Results& results) {
  page +=
      "\n## What fits\n\n| run | published | GB of a device | GB needed | predicted |\n"
      "|---|---|---|---|---|\n";
  for (const auto& [fact, need] : results.memory)
    say(page, "| {} | {} | {:.0f} | {:.0f} | {} |\n", fact.name,
        fact.fits ? "fits" : "out of memory", need.device_bytes / 1e9, need.peak_bytes / 1e9,
        verdict(need.fits == fact.fits));
}

void constants(std::string& page) {
  page += "\n## Constants\n\n| constant | prior | range | unit | source |\n|---|---|---|---|---|\n";
  for (const sim::ConstantInfo& info : sim::constant_table())
    say(page, "| {} | {:g} | {:g}–{:g} | {} | {} |\n", info.name, info.prior, info.low, info.high,
        info.unit, info.source);
}

}  // namespace

std::string page_of(const Published& published, const Results& results) {
  std::string page;
  heading(page);
  goals(page, results);
  summary(page, results);
  for (const SystemResult& one : results.systems) system_table(page, one);
  blind(page, results);
  training(page, results);
  transitions(page, results);
  generation_tp(page, results);
  placements(page, results);
  tails(page, results);
  memory(page, results);
  page += "\n## What misses, and why\n\n";
  for (const std::string& one : published.misses) entry(page, one);
  constants(page);
  return page;
}

}  // namespace troupe::conformance
