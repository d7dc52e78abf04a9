// Proves that config.json of both generations is read as transformers reads it: parameter counts of
// published models, every switch, RoPE variants, stop ids; and that what would be computed wrongly
// in silence is refused with the key and its value in the message.

#include "actors/model/model_config.hpp"

#include "actors/model/rope.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <numbers>
#include <string>

namespace troupe::actors {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json llama_json() {
  return json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 512, "rms_norm_eps": 1e-05, "max_position_embeddings": 512, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2})");
}

json with(json document, const json& changes) {
  document.update(changes);
  return document;
}

ModelConfig read(const json& document) {
  auto config = ModelConfig::from_json(document.dump());
  if (!config) throw std::runtime_error(config.error().message);
  return *config;
}

Error refusal(const json& document) {
  const auto config = ModelConfig::from_json(document.dump(), "here/config.json");
  EXPECT_FALSE(config) << document;
  if (config) return {};
  EXPECT_THAT(config.error().message, HasSubstr("here/config.json"));
  return config.error();
}

struct Published {
  const char* name;
  const char* text;
  std::int64_t parameters;
  std::int64_t kv_bytes_bf16;
};

TEST(ModelConfig, CountsTheParametersOfPublishedModels) {
  const Published models[] = {
      {"stories260K",
       R"({"model_type":"llama","hidden_size":64,"intermediate_size":172,"num_hidden_layers":5,
        "num_attention_heads":8,"num_key_value_heads":4,"vocab_size":512,"tie_word_embeddings":true})",
       260'032, 640},
      {"SmolLM2-135M",
       R"({"model_type":"llama","hidden_size":576,"intermediate_size":1536,"num_hidden_layers":30,
        "num_attention_heads":9,"num_key_value_heads":3,"vocab_size":49152,"tie_word_embeddings":true})",
       134'515'008, 23'040},
      {"Qwen2.5-0.5B",
       R"({"model_type":"qwen2","hidden_size":896,"intermediate_size":4864,"num_hidden_layers":24,
        "num_attention_heads":14,"num_key_value_heads":2,"vocab_size":151936,"tie_word_embeddings":true,
        "use_sliding_window":false,"sliding_window":32768,"max_window_layers":21})",
       494'032'768, 12'288},
      {"Qwen3-0.6B",
       R"({"model_type":"qwen3","hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":28,
        "num_attention_heads":16,"num_key_value_heads":8,"vocab_size":151936,"tie_word_embeddings":true})",
       596'049'920, 114'688},
      {"Llama-3.2-1B",
       R"({"model_type":"llama","hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16,
        "num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"tie_word_embeddings":true})",
       1'235'814'400, 32'768}};
  for (const Published& model : models) {
    const auto config = ModelConfig::from_json(model.text);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->parameter_count(), model.parameters) << model.name;
    EXPECT_EQ(config->kv_bytes_per_token(2), model.kv_bytes_bf16) << model.name;
  }
}

TEST(ModelConfig, ReadsTheOldGenerationOfKeys) {
  const ModelConfig config =
      read(with(llama_json(), json::parse(R"({"torch_dtype": "bfloat16", "rope_theta": 500000,
    "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192}})")));
  EXPECT_EQ(config.stored_type, WeightType::kBf16);
  EXPECT_EQ(config.rope, (RopeConfig{RopeKind::kLlama3, 500000, 32, 1, 4, 8192}));
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  const ModelConfig older =
      read(with(llama_json(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}));
  EXPECT_EQ(older.rope.kind, RopeKind::kLinear);
  EXPECT_EQ(older.rope.factor, 2.0);
  EXPECT_EQ(older.stored_type, WeightType::kF32);
}

TEST(ModelConfig, ReadsTheNewGenerationOfKeysAlike) {
  json old_keys = with(llama_json(), json::parse(R"({"torch_dtype": "float16", "rope_theta": 1000,
    "rope_scaling": {"rope_type": "linear", "factor": 4}})"));
  json new_keys = with(llama_json(), json::parse(R"({"dtype": "float16",
    "rope_parameters": {"rope_type": "linear", "rope_theta": 1000, "factor": 4}})"));
  new_keys.erase("rope_theta");
  EXPECT_EQ(read(old_keys), read(new_keys));
  new_keys["rope_theta"] = 1000.0;
  EXPECT_EQ(read(old_keys), read(new_keys));
}

