#include "actors/rollout/rollout_engine.hpp"
#include "apps/training/model_bundle.hpp"
#include "apps/troupe/commands.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <span>
#include <string>

namespace troupe::apps {
namespace {

struct GenerateOptions {
  std::string model;
  std::string prompt;
  ModelOptions bundle;
  bool raw = false;
  std::int64_t samples = 1;
  actors::SamplingOptions sampling;
};

result<std::vector<std::int32_t>> prompt_ids(const ModelBundle& model,
                                             const GenerateOptions& options) {
  if (!options.raw) {
    const std::vector<actors::Message> messages{{"user", options.prompt}};
    return model.encode_prompt(messages);
  }
  std::vector<std::int32_t> ids = model.tokenizer().encode(options.prompt, {.add_special = true});
  if (ids.empty()) {
    if (!model.tokenizer().bos_id())
      return fail(ErrorCode::kInvalidArgument,
                  "generate: the prompt has no token and {} has no "
                  "beginning-of-sequence token",
                  options.model);
    ids.push_back(*model.tokenizer().bos_id());
  }
  return ids;
}

/// The text before the first of `stops`.
std::string up_to_stop(std::string text, std::span<const std::string> stops) {
  for (const std::string& stop : stops) text = text.substr(0, text.find(stop));
  return text;
}

result<void> generate(GenerateOptions options) {
  TROUPE_TRY(const auto model, ModelBundle::open(options.model, options.bundle));
  actors::EngineOptions engine_options;
  engine_options.token_bytes = [&model](std::int32_t id) {
    return model->tokenizer().token_bytes(id);
  };
  engine_options.max_num_seqs = 64;
  TROUPE_TRY(const auto engine,
             actors::RolloutEngine::create(model->config(), std::move(engine_options)));
  TROUPE_TRY_VOID(engine->load_weights(model->weights().tensors(), WeightVersion{0}));
  TROUPE_TRY(const auto ids, prompt_ids(*model, options));
  options.sampling.stop_ids = model->stop_ids();
  const std::int64_t room = model->config().positions_max - static_cast<std::int64_t>(ids.size());
  if (room < 1)
    return fail(ErrorCode::kInvalidArgument,
                "generate: prompt of {} tokens, the model has {} positions", ids.size(),
                model->config().positions_max);
  options.sampling.max_new_tokens =
      static_cast<std::int32_t>(std::min<std::int64_t>(options.sampling.max_new_tokens, room));
  actors::GenerateRequest request{.prompt_id = 0,
                                  .sample_indices = {},
                                  .prompt = ids,
                                  .sampling = options.sampling,
                                  .prefixes = {}};
  for (std::int64_t sample = 0; sample < options.samples; ++sample)
    request.sample_indices.push_back(static_cast<std::uint32_t>(sample));
  TROUPE_TRY(const auto sequences, engine->generate({std::move(request)}));
  for (const actors::GeneratedSequence& sequence : sequences) {
    if (sequence.error) return fail(*sequence.error);
    if (options.samples > 1) fmt::print("--- sample {}\n", sequence.sample_index);
    const std::string text =
        up_to_stop(model->tokenizer().decode(sequence.tokens, {.skip_special = true}),
                   options.sampling.stop_strings);
    fmt::print("{}\n", text);
  }
  return {};
}

}  // namespace

Command add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "generate text with a model folder");
  const auto options = std::make_shared<GenerateOptions>();
  options->sampling.max_new_tokens = 256;
  options->sampling.temperature = 0;
  auto& sampling = options->sampling;
  command->add_option("model", options->model, "Hugging Face folder")->required();
  command->add_option("--prompt", options->prompt, "text of the user's message");
  command->add_option("--system", options->bundle.chat.default_system,
                      "system message; without, what the model's chat template has");
  command->add_flag("--no-think", options->bundle.chat.empty_think_block,
                    "the answer begins with an empty think block (Qwen3)");
  command->add_flag("--raw", options->raw, "continue the prompt as it is, without chat template");
  command->add_option("-n,--samples", options->samples, "samples")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1024}));
  command->add_option("--max-new-tokens", sampling.max_new_tokens, "at most so many tokens");
  command->add_option("--temperature", sampling.temperature, "0: greedy");
  command->add_option("--top-p", sampling.top_p, "keep tokens that make up this part");
  command->add_option("--top-k", sampling.top_k, "keep so many tokens");
  command->add_option("--min-p", sampling.min_p, "drop tokens below this part of the likeliest");
  command->add_option("--repetition-penalty", sampling.repetition_penalty,
                      "above 1: fewer repeats");
  command->add_option("--stop", sampling.stop_strings, "strings that end a sample");
  command->add_option("--seed", sampling.seed, "seed of the draws");
  return [options]() -> int {
    const auto checked = options->sampling.check();
    if (!checked) return exit_usage(checked.error());
    const auto done = generate(*options);
    return done ? kExitDone : exit_with(done.error());
  };
}

}  // namespace troupe::apps
