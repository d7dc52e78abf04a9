// Proves that Hugging Face folders load and save: bit-for-bit round trips, single and sharded,
// every family; and one named error for each disagreement between config, index and files.

#include "actors/model/hf_folder.hpp"

#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

namespace troupe::actors {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using troupe::testing::TemporaryFolder;
namespace fs = std::filesystem;

ModelConfig tiny(ModelFamily family, bool tied) {
  ModelConfig config;
  config.family = family;
  config.hidden_size = 12;
  config.intermediate_size = 10;
  config.layer_count = 2;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 6;
  config.vocab_size = 20;
  config.tie_embeddings = tied;
  config.qkv_bias = family == ModelFamily::kQwen2;
  config.qk_norm = family == ModelFamily::kQwen3;
  config.eos_ids = {2};
  config.stop_ids = {2, 5};
  return config;
}

void expect_same(std::span<const NamedTensor> left, std::span<const NamedTensor> right) {
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].name, right[i].name);
    EXPECT_EQ(left[i].shape, right[i].shape);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(left[i].data), std::as_bytes(right[i].data)))
        << left[i].name;
  }
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(folder))
    names.insert(item.path().filename().string());
  return names;
}

TEST(WeightSet, ListsTheTensorsOfEachSwitch) {
  ModelConfig config = tiny(ModelFamily::kLlama, true);
  const auto plain = expected_tensors(config);
  EXPECT_EQ(plain.size(), 2U + 2 * 9);
  EXPECT_EQ(plain.front(), (TensorShape{"model.embed_tokens.weight", {20, 12}}));
  EXPECT_EQ(plain.back(), (TensorShape{"model.norm.weight", {12}}));
  config.tie_embeddings = false;
  EXPECT_EQ(expected_tensors(config).back(), (TensorShape{"lm_head.weight", {20, 12}}));
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  EXPECT_EQ(expected_tensors(config).size(), 3U + 2 * 16);
  const auto qwen3 = expected_tensors(tiny(ModelFamily::kQwen3, true));
  EXPECT_THAT(qwen3,
              ::testing::Contains(TensorShape{"model.layers.1.self_attn.q_norm.weight", {6}}));
  EXPECT_THAT(qwen3,
              ::testing::Contains(TensorShape{"model.layers.0.self_attn.q_proj.weight", {24, 12}}));
  EXPECT_THAT(qwen3,
              ::testing::Contains(TensorShape{"model.layers.0.self_attn.k_proj.weight", {12, 12}}));
}

TEST(WeightSet, DrawsTheSameNumbersForTheSameSeedAndName) {
  const ModelConfig config = tiny(ModelFamily::kQwen2, true);
  const WeightSet first = random_weights(config, 7);
  expect_same(first.tensors(), random_weights(config, 7).tensors());
  ModelConfig deeper = config;
  deeper.layer_count = 3;
  const WeightSet more = random_weights(deeper, 7);
  const char* name = "model.layers.1.mlp.up_proj.weight";
  EXPECT_TRUE(std::ranges::equal(first.find(name)->data, more.find(name)->data));
  EXPECT_FALSE(
      std::ranges::equal(first.find(name)->data, random_weights(config, 8).find(name)->data));
  EXPECT_FALSE(std::ranges::equal(first.find(name)->data,
                                  first.find("model.layers.1.mlp.gate_proj.weight")->data));
  EXPECT_THAT(first.find("model.norm.weight")->data, ::testing::Each(1.0F));
  EXPECT_THAT(first.find("model.layers.0.self_attn.q_proj.bias")->data, ::testing::Each(0.0F));
  EXPECT_EQ(first.find("nothing"), nullptr);
  EXPECT_EQ(first.element_count(), config.parameter_count());
}

TEST(HfFolder, SavesAndLoadsBitForBit) {
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kQwen2, ModelFamily::kQwen3}) {
    for (const bool tied : {false, true}) {
      // 1 byte: a file for each tensor, once, as every file is synced to the disk.
      const std::int64_t small = family == ModelFamily::kLlama && tied ? 1 : 4000;
      for (const std::int64_t shard_bytes : {small, std::int64_t{1} << 30}) {
        const TemporaryFolder folder;
        const ModelConfig config = tiny(family, tied);
        const WeightSet weights = random_weights(config, 3, {.bias_and_norm_spread = 0.1});
        const auto saved = save_hf_folder(folder.path(), config, weights.tensors(),
                                          {.max_shard_bytes = shard_bytes});
        ASSERT_TRUE(saved) << saved.error().message;
        EXPECT_EQ(fs::exists(folder / "model.safetensors"), shard_bytes > 100000);
        const auto again = ModelConfig::load(folder.path());
        ASSERT_TRUE(again) << again.error().message;
        EXPECT_EQ(*again, config);
        const auto loaded = load_hf_weights(folder.path(), *again);
        ASSERT_TRUE(loaded) << loaded.error().message;
        expect_same(loaded->tensors(), weights.tensors());
      }
    }
  }
}

