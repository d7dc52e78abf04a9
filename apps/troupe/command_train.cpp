#include "apps/training/train_app.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/config_command.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace troupe::apps {
namespace {

void print_validation(const TrainSummary& summary) {
  for (const auto& [name, last] : summary.last_validation) {
    if (!name.starts_with("val-core/")) continue;
    const auto first = summary.first_validation.find(name);
    if (first == summary.first_validation.end() || summary.last_step < summary.first_step)
      fmt::print("  {:<44} {:.4f}\n", name, last);
    else
      fmt::print("  {:<44} {:.4f} -> {:.4f}\n", name, first->second, last);
  }
}

void print_summary(const TrainSummary& summary) {
  const std::string folder = summary.run_folder.string();
  const std::int64_t steps = summary.last_step - summary.first_step + 1;
  fmt::print("\n{} after step {}: {} steps in {:.1f} s\n", summary.stopped ? "stopped" : "done",
             summary.last_step, steps, summary.train_seconds);
  print_validation(summary);
  fmt::print("  {:<11} {}/metrics.jsonl\n", "metrics", folder);
  if (std::filesystem::exists(summary.run_folder / "trace.json"))
    fmt::print("  {:<11} {}/trace.json (chrome://tracing, ui.perfetto.dev)\n", "trace", folder);
  fmt::print("  {:<11} {}/report.html\n", "report", folder);
  if (!summary.checkpoint.empty())
    fmt::print("  {:<11} {}\n", "checkpoint", summary.checkpoint.string());
  if (!summary.model.empty()) fmt::print("  {:<11} {}\n", "model", summary.model.string());
  fmt::print("  {:<11} troupe train --resume {} trainer.total_training_steps=N\n", "resume",
             folder);
}

}  // namespace

Command add_train(CLI::App& app, const std::atomic<bool>& stop) {
  CLI::App* command = app.add_subcommand("train", "train a policy with GRPO, PPO or their kin");
  const auto options = add_config_options(*command, true);
  return [options, &stop]() -> int {
    return run_configured(
        *options, [&stop](const runtime::Config& config, const TrainingRegistries& registries) {
          const auto summary = train(config, registries, &stop);
          if (!summary) return exit_with(summary.error());
          print_summary(*summary);
          return summary->stopped ? kExitStopped : kExitDone;
        });
  };
}

}  // namespace troupe::apps
