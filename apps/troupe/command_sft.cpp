#include "apps/training/sft_app.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/config_command.hpp"

#include <fmt/format.h>

namespace troupe::apps {

Command add_sft(CLI::App& app, const std::atomic<bool>& stop) {
  CLI::App* command = app.add_subcommand("sft", "supervised fine-tuning on prompt and response");
  const auto options = add_config_options(*command, true);
  return [options, &stop]() -> int {
    return run_configured(
        *options, [&stop](const runtime::Config& config, const TrainingRegistries&) {
          const auto summary = fine_tune(config, &stop);
          if (!summary) return exit_with(summary.error());
          fmt::print("{} after step {} in {:.1f} s", summary->stopped ? "stopped" : "done",
                     summary->last_step, summary->train_seconds);
          if (summary->last_loss) fmt::print(", loss {:.4f}", *summary->last_loss);
          if (summary->validation_loss)
            fmt::print(", held-out loss {:.4f}", *summary->validation_loss);
          fmt::print("\n");
          if (!summary->model.empty()) fmt::print("  model {}\n", summary->model.string());
          return summary->stopped ? kExitStopped : kExitDone;
        });
  };
}

}  // namespace troupe::apps
