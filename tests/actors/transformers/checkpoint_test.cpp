// Proves on small checkpoints that Hugging Face transformers wrote (tests/fixtures/transformers),
// families and switches crossed, that Troupe reads them, computes the logits, log-probabilities and
// greedy texts that transformers computes, by every road but the trainer's: the slow reference, the
// rollout engine's layers in one pass and token by token through its KV cache, and whole requests.
// And that what Troupe saves is, tensor for tensor and key for key, what transformers had written,
// and that models which it would compute wrongly are refused by name.

#include "tests/actors/rollout/engine_case.hpp"
#include "tests/actors/transformers/runner_logits.hpp"
#include "tests/support/reference_model.hpp"
#include "tests/support/transformers_case.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace troupe::actors {
namespace {

using nlohmann::json;
using troupe::testing::kLogitTolerance;
using troupe::testing::largest_difference;
using troupe::testing::TransformersCase;
using Ids = std::vector<std::int32_t>;
namespace fs = std::filesystem;

class TransformersCheckpoint : public ::testing::TestWithParam<std::string> {
 protected:
  const TransformersCase golden_ = troupe::testing::load_transformers_case(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Cases, TransformersCheckpoint,
                         ::testing::ValuesIn(troupe::testing::transformers_cases()),
                         [](const auto& test) { return test.param; });

TEST_P(TransformersCheckpoint, GivesItsLogitsInTheSlowReference) {
  EXPECT_EQ(golden_.config.parameter_count(), golden_.parameters);
  const troupe::testing::ReferenceModel model(golden_.config, golden_.weights.tensors());
  for (std::size_t s = 0; s < golden_.sequences.size(); ++s) {
    const Ids& ids = golden_.sequences[s];
    const auto logits = model.logits(ids);
    for (std::size_t t = 0; t < ids.size(); ++t)
      EXPECT_LT(largest_difference(logits.row(t), golden_.row(s, t)), kLogitTolerance)
          << "sequence " << s << ", position " << t;
    EXPECT_LT(largest_difference(model.log_probs(ids), golden_.log_probs[s]), kLogitTolerance);
  }
  EXPECT_EQ(model.greedy(golden_.greedy_prompt, static_cast<int>(golden_.greedy_tokens.size())),
            golden_.greedy_tokens);
}

TEST_P(TransformersCheckpoint, GivesItsLogitsInOnePassAndTokenByTokenThroughTheCache) {
  const auto width = static_cast<std::size_t>(golden_.config.vocab_size);
  double worst = 0;
  for (std::size_t s = 0; s < golden_.sequences.size(); ++s) {
    const Ids& ids = golden_.sequences[s];
    for (const std::size_t chunk : {std::size_t{64}, std::size_t{7}, std::size_t{1}}) {
      const auto logits =
          runner_logits(golden_.config, golden_.weights.tensors(), ids, chunk).value();
      ASSERT_EQ(logits.size(), ids.size() * width);
      for (std::size_t t = 0; t < ids.size(); ++t) {
        const double difference =
            largest_difference(std::span(logits).subspan(t * width, width), golden_.row(s, t));
        EXPECT_LT(difference, kLogitTolerance)
            << "sequence " << s << ", position " << t << ", calls of " << chunk;
        worst = std::max(worst, difference);
      }
    }
  }
  RecordProperty("largest_logit_difference", fmt::format("{:.1e}", worst));
}

TEST_P(TransformersCheckpoint, GivesItsGreedyTextInTheRolloutEngine) {
  // A small token budget cuts the prompt; the other request shares every step.
  const auto engine =
      engine_for(golden_.config, golden_.weights, {.max_num_seqs = 3, .max_num_batched_tokens = 5});
  GenerateRequest request;
  request.prompt = golden_.greedy_prompt;
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = static_cast<std::int32_t>(golden_.greedy_tokens.size());
  GenerateRequest other = request;
  other.prompt_id = 1;
  other.prompt = golden_.sequences[1];
  other.sampling.temperature = 1;
  const auto out = generate_all(*engine, {request, other});
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].tokens, golden_.greedy_tokens);
  EXPECT_LT(largest_difference(out[0].log_probs, golden_.greedy_log_probs), kLogitTolerance);
}

