// Proves what becomes of a GGUF file: weights written by llama.cpp's own package come back under
// their Hugging Face names (rows of q and k put back), config and tokenizer load as Troupe reads
// them, and what the decoder would compute wrongly in silence is one error that names the key.

#include "actors/model/gguf_model.hpp"

#include "actors/model/hf_folder.hpp"
#include "actors/text/chat_template.hpp"
#include "actors/text/tokenizer.hpp"
#include "tests/support/gguf_image.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using troupe::testing::GgufImage;
using troupe::testing::image_bytes;
using troupe::testing::TemporaryFolder;

fs::path fixture(const std::string& name) {
  return fs::path(TROUPE_SOURCE_DIR) / "tests/actors/model/fixtures" / name;
}

std::string hex_of(std::span<const float> values) {
  std::string text;
  for (const std::byte byte : std::as_bytes(values))
    text += fmt::format("{:02x}", static_cast<unsigned int>(byte));
  return text;
}

class TinyGguf : public ::testing::TestWithParam<const char*> {};

TEST_P(TinyGguf, BecomesTheFolderThatItWasMadeFrom) {
  const TemporaryFolder folder;
  const auto done = convert_gguf(fixture(std::string(GetParam()) + ".gguf"), folder.path());
  ASSERT_TRUE(done) << done.error().message;
  const auto config = ModelConfig::load(folder.path());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(*config, done->config);
  const auto weights = load_hf_weights(folder.path(), *config);
  ASSERT_TRUE(weights) << weights.error().message;
  const auto golden =
      nlohmann::json::parse(troupe::testing::read_file(fixture(std::string(GetParam()) + ".json")));
  EXPECT_EQ(golden.size(), weights->tensors().size());
  EXPECT_EQ(done->tensors, golden.size());
  for (const NamedTensor& tensor : weights->tensors()) {
    ASSERT_TRUE(golden.contains(tensor.name)) << tensor.name;
    EXPECT_EQ(golden[tensor.name].at("shape"), nlohmann::json(tensor.shape)) << tensor.name;
    // The fixture holds the first values of large tensors.
    const auto hex = golden[tensor.name].at("values").get<std::string>();
    EXPECT_EQ(hex_of(tensor.data.first(hex.size() / 8)), hex) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TinyGguf, ::testing::Values("tiny_llama", "tiny_qwen3"),
                         [](const auto& name) { return std::string(name.param); });

TEST(GgufModel, ReadsTheConfigOfLlama) {
  const auto file = GgufFile::open(fixture("tiny_llama.gguf"));
  ASSERT_TRUE(file) << file.error().message;
  const auto config = gguf_config(*file);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->family, ModelFamily::kLlama);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->kv_head_count, 2);
  EXPECT_EQ(config->vocab_size, 288);
  EXPECT_EQ(config->positions_max, 128);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_EQ(config->rope.theta, 100000.0);
  EXPECT_TRUE(config->tie_embeddings);
  EXPECT_EQ(config->bos_id, 1);
  EXPECT_EQ(config->pad_id, 0);
  EXPECT_THAT(config->stop_ids, ElementsAre(2));
}

TEST(GgufModel, ReadsTheConfigOfQwen3) {
  const auto file = GgufFile::open(fixture("tiny_qwen3.gguf"));
  ASSERT_TRUE(file) << file.error().message;
  const auto config = gguf_config(*file);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->family, ModelFamily::kQwen3);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->tie_embeddings);
  EXPECT_EQ(config->q_size(), 64);
  EXPECT_EQ(config->hidden_size, 32);
}

TEST(GgufModel, WritesATokenizerThatReadsTextAsTheFamilyDoes) {
  const TemporaryFolder folder;
  for (const std::string name : {"tiny_llama", "tiny_qwen3"}) {
    ASSERT_TRUE(convert_gguf(fixture(name + ".gguf"), folder.path()));
    const auto tokenizer = Tokenizer::load(folder.path());
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const auto id = [&](std::string_view token) { return tokenizer->token_id(token).value(); };
    EXPECT_THAT(tokenizer->encode("in the"), ElementsAre(id("in"), id("Ġthe"))) << name;
    // Both split digits; `1 2` is a merge.
    EXPECT_THAT(tokenizer->encode("12"), ElementsAre(id("1"), id("2"))) << name;
    const std::string text = "12 naïve café\r\n\t日本 in and the <|im_end|>";
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name;
    // Only trusted text holds special tokens.
    EXPECT_GT(tokenizer->encode("<|im_end|>").size(), 1U);
    EXPECT_THAT(tokenizer->encode("<|im_end|>", {.trusted = true}), ElementsAre(id("<|im_end|>")));
    EXPECT_EQ(tokenizer->eos_id(), id("<|im_end|>"));
    EXPECT_TRUE(tokenizer->is_special(id("<|im_end|>")));
    const auto chat = ChatTemplate::pick(*tokenizer);
    ASSERT_TRUE(chat) << chat.error().message;
    EXPECT_EQ(chat->style(), ChatStyle::kChatMl);
    if (name == "tiny_llama") continue;
    EXPECT_FALSE(tokenizer->is_special(id("<think>")));
    EXPECT_THAT(tokenizer->encode("<think>", {.trusted = true}), ElementsAre(id("<think>")));
    // NFC comes first.
    EXPECT_EQ(tokenizer->encode("e\u0301"), tokenizer->encode("é"));
    EXPECT_FALSE(tokenizer->token_id("[PAD270]")) << "unused rows are no tokens";
  }
}

