// Trains a decoder of a few thousand parameters for some steps with the installed train engine, and
// ends non-zero unless its loss falls.
#include "actors/model/model_config.hpp"
#include "actors/model/weight_set.hpp"
#include "actors/train/train_engine.hpp"

#include <cstdio>

using namespace troupe;
using namespace troupe::actors;

constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu"})";

result<bool> loss_falls() {
  TROUPE_TRY(const ModelConfig config, ModelConfig::from_json(kConfig, "config.json"));
  const WeightSet weights = random_weights(config, 1);
  TrainEngineOptions options;
  options.optimizer.lr = 0.01;
  TROUPE_TRY(const auto engine, TrainEngine::create(config, weights.tensors(), options));
  SequencePack rows;
  rows.add(std::vector<std::int32_t>{1, 2}, std::vector<std::int32_t>{3, 4, 5});
  TROUPE_TRY(const double before, engine->sft_loss(rows.view()));
  for (int step = 0; step < 20; ++step) TROUPE_TRY_VOID(engine->update_sft(rows.view()));
  TROUPE_TRY(const double after, engine->sft_loss(rows.view()));
  std::printf("loss %.4f -> %.4f\n", before, after);
  return after < 0.5 * before;
}

int main() {
  const auto fell = loss_falls();
  if (!fell) std::fprintf(stderr, "%s\n", fell.error().to_string().c_str());
  return fell && *fell ? 0 : 1;
}