TEST(ModelConfig, SetsTheSwitchesOfEachFamily) {
  const ModelConfig llama =
      read(with(llama_json(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias && !llama.qk_norm);
  json qwen2_json =
      with(llama_json(), {{"model_type", "qwen2"}, {"architectures", {"Qwen2ForCausalLM"}}});
  const ModelConfig qwen2 = read(qwen2_json);
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
  json qwen3_json =
      with(llama_json(), {{"model_type", "qwen3"}, {"architectures", {"Qwen3ForCausalLM"}}});
  const ModelConfig qwen3 = read(qwen3_json);
  EXPECT_TRUE(!qwen3.qkv_bias && !qwen3.o_bias && qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);  // the key's default, not hidden / heads
  EXPECT_EQ(qwen3.q_size(), 1024);
  EXPECT_TRUE(read(with(qwen3_json, {{"attention_bias", true}})).o_bias);
}

TEST(ModelConfig, TakesTheFamilyFromTheArchitectureWhenTheTypeIsMissing) {
  json document = llama_json();
  document.erase("model_type");
  document["architectures"] = {"Qwen3ForCausalLM"};
  EXPECT_EQ(read(document).family, ModelFamily::kQwen3);
  document["architectures"] = {"Qwen3MoeForCausalLM"};
  EXPECT_EQ(refusal(document).code, ErrorCode::kUnsupported);
  document.erase("architectures");
  EXPECT_EQ(refusal(document).code, ErrorCode::kInvalidArgument);
}

TEST(ModelConfig, DefaultsKeyValueHeadsToAllHeads) {
  json document = llama_json();
  document.erase("num_key_value_heads");
  EXPECT_EQ(read(document).kv_head_count, 8);
  document["num_key_value_heads"] = nullptr;
  document["head_dim"] = nullptr;
  EXPECT_EQ(read(document).kv_head_count, 8);
}

TEST(ModelConfig, ReadsEndIdsAsOneOrAsAList) {
  EXPECT_THAT(read(llama_json()).eos_ids, ElementsAre(2));
  EXPECT_THAT(read(with(llama_json(), {{"eos_token_id", {9, 8}}})).eos_ids, ElementsAre(9, 8));
  EXPECT_THAT(read(with(llama_json(), {{"eos_token_id", nullptr}})).eos_ids, IsEmpty());
  EXPECT_EQ(read(with(llama_json(), {{"pad_token_id", -1}})).pad_id,
            std::nullopt);  // old Llama files
  EXPECT_EQ(read(llama_json()).bos_id, 1);
}

TEST(ModelConfig, TakesOnlyStopIdsFromTheGenerationConfig) {
  const troupe::testing::TemporaryFolder folder;
  troupe::testing::write_file(folder / "config.json",
                              with(llama_json(), {{"eos_token_id", 151645}}).dump());
  troupe::testing::write_file(
      folder / "generation_config.json",
      R"({"eos_token_id": [151645, 151643], "temperature": 0.7, "top_k": 20})");
  const auto config = ModelConfig::load(folder.path());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_THAT(config->eos_ids, ElementsAre(151645));
  EXPECT_THAT(config->stop_ids, ElementsAre(151645, 151643));
  troupe::testing::write_file(folder / "generation_config.json", R"({"eos_token_id": "two"})");
  const auto broken = ModelConfig::load(folder.path());
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message, HasSubstr("generation_config.json: eos_token_id is \"two\""));
}

TEST(ModelConfig, NamesTheMissingFile) {
  const auto config = ModelConfig::load("/nowhere");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(config.error().message, HasSubstr("/nowhere/config.json"));
}

TEST(ModelConfig, WritesWhatItReads) {
  const json documents[] = {
      llama_json(),
      with(llama_json(),
           json::parse(R"({"attention_bias": true, "mlp_bias": true, "torch_dtype": "float16",
        "tie_word_embeddings": false, "eos_token_id": [2, 3], "pad_token_id": 0, "bos_token_id": null,
        "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192}})")),
      with(llama_json(),
           json::parse(R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
        "rope_scaling": {"type": "linear", "factor": 1.5}, "dtype": "bfloat16"})")),
      with(llama_json(),
           json::parse(R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": true, "head_dim": 24, "initializer_range": 0.006})"))};
  for (const json& document : documents) {
    const ModelConfig config = read(document);
    const auto again = ModelConfig::from_json(config.to_json());
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, config) << config.to_json();
  }
}