TEST(HfFolder, KeepsShardsUnderTheLimit) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny(ModelFamily::kLlama, true);
  const WeightSet weights = random_weights(config, 3);
  ASSERT_TRUE(save_hf_folder(folder.path(), config, weights.tensors(), {.max_shard_bytes = 2500}));
  const json index =
      json::parse(troupe::testing::read_file(folder / "model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size"), 4 * config.parameter_count());
  EXPECT_EQ(index.at("weight_map").size(), weights.tensors().size());
  int shards = 0;
  for (const auto& name : names_in(folder.path())) {
    if (!name.starts_with("model-")) continue;
    ++shards;
    const auto file = SafetensorsFile::open(folder / name);
    ASSERT_TRUE(file);
    std::uint64_t bytes = 0;
    for (const TensorEntry& entry : file->entries()) bytes += entry.end - entry.begin;
    EXPECT_LE(bytes, 2500U) << name;
  }
  EXPECT_GT(shards, 2);
}

TEST(HfFolder, RemovesWeightFilesOfAnEarlierSave) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny(ModelFamily::kLlama, true);
  const WeightSet weights = random_weights(config, 3);
  troupe::testing::write_file(folder / "model-notes.txt", "mine");
  for (const std::int64_t bytes : {2500L, 1L << 30, 900L, 2500L}) {
    ASSERT_TRUE(
        save_hf_folder(folder.path(), config, weights.tensors(), {.max_shard_bytes = bytes}));
    const auto loaded = load_hf_weights(folder.path(), config);
    ASSERT_TRUE(loaded) << loaded.error().message;
    expect_same(loaded->tensors(), weights.tensors());
    EXPECT_NE(fs::exists(folder / "model.safetensors"),
              fs::exists(folder / "model.safetensors.index.json"));
  }
  EXPECT_TRUE(fs::exists(folder / "model-notes.txt"));
}

TEST(HfFolder, StoresNarrowTypesRoundedOnce) {
  const ModelConfig config = tiny(ModelFamily::kQwen3, false);
  const WeightSet weights = random_weights(config, 3);
  for (const WeightType type : {WeightType::kBf16, WeightType::kF16}) {
    const TemporaryFolder folder;
    ASSERT_TRUE(save_hf_folder(folder.path(), config, weights.tensors(), {.stored_type = type}));
    const auto again = ModelConfig::load(folder.path());
    EXPECT_EQ(again->stored_type, type);
    const auto loaded = load_hf_weights(folder.path(), *again);
    ASSERT_TRUE(loaded);
    const auto& wide = weights.tensors()[0].data;
    const auto& narrow = loaded->tensors()[0].data;
    for (std::size_t i = 0; i < wide.size(); ++i)
      EXPECT_EQ(narrow[i], type == WeightType::kBf16 ? bf16_to_f32(f32_to_bf16(wide[i]))
                                                     : f16_to_f32(f32_to_f16(wide[i])));
    // A second save changes nothing more.
    const TemporaryFolder second;
    ASSERT_TRUE(save_hf_folder(second.path(), *again, loaded->tensors(), {.stored_type = type}));
    EXPECT_EQ(troupe::testing::read_file(folder / "model.safetensors"),
              troupe::testing::read_file(second / "model.safetensors"));
  }
}

TEST(HfFolder, LoadsStories260KAndCopiesItsTokenizer) {
  const fs::path stories = troupe::testing::stories_folder();
  if (!fs::exists(stories)) GTEST_SKIP() << stories << " is not there";
  const auto config = ModelConfig::load(stories);
  ASSERT_TRUE(config) << config.error().message;
  const auto weights = load_hf_weights(stories, *config);
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_EQ(weights->element_count(), 260'032);
  const TemporaryFolder folder;
  ASSERT_TRUE(
      save_hf_folder(folder / "copy", *config, weights->tensors(), {.tokenizer_folder = stories}));
  EXPECT_THAT(names_in(folder / "copy"),
              ElementsAre("config.json", "generation_config.json", "model.safetensors",
                          "tokenizer.json", "tokenizer_config.json"));
  EXPECT_EQ(troupe::testing::read_file(folder / "copy/tokenizer.json"),
            troupe::testing::read_file(stories / "tokenizer.json"));
  const auto copy_config = ModelConfig::load(folder / "copy");
  EXPECT_EQ(*copy_config, *config);
  const auto again = load_hf_weights(folder / "copy", *copy_config);
  ASSERT_TRUE(again) << again.error().message;
  expect_same(again->tensors(), weights->tensors());
}

TEST(HfFolder, IgnoresATiedHeadAndOldRotaryBuffers) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny(ModelFamily::kLlama, true);
  const WeightSet weights = random_weights(config, 3);
  std::vector<TensorView> views;
  for (const NamedTensor& tensor : weights.tensors())
    views.push_back({tensor.name, TensorType::kF32, tensor.shape, std::as_bytes(tensor.data)});
  const std::vector<float> extra(240, 1.0F);
  views.push_back({"lm_head.weight", TensorType::kF32, {20, 12}, std::as_bytes(std::span(extra))});
  views.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq",
                   TensorType::kF32,
                   {3},
                   std::as_bytes(std::span(extra).first(3))});
  ASSERT_TRUE(write_safetensors(folder / "model.safetensors", views));
  const auto loaded = load_hf_weights(folder.path(), config);
  ASSERT_TRUE(loaded) << loaded.error().message;
  expect_same(loaded->tensors(), weights.tensors());
  ModelConfig untied = config;
  untied.tie_embeddings = false;
  EXPECT_TRUE(std::ranges::equal(
      load_hf_weights(folder.path(), untied)->find("lm_head.weight")->data, extra));
}

