#include "apps/training/evaluate_app.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/config_command.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>

namespace troupe::apps {
namespace {

struct EvalOutput {
  bool json = false;
  std::int64_t show = 0;
};

void print_table(const Evaluation& evaluation, std::int64_t show) {
  for (const auto& [source, scores] : evaluation.sources) {
    fmt::print("{}: {} prompts x {} samples, reward {:.4f}, avg@{} {:.4f}\n", source,
               scores.prompts, evaluation.samples_per_prompt, scores.reward,
               evaluation.samples_per_prompt, scores.average);
    for (const auto& [k, value] : scores.pass_at) fmt::print("  pass@{:<4} {:.4f}\n", k, value);
  }
  const auto count =
      std::min<std::size_t>(static_cast<std::size_t>(show), evaluation.samples.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto& sample = evaluation.samples[i];
    fmt::print("--- {} score {}\nprompt:   {}\nresponse: {}\nanswer:   {}\nwanted:   {}\n",
               sample.data_source, sample.score, sample.prompt, sample.response, sample.answer,
               sample.ground_truth);
  }
}

void print_json(const Evaluation& evaluation) {
  nlohmann::json out;
  for (const auto& [source, scores] : evaluation.sources) {
    auto& row = out[source];
    row = {{"prompts", scores.prompts},
           {"samples_per_prompt", evaluation.samples_per_prompt},
           {"reward", scores.reward},
           {"avg@" + std::to_string(evaluation.samples_per_prompt), scores.average}};
    for (const auto& [k, value] : scores.pass_at) row["pass@" + std::to_string(k)] = value;
  }
  fmt::print("{}\n", out.dump(2));
}

}  // namespace

Command add_eval(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("eval", "score a model on held-out prompts: pass@k, avg@k");
  const auto options = add_config_options(*command, false);
  const auto output = std::make_shared<EvalOutput>();
  command->add_flag("--json", output->json, "print JSON");
  command->add_option("--show", output->show, "print the first N samples")
      ->check(CLI::NonNegativeNumber);
  return [options, output]() -> int {
    return run_configured(
        *options, [&output](const runtime::Config& config, const TrainingRegistries& registries) {
          const auto evaluation = evaluate(config, registries, output->show > 0);
          if (!evaluation) return exit_with(evaluation.error());
          output->json ? print_json(*evaluation) : print_table(*evaluation, output->show);
          return kExitDone;
        });
  };
}

}  // namespace troupe::apps
