#include "actors/data/dataset.hpp"
#include "actors/data/tasks.hpp"
#include "actors/environment/guess_environment.hpp"
#include "apps/troupe/commands.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::apps {
namespace {

constexpr const char* kGuess = "guess";

struct DataOptions {
  std::string task;
  std::string folder;
  actors::TaskOptions make;
  std::vector<std::string> given;  ///< options of the command line that `guess` has no use for
};

result<void> save_rows(const std::string& folder, actors::TaskRows rows) {
  const auto save = [&folder](std::vector<actors::PromptRow> part,
                              const char* name) -> result<void> {
    const auto path = std::filesystem::path(folder) / name;
    const std::size_t count = part.size();
    TROUPE_TRY_VOID(actors::Dataset::from_rows(std::move(part)).save(path.string()));
    fmt::print("{:>8} rows  {}\n", count, path.string());
    return {};
  };
  TROUPE_TRY_VOID(save(std::move(rows.train), "train.jsonl"));
  TROUPE_TRY_VOID(save(std::move(rows.validation), "val.jsonl"));
  return save(std::move(rows.warmup), "warmup.jsonl");
}

/// The multi-turn task: a number of the range for each prompt.
result<actors::TaskRows> make_guesses(const DataOptions& options) {
  if (!options.given.empty())
    return fail(ErrorCode::kInvalidArgument, "data make {}: {} has no effect", kGuess,
                options.given.front());
  TROUPE_TRY(actors::GuessTaskRows rows,
             actors::make_guess_rows({.low = options.make.value_min,
                                      .high = options.make.value_max,
                                      .train_rows = options.make.train_rows,
                                      .validation_rows = options.make.validation_rows,
                                      .warmup_rows = options.make.warmup_rows,
                                      .seed = options.make.seed}));
  return actors::TaskRows{.train = std::move(rows.train),
                          .validation = std::move(rows.validation),
                          .warmup = std::move(rows.warmup)};
}

result<void> make_data(DataOptions options) {
  if (options.task == kGuess) {
    TROUPE_TRY(actors::TaskRows rows, make_guesses(options));
    return save_rows(options.folder, std::move(rows));
  }
  auto kind = actors::task_kind_from_name(options.task);
  if (!kind) return fail(ErrorCode::kNotFound, "{}, or {}", kind.error().message, kGuess);
  options.make.kind = *kind;
  if (options.make.kind == actors::TaskKind::kCountdown && options.make.value_min == 0)
    options.make.value_min = 1;
  TROUPE_TRY(actors::TaskRows rows, actors::make_task_rows(options.make));
  return save_rows(options.folder, std::move(rows));
}

}  // namespace

Command add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "make data sets");
  data->require_subcommand(1);
  CLI::App* make = data->add_subcommand(
      "make", "make train.jsonl, val.jsonl and warmup.jsonl of a task with verifiable rewards");
  const auto options = std::make_shared<DataOptions>();
  auto& task = options->make;
  make->add_option("task", options->task,
                   "sort, reverse, copy, chain-sum, countdown, or guess (an environment's)")
      ->required();
  make->add_option("--out", options->folder, "folder to write to")
      ->required()
      ->check([](const std::string& folder) {
        return folder.empty() ? std::string("names no folder") : std::string();
      });
  make->add_option("--items-min", task.items_min, "numbers per prompt, at least");
  make->add_option("--items-max", task.items_max, "numbers per prompt, at most");
  make->add_option("--value-min", task.value_min, "smallest number");
  make->add_option("--value-max", task.value_max, "largest number");
  make->add_flag("--distinct", task.distinct_values, "no number twice in a prompt");
  make->add_flag("--worded", task.worded, "ask in English, for language models");
  make->add_option("--target-max", task.target_max, "countdown: largest target");
  make->add_option("--train-rows", task.train_rows, "rows of train.jsonl");
  make->add_option("--val-rows", task.validation_rows, "rows of val.jsonl");
  make->add_option("--warmup-rows", task.warmup_rows, "rows of warmup.jsonl, for `troupe sft`");
  make->add_option("--seed", task.seed, "seed of the rows");
  return [options, make]() -> int {
    for (const char* name :
         {"--items-min", "--items-max", "--distinct", "--worded", "--target-max"})
      if (make->count(name) > 0) options->given.emplace_back(name);
    const auto done = make_data(*options);
    if (done) return kExitDone;
    return done.error().code == ErrorCode::kIo ? exit_with(done.error()) : exit_usage(done.error());
  };
}

}  // namespace troupe::apps