TEST(GgufModel, StoresNarrowWeightsWhenAsked) {
  const TemporaryFolder folder;
  const auto done =
      convert_gguf(fixture("tiny_llama.gguf"), folder.path(), {.stored_type = WeightType::kBf16});
  ASSERT_TRUE(done) << done.error().message;
  const auto config = ModelConfig::load(folder.path());
  ASSERT_TRUE(config);
  EXPECT_EQ(config->stored_type, WeightType::kBf16);
  EXPECT_TRUE(load_hf_weights(folder.path(), *config));
  EXPECT_LT(fs::file_size(folder / "model.safetensors"), 2 * done->config.parameter_count() + 4096);
}

/// A model of one layer of width 4, two heads, and 4 tokens.
GgufImage tiny(const std::string& family) {
  GgufImage image;
  image.set("general.architecture", family);
  const auto key = [&family](const char* name) { return family + "." + name; };
  image.set(key("embedding_length"), 4U).set(key("block_count"), 1U);
  image.set(key("feed_forward_length"), 6U).set(key("attention.head_count"), 2U);
  image.set(key("attention.layer_norm_rms_epsilon"), 1e-6F).set(key("context_length"), 64U);
  image.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2");
  image.set_list<std::string>("tokenizer.ggml.tokens", {"a", "b", "ab", "<e>"});
  image.set_list<std::string>("tokenizer.ggml.merges", {"a b"});
  image.set_list<std::int32_t>("tokenizer.ggml.token_type", {1, 1, 1, 3});
  image.set("tokenizer.ggml.eos_token_id", 3U);
  image.add_f32("token_embd.weight", {4, 4}, 0.5F).add_f32("output_norm.weight", {4}, 1);
  for (const char* name : {"attn_norm", "ffn_norm"})
    image.add_f32(fmt::format("blk.0.{}.weight", name), {4}, 1);
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"})
    image.add_f32(fmt::format("blk.0.{}.weight", name), {4, 4}, 0.25F);
  for (const char* name : {"ffn_gate", "ffn_up"})
    image.add_f32(fmt::format("blk.0.{}.weight", name), {6, 4}, 0.25F);
  return image.add_f32("blk.0.ffn_down.weight", {4, 6}, 0.25F);
}

struct Opened {
  std::string bytes;
  result<GgufFile> file;
  explicit Opened(const GgufImage& image)
      : bytes(image.bytes()), file(GgufFile::of_image(image_bytes(bytes), "m.gguf")) {}
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

TEST(GgufModel, FindsBiasesByTheirTensors) {
  GgufImage image = tiny("qwen2");
  for (const char* name : {"attn_q", "attn_k", "attn_v"})
    image.add_f32(fmt::format("blk.0.{}.bias", name), {4}, 2);
  const Opened opened(image);
  ASSERT_TRUE(opened.file) << opened.file.error().message;
  const auto config = gguf_config(*opened.file);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_TRUE(config->qkv_bias);
  const auto weights = gguf_weights(*opened.file, *config);
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_THAT(weights->find("model.layers.0.self_attn.k_proj.bias")->data, ElementsAre(2, 2, 2, 2));
}

/// The table that llama.cpp writes for Llama 3.1: divisors of the frequencies.
std::vector<float> llama3_divisors(std::size_t half, double theta, double factor) {
  std::vector<float> divisors;
  for (std::size_t i = 0; i < half; ++i) {
    const double wavelength =
        2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / static_cast<double>(half));
    const double smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0);
    double divisor = 1 / ((1 - smooth) / factor + smooth);
    if (wavelength < 8192 / 4.0) divisor = 1;
    if (wavelength > 8192 / 1.0) divisor = factor;
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

TEST(GgufModel, ReadsTheScalingOfLlama3FromItsTable) {
  GgufImage image = tiny("llama");
  // Eight pairs: some wavelengths below 2048, between, and above 8192.
  image.set("llama.rope.freq_base", 500000.0F).set("llama.attention.key_length", 16U);
  image.set("llama.attention.value_length", 16U);
  std::string data;
  for (const float divisor : llama3_divisors(8, 500000, 8)) data += troupe::testing::raw(divisor);
  image.add({"rope_freqs.weight", {8}, 0, data});
  {
    const Opened opened(image);
    ASSERT_TRUE(opened.file) << opened.file.error().message;
    const auto config = gguf_config(*opened.file);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->rope.kind, RopeKind::kLlama3);
    EXPECT_EQ(config->rope.factor, 8);
  }
  image.tensor("rope_freqs.weight").data.replace(16, 4, troupe::testing::raw(1.7F));
  const Opened opened(image);
  const auto config = gguf_config(*opened.file);
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(config.error().message, HasSubstr("rope_freqs.weight: element 4 is 1.7"));
}

