#include "actors/data/dataset.hpp"
#include "actors/data/tasks.hpp"
#include "apps/troupe/commands.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

namespace troupe::apps {
namespace {

struct DataOptions {
  std::string task;
  std::string folder;
  actors::TaskOptions make;
};

result<void> make_data(DataOptions options) {
  TROUPE_TRY(options.make.kind, actors::task_kind_from_name(options.task));
  if (options.make.kind == actors::TaskKind::kCountdown && options.make.value_min == 0)
    options.make.value_min = 1;
  TROUPE_TRY(actors::TaskRows rows, actors::make_task_rows(options.make));
  const auto save = [&](std::vector<actors::PromptRow> part, const char* name) -> result<void> {
    const auto path = std::filesystem::path(options.folder) / name;
    const std::size_t count = part.size();
    TROUPE_TRY_VOID(actors::Dataset::from_rows(std::move(part)).save(path.string()));
    fmt::print("{:>8} rows  {}\n", count, path.string());
    return {};
  };
  TROUPE_TRY_VOID(save(std::move(rows.train), "train.jsonl"));
  TROUPE_TRY_VOID(save(std::move(rows.validation), "val.jsonl"));
  return save(std::move(rows.warmup), "warmup.jsonl");
}

}  // namespace

Command add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "make data sets");
  data->require_subcommand(1);
  CLI::App* make = data->add_subcommand(
      "make", "make train.jsonl, val.jsonl and warmup.jsonl of a task with verifiable rewards");
  const auto options = std::make_shared<DataOptions>();
  auto& task = options->make;
  make->add_option("task", options->task, "sort, reverse, copy, chain-sum or countdown")
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
  make->add_option("--target-max", task.target_max, "countdown: largest target");
  make->add_option("--train-rows", task.train_rows, "rows of train.jsonl");
  make->add_option("--val-rows", task.validation_rows, "rows of val.jsonl");
  make->add_option("--warmup-rows", task.warmup_rows, "rows of warmup.jsonl, for `troupe sft`");
  make->add_option("--seed", task.seed, "seed of the rows");
  return [options]() -> int {
    const auto done = make_data(*options);
    if (done) return kExitDone;
    return done.error().code == ErrorCode::kIo ? exit_with(done.error()) : exit_usage(done.error());
  };
}

}  // namespace troupe::apps