/// Saves a small sharded folder, lets `damage` change it, and returns the error of loading it.
Error error_after(const std::function<void(const fs::path&, json&)>& damage,
                  ModelConfig config = tiny(ModelFamily::kLlama, true)) {
  const TemporaryFolder folder;
  const ModelConfig saved_config = tiny(ModelFamily::kLlama, true);
  const WeightSet weights = random_weights(saved_config, 3);
  EXPECT_TRUE(
      save_hf_folder(folder.path(), saved_config, weights.tensors(), {.max_shard_bytes = 2500}));
  json index = json::parse(troupe::testing::read_file(folder / "model.safetensors.index.json"));
  damage(folder.path(), index);
  if (fs::exists(folder / "model.safetensors.index.json"))
    troupe::testing::write_file(folder / "model.safetensors.index.json", index.dump());
  const auto loaded = load_hf_weights(folder.path(), config);
  EXPECT_FALSE(loaded);
  return loaded ? Error{} : loaded.error();
}

const std::string kNorm = "model.norm.weight";

TEST(HfFolder, NamesEveryDisagreementOfIndexAndShards) {
  const Error missing_file = error_after([](const fs::path& folder, json&) {
    fs::remove(folder / "model-00001-of-00006.safetensors");
  });
  EXPECT_EQ(missing_file.code, ErrorCode::kNotFound);
  EXPECT_THAT(missing_file.message,
              AllOf(HasSubstr("model-00001-of-00006.safetensors"), HasSubstr("tensor model.")));

  const Error not_in_file = error_after([](const fs::path&, json& index) {
    index["weight_map"]["model.extra.weight"] = "model-00001-of-00006.safetensors";
  });
  EXPECT_EQ(not_in_file.code, ErrorCode::kCorrupt);
  EXPECT_THAT(not_in_file.message,
              AllOf(HasSubstr("model.extra.weight"), HasSubstr("is not in model-00001")));

  const Error not_in_index =
      error_after([](const fs::path&, json& index) { index["weight_map"].erase(kNorm); });
  EXPECT_EQ(not_in_index.code, ErrorCode::kCorrupt);
  EXPECT_THAT(not_in_index.message,
              AllOf(HasSubstr(kNorm), HasSubstr("is not in model.safetensors.index.json")));

  const Error wrong_file = error_after([](const fs::path&, json& index) {
    index["weight_map"][kNorm] = "model-00001-of-00006.safetensors";
  });
  EXPECT_THAT(wrong_file.message, AllOf(HasSubstr(kNorm), HasSubstr("model-00001")));

  const Error doubled = error_after([](const fs::path& folder, json&) {
    const auto last = SafetensorsFile::open(folder / "model-00006-of-00006.safetensors");
    std::vector<TensorView> views;
    for (const TensorEntry& entry : last->entries())
      views.push_back({entry.name, entry.type, entry.shape, last->bytes(entry)});
    const auto first = SafetensorsFile::open(folder / "model-00001-of-00006.safetensors");
    const TensorEntry& extra = first->entries()[0];
    views.push_back({extra.name, extra.type, extra.shape, first->bytes(extra)});
    EXPECT_TRUE(write_safetensors(folder / "model-00006-of-00006.safetensors", views));
  });
  EXPECT_THAT(doubled.message,
              AllOf(HasSubstr("model-00006"), HasSubstr("is also in model-00001")));
}