TEST(GgufModel, TakesTheFileThatTheRefusedOnesDifferFrom) {
  const TemporaryFolder folder;
  troupe::testing::write_file(folder / "m.gguf", tiny("llama").bytes());
  const auto done = convert_gguf(folder / "m.gguf", folder / "out");
  ASSERT_TRUE(done) << done.error().message;
}

struct Refusal {
  const char* name;
  std::function<void(GgufImage&)> change;
  ErrorCode code;
  std::vector<const char*> says;
};

class RefusedGguf : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedGguf, NamesFileKeyAndBothValues) {
  const TemporaryFolder folder;
  GgufImage image = tiny("llama");
  GetParam().change(image);
  troupe::testing::write_file(folder / "m.gguf", image.bytes());
  const auto done = convert_gguf(folder / "m.gguf", folder / "out");
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, GetParam().code) << done.error().message;
  EXPECT_THAT(done.error().message, HasSubstr("m.gguf"));
  for (const char* part : GetParam().says) EXPECT_THAT(done.error().message, HasSubstr(part));
  EXPECT_FALSE(fs::exists(folder / "out")) << "nothing is written";
}

constexpr auto kBad = ErrorCode::kCorrupt;
constexpr auto kForeign = ErrorCode::kUnsupported;
constexpr auto kAbsent = ErrorCode::kNotFound;
using Image = GgufImage;
INSTANTIATE_TEST_SUITE_P(
    Metadata, RefusedGguf,
    ::testing::Values(Refusal{"architecture",
                              [](Image& m) { m.set("general.architecture", "gemma"); },
                              kForeign,
                              {"general.architecture gemma", "llama, qwen2, qwen3"}},
                      Refusal{"no_architecture",
                              [](Image& m) { m.erase("general.architecture"); },
                              kAbsent,
                              {"key general.architecture is missing"}},
                      Refusal{"no_width",
                              [](Image& m) { m.erase("llama.embedding_length"); },
                              kAbsent,
                              {"key llama.embedding_length is missing"}},
                      Refusal{"split",
                              [](Image& m) { m.set("split.count", std::uint16_t{3}); },
                              kForeign,
                              {"split.count is 3"}},
                      Refusal{"experts",
                              [](Image& m) { m.set("llama.expert_count", 8U); },
                              kForeign,
                              {"llama.expert_count is 8"}},
                      Refusal{"window",
                              [](Image& m) { m.set("llama.attention.sliding_window", 4096U); },
                              kForeign,
                              {"sliding_window is 4096"}},
                      Refusal{"scale",
                              [](Image& m) { m.set("llama.attention.scale", 0.5F); },
                              kForeign,
                              {"llama.attention.scale is set"}},
                      Refusal{"encoder",
                              [](Image& m) { m.set("llama.attention.causal", false); },
                              kForeign,
                              {"causal is false"}},
                      Refusal{"layers_differ",
                              [](Image& m) {
                                m.set_list<std::int32_t>("llama.attention.head_count", {2, 1});
                              },
                              kForeign,
                              {"head_count is a list of 2", "one number for all layers"}},
                      Refusal{"partial_rope",
                              [](Image& m) { m.set("llama.rope.dimension_count", 1U); },
                              kForeign,
                              {"rope.dimension_count is 1", "head size 2"}},
                      Refusal{"value_length",
                              [](Image& m) { m.set("llama.attention.value_length", 4U); },
                              kForeign,
                              {"value_length is 4"}},
                      Refusal{"yarn",
                              [](Image& m) { m.set("llama.rope.scaling.type", "yarn"); },
                              kForeign,
                              {"yarn", "linear"}},
                      Refusal{"vocab_size",
                              [](Image& m) { m.set("llama.vocab_size", 5U); },
                              ErrorCode::kConflict,
                              {"llama.vocab_size is 5", "4 rows"}},
                      Refusal{"heads",
                              [](Image& m) { m.set("llama.attention.head_count_kv", 3U); },
                              ErrorCode::kInvalidArgument,
                              {"num_attention_heads 2", "num_key_value_heads 3"}},
                      Refusal{"eos",
                              [](Image& m) { m.set("tokenizer.ggml.eos_token_id", 4U); },
                              kBad,
                              {"eos_token_id is 4", "4 tokens"}},
                      Refusal{"o_bias_alone",
                              [](Image& m) { m.add_f32("blk.0.attn_output.bias", {4}, 0); },
                              kForeign,
                              {"o_bias true"}}),
    [](const auto& kind) { return kind.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Vocabulary, RefusedGguf,
    ::testing::Values(
        Refusal{"model",
                [](Image& m) { m.set("tokenizer.ggml.model", "llama"); },
                kForeign,
                {"tokenizer.ggml.model llama", "gpt2"}},
        Refusal{"pre",
                [](Image& m) { m.set("tokenizer.ggml.pre", "falcon"); },
                kForeign,
                {"tokenizer.ggml.pre falcon", "smollm, qwen2, llama-bpe"}},
        Refusal{"twice",
                [](Image& m) {
                  m.set_list<std::string>("tokenizer.ggml.tokens", {"a", "b", "a", "<e>"});
                },
                kBad,
                {"tokens 0 and 2 are both a"}},
        Refusal{"no_utf8",
                [](Image& m) {
                  m.set_list<std::string>("tokenizer.ggml.tokens", {"a", "b", "\xff", "<e>"});
                },
                kBad,
                {"token 2 of 1 bytes"}},
        Refusal{"merge",
                [](Image& m) { m.set_list<std::string>("tokenizer.ggml.merges", {"a c"}); },
                kBad,
                {"merges: item 0: token c is not in vocab"}},
        Refusal{"merge_form",
                [](Image& m) { m.set_list<std::string>("tokenizer.ggml.merges", {"ab"}); },
                kBad,
                {"merges: item 0"}},
        Refusal{"merge_no_utf8",
                [](Image& m) { m.set_list<std::string>("tokenizer.ggml.merges", {"\xff b"}); },
                kBad,
                {"merge 0 is not UTF-8"}},
        Refusal{"kinds",
                [](Image& m) {
                  m.set_list<std::int32_t>("tokenizer.ggml.token_type", {1, 1});
                },
                kBad,
                {"token_type has 2 items for 4 tokens"}},
        Refusal{"kind_7",
                [](Image& m) {
                  m.set_list<std::int32_t>("tokenizer.ggml.token_type", {1, 1, 7, 3});
                },
                kBad,
                {"token 2 has type 7, wanted 1 to 6"}},
        Refusal{"unused_pad",
                [](Image& m) {
                  m.set_list<std::int32_t>("tokenizer.ggml.token_type", {1, 1, 1, 5});
                },
                kBad,
                {"the eos token has id 3"}},
        Refusal{"bos",
                [](Image& m) { m.set("tokenizer.ggml.add_bos_token", true); },
                kBad,
                {"begin token"}},
        Refusal{"prefix",
                [](Image& m) { m.set("tokenizer.ggml.add_space_prefix", true); },
                kForeign,
                {"add_space_prefix is true"}},
        Refusal{"more_tokens",
                [](Image& m) {
                  m.set_list<std::string>("tokenizer.ggml.tokens", {"a", "b", "ab", "<e>", "c"});
                  m.set_list<std::int32_t>("tokenizer.ggml.token_type", {1, 1, 1, 3, 1});
                },
                ErrorCode::kConflict,
                {"5 tokens", "4 rows"}}),
    [](const auto& kind) { return kind.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Weights, RefusedGguf,
    ::testing::Values(Refusal{"missing",
                              [](Image& m) { m.erase_tensor("blk.0.ffn_up.weight"); },
                              kAbsent,
                              {"tensor blk.0.ffn_up.weight: is missing, wanted with shape [6, 4]"}},
                      Refusal{"unexpected",
                              [](Image& m) {
                                m.add_f32("blk.1.ffn_up.weight", {6, 4}, 0);
                              },
                              kForeign,
                              {"tensor blk.1.ffn_up.weight: shape [6, 4] is not part"}},
                      Refusal{"shape",
                              [](Image& m) { m.set("llama.feed_forward_length", 5U); },
                              ErrorCode::kInvalidArgument,
                              {"has shape [6, 4], but [5, 4] is wanted"}},
                      Refusal{"no_embedding",
                              [](Image& m) { m.erase_tensor("token_embd.weight"); },
                              kAbsent,
                              {"tensor token_embd.weight"}},
                      Refusal{"rope_table",
                              [](Image& m) { m.add_f32("rope_freqs.weight", {3}, 1); },
                              kBad,
                              {"rope_freqs.weight: has shape [3], but [1] is wanted"}},
                      Refusal{"rope_table_0",
                              [](Image& m) { m.add_f32("rope_freqs.weight", {1}, 0); },
                              ErrorCode::kInvalidArgument,
                              {"rope factor is 0, must be positive"}}),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace troupe::actors