struct Refused {
  const char* name;
  const char* changes;  // merged over llama_json()
  ErrorCode code;
  const char* says;
};

class RefusedConfig : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedConfig, NamesTheKeyAndItsValue) {
  const Error error = refusal(with(llama_json(), json::parse(GetParam().changes)));
  EXPECT_EQ(error.code, GetParam().code) << error.message;
  EXPECT_THAT(error.message, HasSubstr(GetParam().says));
}

constexpr auto kNo = ErrorCode::kUnsupported;
constexpr auto kBad = ErrorCode::kInvalidArgument;
INSTANTIATE_TEST_SUITE_P(
    Kinds, RefusedConfig,
    ::testing::Values(
        Refused{"family", R"({"model_type":"mistral","architectures":["MistralForCausalLM"]})", kNo,
                "mistral"},
        Refused{"family_clash", R"({"model_type":"qwen2"})", kNo, "LlamaForCausalLM"},
        Refused{"architectures_text", R"({"architectures":"LlamaForCausalLM"})", kBad,
                "architectures"},
        Refused{"experts", R"({"num_experts":8})", kNo, "num_experts is 8"},
        Refused{"local_experts", R"({"num_local_experts":8})", kNo, "num_local_experts is 8"},
        Refused{"quantised", R"({"quantization_config":{"quant_method":"gptq"}})", kNo,
                "quantization_config"},
        Refused{"activation", R"({"hidden_act":"gelu"})", kNo, "gelu"},
        Refused{"rope_yarn", R"({"rope_scaling":{"rope_type":"yarn","factor":4}})", kNo, "yarn"},
        Refused{"rope_dynamic", R"({"rope_scaling":{"type":"dynamic","factor":4}})", kNo,
                "dynamic"},
        Refused{"rope_new_key", R"({"rope_parameters":{"rope_type":"longrope","rope_theta":1e4}})",
                kNo, "longrope"},
        Refused{"rope_partial", R"({"partial_rotary_factor":0.5})", kNo, "0.5"},
        Refused{"rope_partial_new",
                R"({"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.25}})", kNo,
                "0.25"},
        Refused{"rope_per_layer_kind",
                R"({"rope_parameters":{"full_attention":{"rope_type":"default"}}})", kNo,
                "full_attention"},
        Refused{"rope_no_factor", R"({"rope_scaling":{"rope_type":"linear"}})", kBad,
                "factor is missing"},
        Refused{"rope_text", R"({"rope_scaling":"linear"})", kBad, "rope_scaling"},
        Refused{"rope_theta_clash", R"({"rope_parameters":{"rope_theta":5e5}})", kBad, "500000"},
        Refused{"rope_both_clash", R"({"rope_scaling":{"type":"linear","factor":2},
                "rope_parameters":{"rope_type":"linear","factor":3}})",
                kBad, "contradict"},
        Refused{"rope_theta_zero", R"({"rope_theta":0})", kBad, "rope_theta is 0"},
        Refused{"rope_bands",
                R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,
                "high_freq_factor":4,"original_max_position_embeddings":8192}})",
                kBad, "high_freq_factor"},
        Refused{"sliding_layer",
                R"({"layer_types":["full_attention","sliding_attention","full_attention",
                "full_attention","full_attention"]})",
                kNo, "layer 1"},
        Refused{"layer_types_count", R"({"layer_types":["full_attention"]})", kBad,
                "names 1 layers"},
        Refused{"dtype", R"({"torch_dtype":"float8_e4m3fn"})", kNo, "float8_e4m3fn"},
        Refused{"dtype_clash", R"({"torch_dtype":"float16","dtype":"bfloat16"})", kBad,
                "contradicts"},
        Refused{"size_missing", R"({"hidden_size":null})", kBad, "hidden_size is missing"},
        Refused{"size_text", R"({"hidden_size":"64"})", kBad, "hidden_size is \"64\""},
        Refused{"size_fraction", R"({"hidden_size":64.5})", kBad, "64.5"},
        Refused{"size_zero", R"({"num_hidden_layers":0})", kBad, "num_hidden_layers is 0"},
        Refused{"size_negative", R"({"vocab_size":-5})", kBad, "vocab_size is -5"},
        Refused{"size_huge", R"({"vocab_size":9223372036854775807})", kBad, "vocab_size"},
        Refused{"size_beyond", R"({"vocab_size":18446744073709551615})", kBad, "vocab_size"},
        Refused{"heads_zero", R"({"num_attention_heads":0})", kBad, "num_attention_heads"},
        Refused{"heads_uneven", R"({"num_attention_heads":7})", kBad, "64"},
        Refused{"kv_uneven", R"({"num_key_value_heads":3})", kBad, "num_key_value_heads 3"},
        Refused{"head_odd", R"({"head_dim":7})", kBad, "head_dim 7"},
        Refused{"eps_zero", R"({"rms_norm_eps":0})", kBad, "rms_norm_eps is 0"},
        Refused{"eps_text", R"({"rms_norm_eps":"1e-5"})", kBad, "rms_norm_eps"},
        Refused{"flag_number", R"({"tie_word_embeddings":1})", kBad, "tie_word_embeddings is 1"},
        Refused{"eos_text", R"({"eos_token_id":"</s>"})", kBad, "eos_token_id"},
        Refused{"eos_huge", R"({"eos_token_id":[1,4294967296]})", kBad, "4294967296"},
        Refused{"qwen_window", R"({"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],
                "use_sliding_window":true,"sliding_window":128,"max_window_layers":2})",
                kNo, "layer 2 of 5"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ModelConfig, AcceptsAWindowThatNoLayerUses) {
  const json qwen =
      with(llama_json(), {{"model_type", "qwen2"}, {"architectures", {"Qwen2ForCausalLM"}}});
  EXPECT_EQ(read(with(qwen, {{"use_sliding_window", true}, {"max_window_layers", 5}})), read(qwen));
  EXPECT_EQ(read(with(qwen, {{"sliding_window", 128}, {"max_window_layers", 0}})), read(qwen));
  EXPECT_EQ(read(with(qwen, {{"layer_types", std::vector<std::string>(5, "full_attention")}})),
            read(qwen));
}

