#include "actors/model/hf_folder.hpp"
#include "actors/text/byte_level_tokenizer.hpp"
#include "actors/text/tokenizer.hpp"
#include "apps/troupe/commands.hpp"

#include <fmt/format.h>

#include <memory>

namespace troupe::apps {
namespace {

struct InitOptions {
  std::string folder;
  std::string family = "llama";
  std::int64_t hidden = 128;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t mlp = 384;
  std::int64_t positions = 512;
  std::uint64_t seed = 0;
  std::string alphabet;
  std::string chat = "chatml";
};

result<actors::ModelConfig> config_of(const InitOptions& options, int vocabulary) {
  actors::ModelConfig config;
  if (options.family == "qwen2") config.family = actors::ModelFamily::kQwen2;
  if (options.family == "qwen3") config.family = actors::ModelFamily::kQwen3;
  config.qkv_bias = options.family == "qwen2";
  config.qk_norm = options.family == "qwen3";
  config.hidden_size = options.hidden;
  config.intermediate_size = options.mlp;
  config.layer_count = options.layers;
  config.head_count = options.heads;
  config.kv_head_count = options.kv_heads;
  if (options.heads < 1 || options.hidden % options.heads != 0)
    return fail(ErrorCode::kConfig, "model init: hidden size {} is not a multiple of {} heads",
                options.hidden, options.heads);
  config.head_dim = options.hidden / options.heads;
  config.vocab_size = vocabulary;
  config.positions_max = options.positions;
  config.tie_embeddings = true;
  config.initializer_range = 0.05;  // small models start too flat with 0.02
  return config;
}

result<void> init_model(const InitOptions& options) {
  actors::ByteLevelOptions bytes;
  bytes.alphabet = options.alphabet;
  if (options.chat == "plain") {
    bytes.specials = {"<|pad|>", "<|endoftext|>"};
    bytes.eos_token = "<|endoftext|>";
  }
  TROUPE_TRY(const actors::ModelConfig shape, config_of(options, 1));
  TROUPE_TRY_VOID(shape.validate());  // before anything is written
  TROUPE_TRY(const int vocabulary, actors::write_byte_level_tokenizer(options.folder, bytes));
  TROUPE_TRY(const auto tokenizer, actors::Tokenizer::load(options.folder));
  TROUPE_TRY(actors::ModelConfig config, config_of(options, vocabulary));
  config.pad_id = tokenizer.pad_id();
  if (const auto eos = tokenizer.eos_id()) config.eos_ids = config.stop_ids = {*eos};
  TROUPE_TRY_VOID(config.validate());
  const actors::WeightSet weights = actors::random_weights(config, options.seed);
  TROUPE_TRY_VOID(actors::save_hf_folder(options.folder, config, weights.tensors()));
  fmt::print("{}: {} parameters, {} token ids\n", options.folder, config.parameter_count(),
             vocabulary);
  return {};
}

}  // namespace

Command add_model(CLI::App& app) {
  CLI::App* model = app.add_subcommand("model", "make model folders");
  model->require_subcommand(1);
  CLI::App* init =
      model->add_subcommand("init", "a new model with random weights and a byte-level tokenizer");
  const auto options = std::make_shared<InitOptions>();
  init->add_option("folder", options->folder, "folder to write")->required();
  init->add_option("--family", options->family, "llama, qwen2 or qwen3")
      ->check(CLI::IsMember({"llama", "qwen2", "qwen3"}));
  init->add_option("--hidden", options->hidden, "hidden size");
  init->add_option("--layers", options->layers, "layers");
  init->add_option("--heads", options->heads, "query heads");
  init->add_option("--kv-heads", options->kv_heads, "key and value heads");
  init->add_option("--mlp", options->mlp, "width of the gated MLP");
  init->add_option("--positions", options->positions, "longest sequence");
  init->add_option("--alphabet", options->alphabet, "bytes that get a token; empty: all 256");
  init->add_option("--chat", options->chat, "chatml: turns in control tokens; plain: bare text")
      ->check(CLI::IsMember({"chatml", "plain"}));
  init->add_option("--seed", options->seed, "seed of the weights");
  return [options]() -> int {
    const auto done = init_model(*options);
    if (done) return kExitDone;
    return done.error().code == ErrorCode::kIo ? exit_with(done.error()) : exit_usage(done.error());
  };
}

}  // namespace troupe::apps
