#include "actors/model/hf_folder.hpp"
#include "actors/roles/engine_checkpoint.hpp"
#include "apps/troupe/commands.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

namespace troupe::apps {
namespace {

struct ConvertOptions {
  std::string checkpoint;
  std::string model;
  std::string out;
};

/// The policy's weights of a checkpoint as a Hugging Face folder; shape and tokenizer come from the
/// model folder that the run started from.
result<void> convert(const ConvertOptions& options) {
  if (!std::filesystem::exists(std::filesystem::path(options.checkpoint) / runtime::kIndexFile))
    return fail(ErrorCode::kNotFound, "{}: no {} there, wanted a global_step_N folder",
                options.checkpoint, runtime::kIndexFile);
  TROUPE_TRY(const auto checkpoint, runtime::Checkpoint::open(options.checkpoint));
  TROUPE_TRY(const auto config, actors::ModelConfig::load(options.model));
  TROUPE_TRY(const actors::WeightSet weights,
             actors::read_weights(checkpoint, "actor", actors::expected_tensors(config)));
  TROUPE_TRY_VOID(actors::save_hf_folder(options.out, config, weights.tensors(),
                                         {.tokenizer_folder = options.model}));
  fmt::print("{}: {} tensors of step {}\n", options.out, weights.tensors().size(),
             checkpoint.step());
  return {};
}

}  // namespace

Command add_convert(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("convert", "export the policy of a checkpoint as a Hugging Face folder");
  const auto options = std::make_shared<ConvertOptions>();
  command->add_option("checkpoint", options->checkpoint, "a global_step_N folder")->required();
  command->add_option("--model", options->model, "folder that the run started from")->required();
  command->add_option("--out", options->out, "folder to write")->required();
  return [options]() -> int {
    const auto done = convert(*options);
    return done ? kExitDone : exit_with(done.error());
  };
}

}  // namespace troupe::apps
