// The layers under the engine: the KV cache keeps what it is given, packed weights give rows back
// and refuse wrong tensors, and the runner's logits match the double reference however the tokens
// of a sequence are cut into calls.

#include "actors/rollout/model_runner.hpp"

#include "runtime/base/check.hpp"
#include "tests/actors/rollout/engine_case.hpp"
#include "tests/support/reference_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace troupe::actors {
namespace {

TEST(KvCache, StoresEachHeadWhereAttentionReadsItAndCopiesWholeBlocks) {
  const ModelConfig config = tiny_config();
  KvCache cache(config, 3);
  EXPECT_EQ(cache.bytes().value, 3 * KvCache::floats_per_block(config) * 4);
  std::vector<float> key(10);
  std::vector<float> value(10);
  std::iota(key.begin(), key.end(), 1.0f);
  std::iota(value.begin(), value.end(), 101.0f);
  cache.store(1, 1, 2, 5, key.data(), value.data());
  cache.copy({.source = 2, .target = 0});
  for (const std::int64_t block : {2, 0}) {
    const float* head = cache.base(1, 1) + block * cache.block_stride();
    for (std::int64_t d = 0; d < 10; ++d) {
      EXPECT_EQ(head[d * kBlockTokens + 5], key[static_cast<std::size_t>(d)]);
      EXPECT_EQ(head[cache.values_offset() + 5 * padded(10) + d],
                value[static_cast<std::size_t>(d)]);
    }
  }
  const float* untouched = cache.base(0, 0) + cache.block_stride();
  EXPECT_TRUE(
      std::all_of(untouched, untouched + cache.block_stride(), [](float x) { return x == 0.0f; }));
  EXPECT_FALSE(KvCache().resident());
}

TEST(PackedWeights, GivesEmbeddingRowsBackTiedAndUntied) {
  for (const bool tied : {true, false}) {
    ModelConfig config = tiny_config();
    config.tie_embeddings = tied;
    const WeightSet weights = weights_for(config);
    const PackedWeights packed = PackedWeights::pack(config, weights.tensors()).value();
    const auto table = weights.find("model.embed_tokens.weight")->data;
    std::vector<float> row(40);
    for (const std::int32_t token : {0, 17, 60}) {
      packed.copy_embedding(token, row);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), table.begin() + token * 40)) << token;
    }
    EXPECT_GE(packed.bytes().value, config.parameter_count() * 4);
  }
}

TEST(PackedWeights, RefusesMissingAndUnexpectedTensors) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  EXPECT_FALSE(PackedWeights::pack(config, {}).has_value());
  EXPECT_FALSE(PackedWeights::pack(switched_config(ModelFamily::kQwen3), weights.tensors()));
}

/// Logits after the last of `tokens`, run in calls of `chunk` tokens.
std::vector<float> last_logits(const ModelConfig& config, const PackedWeights& weights,
                               std::span<const std::int32_t> tokens, std::size_t chunk) {
  ModelRunner runner(whole_model(config), {.rows = 128, .positions = 160, .logit_rows = 4},
                     kernel_table());
  KvCache cache(config, 10);
  const std::vector<std::int32_t> table = {7, 3, 9, 0, 1, 2, 4, 5};
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const auto part = tokens.subspan(begin, std::min(chunk, tokens.size() - begin));
    const RowRun run{.first_row = 0,
                     .rows = static_cast<std::int64_t>(part.size()),
                     .first_position = static_cast<std::int64_t>(begin),
                     .blocks = table.data()};
    const std::int32_t last = static_cast<std::int32_t>(part.size()) - 1;
    EXPECT_TRUE(runner.forward(weights, cache, part, {&run, 1}, {&last, 1}));
  }
  const float* logits = runner.logits(weights, 0, 1).value();
  return {logits, logits + config.vocab_size};
}

TEST(ModelRunner, MatchesTheReferenceAndKeepsItsBitsInEveryChunking) {
  for (const ModelConfig& config :
       {tiny_config(), switched_config(ModelFamily::kLlama), switched_config(ModelFamily::kQwen2),
        switched_config(ModelFamily::kQwen3)}) {
    const WeightSet weights = weights_for(config, 8);
    const PackedWeights packed = PackedWeights::pack(config, weights.tensors()).value();
    std::vector<std::int32_t> tokens;
    Rng rng(6);
    for (int i = 0; i < 100; ++i) tokens.push_back(static_cast<std::int32_t>(rng.below(61)));
    const auto wanted = troupe::testing::ReferenceModel(config, weights.tensors()).logits(tokens);
    const std::vector<float> whole = last_logits(config, packed, tokens, 100);
    for (std::size_t t = 0; t < whole.size(); ++t)
      EXPECT_NEAR(whole[t], wanted.row(99)[t], 1e-4) << "token " << t;
    for (const std::size_t chunk : {1u, 7u, 16u, 50u, 99u})
      EXPECT_EQ(bits_of(last_logits(config, packed, tokens, chunk)), bits_of(whole)) << chunk;
  }
}

TEST(ModelRunner, RefusesMoreRowsThanItHasRoomFor) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  const PackedWeights packed = PackedWeights::pack(config, weights.tensors()).value();
  ModelRunner runner(whole_model(config), {.rows = 4, .positions = 160, .logit_rows = 2},
                     kernel_table());
  KvCache cache(config, 1);
  const std::vector<std::int32_t> tokens(5, 1);
  EXPECT_THROW((void)runner.forward(packed, cache, tokens, {}, {}), CheckFailure);
  EXPECT_THROW((void)runner.logits(packed, 0, 3), CheckFailure);
}

}  // namespace
}  // namespace troupe::actors
