#pragma once

// Shared by the tensor-parallel tests: ranks as threads of this process, models that admit certain
// numbers of ranks, and engines of one rank each.
// **Threads:** `on_ranks` runs one thread per rank and joins them; what a rank writes is its own.

#include "runtime/comm/collective.hpp"
#include "tests/actors/rollout/engine_case.hpp"

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::actors {

/// Calls `run` on a thread per rank of a new group.
inline void on_ranks(int size, const std::function<void(runtime::Collective&)>& run) {
  auto group = runtime::make_local_group(size, {.name = "tp"});
  std::vector<std::thread> threads;
  for (auto& handle : group) threads.emplace_back([&run, &handle] { run(*handle); });
  for (std::thread& thread : threads) thread.join();
}

inline EngineOptions patient(EngineOptions options = {}) {
  options.tp_timeout = std::chrono::seconds(20);
  return options;
}

inline std::unique_ptr<RolloutEngine> rank_engine(const ModelConfig& config,
                                                  const WeightSet& weights, runtime::Collective& tp,
                                                  EngineOptions options = patient()) {
  auto engine = RolloutEngine::create(config, std::move(options), &tp);
  TROUPE_CHECK(engine.has_value(), "{}", engine.error().to_string());
  const auto loaded = (*engine)->load_weights(weights.tensors(), WeightVersion{1});
  TROUPE_CHECK(loaded.has_value(), "{}", loaded.error().to_string());
  return std::move(*engine);
}

/// Results of all ranks, by rank.
inline std::vector<std::vector<GeneratedSequence>> generate_on_ranks(
    int size, const ModelConfig& config, const WeightSet& weights,
    const std::vector<GenerateRequest>& requests, const EngineOptions& options = patient()) {
  std::vector<std::vector<GeneratedSequence>> results(static_cast<std::size_t>(size));
  on_ranks(size, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, weights, tp, options);
    results[static_cast<std::size_t>(tp.rank())] = generate_all(*engine, requests);
  });
  return results;
}

struct TpModel {
  std::string name;
  ModelConfig config;
  std::vector<int> sizes;
};

/// Grouped heads, fewer kv heads than ranks, tied and untied, biases, qk-norm, odd vocabularies.
inline std::vector<TpModel> tp_models() {
  ModelConfig wide = tiny_config();  // 8 ranks share 2 kv heads; 131 tokens are padded to 192
  wide.head_count = 8;
  wide.head_dim = 6;
  wide.intermediate_size = 72;
  wide.vocab_size = 131;
  ModelConfig single = wide;  // one kv head for all, and ranks that hold no token at all
  single.kv_head_count = 1;
  single.vocab_size = 21;
  single.tie_embeddings = false;
  ModelConfig many = wide;  // as many kv heads as query heads
  many.kv_head_count = 8;
  many.family = ModelFamily::kQwen3;
  many.qk_norm = true;
  ModelConfig uneven = wide;  // 18, 17 and 17 mlp columns; 64, 64 and 22 tokens
  uneven.head_count = 6;
  uneven.kv_head_count = 3;
  uneven.intermediate_size = 52;
  uneven.vocab_size = 150;
  return {{"tied", tiny_config(), {2, 4}},
          {"uneven", uneven, {3}},
          {"llama", switched_config(ModelFamily::kLlama), {2, 4}},
          {"qwen2", switched_config(ModelFamily::kQwen2), {2, 4}},
          {"qwen3", switched_config(ModelFamily::kQwen3), {2, 4}},
          {"wide", wide, {4, 8}},
          {"single kv head", single, {2, 8}},
          {"no grouping", many, {2, 8}}};
}

/// Same tokens and ends; log-probs within `tolerance`.
inline void expect_close(const GeneratedSequence& a, const GeneratedSequence& b, double tolerance,
                         const std::string& place) {
  SCOPED_TRACE(place);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.reason, b.reason);
  ASSERT_EQ(a.log_probs.size(), b.log_probs.size());
  for (std::size_t i = 0; i < a.log_probs.size(); ++i) {
    EXPECT_NEAR(a.log_probs[i], b.log_probs[i], tolerance) << "token " << i;
    EXPECT_NEAR(a.full_log_probs[i], b.full_log_probs[i], tolerance) << "token " << i;
  }
}

template <class T>
void expect_error(const result<T>& outcome, ErrorCode code, const std::vector<std::string>& parts) {
  ASSERT_FALSE(outcome.has_value()) << parts.front();
  EXPECT_EQ(outcome.error().code, code) << outcome.error().to_report();
  for (const std::string& part : parts)
    EXPECT_NE(outcome.error().to_report().find(part), std::string::npos)
        << "wanted \"" << part << "\" in: " << outcome.error().to_report();
}

}  // namespace troupe::actors