TEST(ModelConfig, RefusesWhatIsNoJsonObject) {
  for (const char* text : {"", "{", "[]", "3", R"({"hidden_size": 1, "hidden_size": 2})"}) {
    const auto config = ModelConfig::from_json(text, "here/config.json");
    ASSERT_FALSE(config) << text;
    EXPECT_THAT(config.error().message, HasSubstr("here/config.json"));
  }
}

TEST(ModelConfig, ValidatesSwitchesThatAFamilyCannotExpress) {
  ModelConfig config = read(llama_json());
  config.qk_norm = true;
  EXPECT_EQ(config.validate().error().code, ErrorCode::kUnsupported);
  config = read(llama_json());
  config.o_bias = true;
  EXPECT_EQ(config.validate().error().code, ErrorCode::kUnsupported);
  config = read(llama_json());
  config.rms_norm_eps = std::nan("");
  EXPECT_EQ(config.validate().error().code, ErrorCode::kInvalidArgument);
}

TEST(Rope, TurnsByPowersOfTheta) {
  ModelConfig config = read(llama_json());
  const auto plain = rope_inverse_frequencies(config);
  ASSERT_EQ(plain.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(plain[i], std::pow(10.0, -static_cast<double>(i)), 1e-12);
  config.rope.kind = RopeKind::kLinear;
  config.rope.factor = 4;
  const auto linear = rope_inverse_frequencies(config);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(linear[i], plain[i] / 4, 1e-12);
}

TEST(Rope, ScalesLongWavesAsLlama3Does) {
  ModelConfig config = read(llama_json());
  config.head_dim = 64;
  config.rope = {RopeKind::kDefault, 500000, 32, 1, 4, 8192};
  const auto plain = rope_inverse_frequencies(config);
  config.rope.kind = RopeKind::kLlama3;
  const auto scaled = rope_inverse_frequencies(config);
  int kept = 0;
  int slowed = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    if (wavelength < 8192.0 / 4) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wavelength > 8192.0) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 32);
      ++slowed;
    } else {
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 32);
    }
    if (i > 0) {
      EXPECT_LT(scaled[i], scaled[i - 1]);
    }
  }
  EXPECT_GT(kept, 5);
  EXPECT_GT(slowed, 5);
}

TEST(Rope, MovesInterleavedPairsToHalves) {
  EXPECT_THAT(half_split_permutation(8), ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
}

}  // namespace
}  // namespace troupe::actors