/// Every tensor of a folder: name → type, shape and bytes.
struct StoredTensor {
  TensorType type;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
  bool operator==(const StoredTensor&) const = default;
};

std::map<std::string, StoredTensor> stored_tensors(const fs::path& folder) {
  std::map<std::string, StoredTensor> tensors;
  for (const auto& item : fs::directory_iterator(folder)) {
    const std::string name = item.path().filename().string();
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    const auto file = SafetensorsFile::open(item.path());
    TROUPE_CHECK(file.has_value(), "{}", file.error().to_string());
    for (const TensorEntry& entry : file->entries()) {
      const auto bytes = file->bytes(entry);
      tensors.emplace(entry.name,
                      StoredTensor{entry.type, entry.shape, {bytes.begin(), bytes.end()}});
    }
  }
  return tensors;
}

/// The keys that change what a model computes or how it is read, in one spelling: of the newer
/// generation of transformers, its defaults written out.
json computing_keys(const fs::path& folder) {
  const json config = json::parse(troupe::testing::read_file(folder / "config.json"));
  json keys = json::object();
  for (const char* key :
       {"architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size",
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_act",
        "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "bos_token_id",
        "eos_token_id", "pad_token_id", "initializer_range"})
    keys[key] = config.at(key);
  keys["head_dim"] = config.value("head_dim", config.at("hidden_size").get<int>() /
                                                  config.at("num_attention_heads").get<int>());
  for (const char* key : {"attention_bias", "mlp_bias"}) keys[key] = config.value(key, false);
  const auto dtype = config.contains("dtype") ? config.at("dtype") : config.at("torch_dtype");
  keys["dtype"] = dtype;
  json rope = config.contains("rope_parameters") ? config.at("rope_parameters")
                                                 : config.value("rope_scaling", json());
  if (rope.is_null()) rope = {{"rope_type", "default"}};
  if (!rope.contains("rope_theta")) rope["rope_theta"] = config.at("rope_theta");
  keys["rope"] = rope;
  return keys;
}

TEST_P(TransformersCheckpoint, IsSavedAsTransformersHadWrittenIt) {
  for (const std::int64_t shard_bytes : {std::int64_t{4000}, std::int64_t{1} << 30}) {
    const troupe::testing::TemporaryFolder folder;
    const auto saved =
        save_hf_folder(folder.path(), golden_.config, golden_.weights.tensors(),
                       {.max_shard_bytes = shard_bytes, .stored_type = golden_.config.stored_type});
    ASSERT_TRUE(saved) << saved.error().message;
    EXPECT_EQ(computing_keys(folder.path()), computing_keys(golden_.folder));
    const auto wanted = stored_tensors(golden_.folder);
    const auto found = stored_tensors(folder.path());
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_TRUE(found.at(name) == tensor) << name;
    }
  }
}

TEST_P(TransformersCheckpoint, HasTheSameConfigInTheSpellingOfTransformers4) {
  const auto older =
      ModelConfig::load(troupe::testing::transformers_fixtures() / "older" / GetParam());
  ASSERT_TRUE(older) << older.error().message;
  EXPECT_EQ(*older, golden_.config);
}

TEST(TransformersConfig, OfModelsThatWouldComeOutWrongIsRefusedByName) {
  const fs::path fixtures = troupe::testing::transformers_fixtures();
  const json refused = json::parse(troupe::testing::read_file(fixtures / "refused.json"));
  ASSERT_GT(refused.size(), 10U);
  for (const auto& [name, words] : refused.items()) {
    const auto config = ModelConfig::load(fixtures / "refused" / name);
    ASSERT_FALSE(config) << name;
    EXPECT_EQ(config.error().code, ErrorCode::kUnsupported) << name;
    EXPECT_THAT(config.error().message, ::testing::HasSubstr(words.get<std::string>())) << name;
    EXPECT_THAT(config.error().message, ::testing::HasSubstr("config.json")) << name;
  }
}

}  // namespace
}  // namespace troupe::actors