TEST(HfFolder, RefusesBrokenIndexFiles) {
  EXPECT_THAT(error_after([](const fs::path&, json& index) { index.erase("weight_map"); }).message,
              HasSubstr("weight_map"));
  EXPECT_THAT(error_after([](const fs::path&, json& index) {
                index["weight_map"] = json::object();
              }).message,
              HasSubstr("empty"));
  for (const json& file :
       {json(3), json("../model.safetensors"), json("/etc/passwd"), json(""), json("..")}) {
    const Error error =
        error_after([&](const fs::path&, json& index) { index["weight_map"][kNorm] = file; });
    EXPECT_EQ(error.code, ErrorCode::kCorrupt);
    EXPECT_THAT(error.message, AllOf(HasSubstr(kNorm), HasSubstr("is not a file name")));
  }
  EXPECT_THAT(error_after([](const fs::path& folder, json&) {
                fs::remove(folder / "model.safetensors.index.json");
              }).message,
              HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(error_after([](const fs::path& folder, json&) {
                fs::resize_file(folder / "model-00002-of-00006.safetensors", 2000);
              }).message,
              AllOf(HasSubstr("model-00002-of-00006"), HasSubstr("tensor ")));
}

TEST(HfFolder, NamesTensorsThatDoNotFitTheConfig) {
  ModelConfig config = tiny(ModelFamily::kLlama, true);
  config.vocab_size = 21;
  const Error shape = error_after([](const fs::path&, json&) {}, config);
  EXPECT_EQ(shape.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(shape.message, AllOf(HasSubstr("model.embed_tokens.weight"), HasSubstr("[20, 12]"),
                                   HasSubstr("[21, 12]")));

  config = tiny(ModelFamily::kLlama, true);
  config.layer_count = 1;
  EXPECT_THAT(error_after([](const fs::path&, json&) {}, config).message,
              AllOf(HasSubstr("model.layers.1."), HasSubstr("not part of")));
  config.layer_count = 3;
  EXPECT_THAT(error_after([](const fs::path&, json&) {}, config).message,
              AllOf(HasSubstr("model.layers.2."), HasSubstr("missing")));
  const Error biases = error_after([](const fs::path&, json&) {}, tiny(ModelFamily::kQwen2, true));
  EXPECT_EQ(biases.code, ErrorCode::kNotFound);
  EXPECT_THAT(biases.message, HasSubstr("model.layers.0.self_attn.q_proj.bias"));
}

TEST(HfFolder, RefusesWeightsOfTheWrongType) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny(ModelFamily::kLlama, true);
  const WeightSet weights = random_weights(config, 3);
  std::vector<TensorView> views;
  for (const NamedTensor& tensor : weights.tensors())
    views.push_back({tensor.name, TensorType::kF32, tensor.shape, std::as_bytes(tensor.data)});
  views.back().type = TensorType::kI32;
  ASSERT_TRUE(write_safetensors(folder / "model.safetensors", views));
  const auto loaded = load_hf_weights(folder.path(), config);
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message,
              AllOf(HasSubstr("model.safetensors: tensor model.norm.weight"), HasSubstr("I32")));
}

TEST(HfFolder, RefusesToSaveTensorsThatDoNotFitTheConfig) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny(ModelFamily::kLlama, true);
  const WeightSet weights = random_weights(config, 3);
  const auto refused = [&](const std::function<void(std::vector<NamedTensor>&)>& change) {
    std::vector<NamedTensor> tensors(weights.tensors().begin(), weights.tensors().end());
    change(tensors);
    const auto saved = save_hf_folder(folder / "out", config, tensors);
    EXPECT_FALSE(saved);
    EXPECT_FALSE(fs::exists(folder / "out"));
    return saved ? std::string() : saved.error().message;
  };
  EXPECT_THAT(refused([](auto& tensors) { tensors.pop_back(); }),
              AllOf(HasSubstr(kNorm), HasSubstr("missing")));
  EXPECT_THAT(refused([](auto& tensors) { tensors.push_back(tensors.back()); }),
              AllOf(HasSubstr(kNorm), HasSubstr("twice")));
  EXPECT_THAT(refused([](auto& tensors) {
                tensors.back().shape = {3, 4};
              }),
              AllOf(HasSubstr("[3, 4]"), HasSubstr("[12]")));
  EXPECT_THAT(refused([](auto& tensors) { tensors.back().data = tensors.back().data.first(3); }),
              HasSubstr("3 values"));
  EXPECT_THAT(refused([](auto& tensors) {
                tensors.push_back({"value_head.weight", {1}, tensors.back().data.first(1)});
              }),
              HasSubstr("value_head.weight"));
  EXPECT_THAT(save_hf_folder(folder / "out", config, weights.tensors(), {.max_shard_bytes = 0})
                  .error()
                  .message,
              HasSubstr("max_shard_bytes is 0"));
}

}  // namespace
}  // namespace troupe::actors
