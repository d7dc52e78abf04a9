#include "actors/model/gguf_model.hpp"
#include "actors/model/hf_folder.hpp"
#include "actors/roles/engine_checkpoint.hpp"
#include "apps/troupe/commands.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace troupe::apps {
namespace {

struct ConvertOptions {
  std::string source;
  std::string model;
  std::string out;
  std::string out_option;
  actors::WeightType dtype = actors::WeightType::kF32;
};

/// The policy's weights of a checkpoint as a Hugging Face folder; shape and tokenizer come from the
/// model folder that the run started from.
result<void> convert_checkpoint(const ConvertOptions& options) {
  if (!std::filesystem::exists(std::filesystem::path(options.source) / runtime::kIndexFile))
    return fail(ErrorCode::kNotFound,
                "{}: no {} there, wanted a global_step_N folder or a GGUF file", options.source,
                runtime::kIndexFile);
  if (options.model.empty())
    return fail(ErrorCode::kInvalidArgument,
                "convert: {} is a checkpoint, which needs --model, the folder the run started from",
                options.source);
  TROUPE_TRY(const auto checkpoint, runtime::Checkpoint::open(options.source));
  TROUPE_TRY(const auto config, actors::ModelConfig::load(options.model));
  TROUPE_TRY(const actors::WeightSet weights,
             actors::read_weights(checkpoint, "actor", actors::expected_tensors(config)));
  TROUPE_TRY_VOID(
      actors::save_hf_folder(options.out, config, weights.tensors(),
                             {.stored_type = options.dtype, .tokenizer_folder = options.model}));
  fmt::print("{}: {} tensors of step {}\n", options.out, weights.tensors().size(),
             checkpoint.step());
  return {};
}

/// Weights, shape and tokenizer of one GGUF file.
result<void> convert_gguf(const ConvertOptions& options) {
  if (!options.model.empty())
    return fail(ErrorCode::kInvalidArgument,
                "convert: --model {} belongs to a checkpoint, but {} is a file", options.model,
                options.source);
  TROUPE_TRY(const actors::GgufConverted done,
             actors::convert_gguf(options.source, options.out, {.stored_type = options.dtype}));
  fmt::print("{}: {} with {} parameters, {} tensors ({} of them dequantised) as {}\n", options.out,
             actors::model_family_name(done.config.family), done.config.parameter_count(),
             done.tensors, done.quantised, actors::weight_type_name(options.dtype));
  return {};
}

result<void> convert(ConvertOptions options) {
  if (options.out.empty() == options.out_option.empty())
    return fail(ErrorCode::kInvalidArgument,
                "convert: name the folder to write once, after the source or with --out");
  if (options.out.empty()) options.out = options.out_option;
  if (std::filesystem::is_regular_file(options.source)) return convert_gguf(options);
  return convert_checkpoint(options);
}

}  // namespace

Command add_convert(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "convert", "write the policy of a checkpoint, or a GGUF file, as a Hugging Face folder");
  const auto options = std::make_shared<ConvertOptions>();
  command->add_option("source", options->source, "a global_step_N folder, or model.gguf")
      ->required();
  command->add_option("folder", options->out, "folder to write");
  command->add_option("--out", options->out_option, "the same, as an option");
  command->add_option("--model", options->model,
                      "of a checkpoint: the folder that the run started from");
  std::map<std::string, actors::WeightType> types;
  for (const auto type :
       {actors::WeightType::kF32, actors::WeightType::kBf16, actors::WeightType::kF16})
    types.emplace(actors::weight_type_name(type), type);
  command->add_option("--dtype", options->dtype, "how weights are stored")
      ->transform(CLI::CheckedTransformer(types))
      ->default_str("float32");
  return [options]() -> int {
    const auto done = convert(*options);
    return done ? kExitDone : exit_with(done.error());
  };
}

}  // namespace troupe::apps
