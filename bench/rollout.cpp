// What the rollout engine gains by batching and by sharing prompts, one thread, f32, random
// weights.
//
// 1. Continuous batching: 32 sequences of 8 to 40 tokens at the SmolLM2-135M shape, all submitted
//    at once, against the same requests one at a time. Bar: 3×.
// 2. One prefill per group, G = 8, prompts as long as answers: the prefill part, i.e. the time
//    until every sample has its first two tokens (prefill, fork, one decode step), with one prefill
//    per group against one per sample. Bar: 3×. The gain over whole runs is printed beside it; it
//    cannot exceed (8P + 8A) / (P + 8A) = 1.8 for P = A unless a prompt token costs more than an
//    answer's.
// 3. Tokens per second of processor time of two small models, for information: stories260K's shape,
//    and a 1M-parameter shape as in `./run` (groups of 8, prompts 20, answers 16).
// `--check` fails when a bar is missed.

#include "actors/rollout/rollout_engine.hpp"
#include "bench/rough_weights.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;

struct Shape {
  std::int64_t layers, hidden, heads, kv_heads, head_dim, mlp, vocab;
};
constexpr Shape kSmol{30, 576, 9, 3, 64, 1536, 49152};
constexpr Shape kStories{5, 64, 8, 4, 8, 172, 512};
constexpr Shape kSmall{4, 128, 4, 4, 32, 512, 300};

ModelConfig config_of(const Shape& shape) {
  ModelConfig config;
  config.layer_count = shape.layers;
  config.hidden_size = shape.hidden;
  config.head_count = shape.heads;
  config.kv_head_count = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.intermediate_size = shape.mlp;
  config.vocab_size = shape.vocab;
  config.positions_max = 512;
  config.tie_embeddings = true;
  return config;
}

std::unique_ptr<RolloutEngine> engine_of(const Shape& shape, EngineOptions options) {
  const ModelConfig config = config_of(shape);
  const WeightSet weights = bench::rough_weights(config);
  auto engine = std::move(RolloutEngine::create(config, std::move(options)).value());
  TROUPE_CHECK(engine->load_weights(weights.tensors(), WeightVersion{0}).has_value(),
               "bench: weights refused");
  return engine;
}

struct Load {
  std::int64_t groups;
  std::uint32_t group_size;
  std::int64_t prompt_tokens;
  std::int32_t answer_min;
  std::int32_t answer_max;
};

std::vector<GenerateRequest> requests_of(const Load& load, std::int64_t vocab) {
  Rng rng(3);
  std::vector<GenerateRequest> requests;
  for (std::int64_t i = 0; i < load.groups; ++i) {
    GenerateRequest request;
    request.prompt_id = static_cast<std::uint64_t>(i);
    request.sample_indices.resize(load.group_size);
    std::iota(request.sample_indices.begin(), request.sample_indices.end(), 0u);
    for (std::int64_t t = 0; t < load.prompt_tokens; ++t)
      request.prompt.push_back(
          static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
    const auto spread = static_cast<std::uint64_t>(load.answer_max - load.answer_min + 1);
    request.sampling.max_new_tokens =
        load.answer_min + static_cast<std::int32_t>(rng.below(spread));
    requests.push_back(request);
  }
  return requests;
}

/// Seconds to generate all requests.
double run(RolloutEngine& engine, const std::vector<GenerateRequest>& requests) {
  const auto begin = std::chrono::steady_clock::now();
  TROUPE_CHECK(engine.generate(requests).has_value(), "bench: generate failed");
  return seconds(std::chrono::steady_clock::now() - begin);
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

bool continuous_batching() {
  const auto requests = requests_of({32, 1, 16, 8, 40}, kSmol.vocab);
  auto one = engine_of(kSmol, EngineOptions{.max_num_seqs = 1});
  auto many = engine_of(kSmol, EngineOptions{.max_num_seqs = 32});
  const double batched_s = std::min(run(*many, requests), run(*many, requests));
  const double single_s = run(*one, requests);
  const auto tokens = static_cast<double>(one->stats().tokens_generated);
  fmt::print(
      "continuous batching, 135M shape, 32 sequences of 8 to 40 tokens: {:.1f} tok/s, "
      "one by one {:.1f} tok/s: {:.1f}x (bar 3)\n",
      tokens / batched_s, tokens / single_s, single_s / batched_s);
  return single_s / batched_s >= 3.0;
}

bool shared_prefill() {
  auto shared = engine_of(kSmol, EngineOptions{.max_num_seqs = 32});
  auto apart = engine_of(kSmol, EngineOptions{.max_num_seqs = 32, .share_prompt = false});
  const auto prefill = requests_of({4, 8, 64, 2, 2}, kSmol.vocab);
  const double shared_s = std::min(run(*shared, prefill), run(*shared, prefill));
  const double apart_s = std::min(run(*apart, prefill), run(*apart, prefill));
  const auto whole = requests_of({4, 8, 64, 64, 64}, kSmol.vocab);
  const double whole_shared_s = run(*shared, whole);
  const double whole_apart_s = run(*apart, whole);
  fmt::print(
      "one prefill per group, 135M shape, 4 groups, G = 8, prompt 64 = answer 64:\n"
      "  prefill part {:.0f} ms, one per sample {:.0f} ms: {:.1f}x (bar 3)\n"
      "  whole run {:.2f} s, one per sample {:.2f} s: {:.2f}x\n",
      shared_s * 1e3, apart_s * 1e3, apart_s / shared_s, whole_shared_s, whole_apart_s,
      whole_apart_s / whole_shared_s);
  return apart_s / shared_s >= 3.0;
}

void small_model(const char* name, const Shape& shape, const Load& load, std::int32_t batch) {
  auto engine = engine_of(shape, EngineOptions{.max_num_seqs = batch});
  const auto requests = requests_of(load, shape.vocab);
  double best = 1e9;
  RolloutStats stats;
  for (int i = 0; i < 5; ++i) {
    engine->reset_stats();
    const double begin = cpu_seconds();
    run(*engine, requests);
    const double took = cpu_seconds() - begin;
    if (took >= best) continue;
    best = took;
    stats = engine->stats();
  }
  fmt::print(
      "{}: {} sequences, {} at a time, prompt {}, answer {}: {:.0f} tok/s generated; of the "
      "time GEMM {:.0f} %, attention {:.0f} %, sampling {:.0f} %, steps {}\n",
      name, load.groups * load.group_size, batch, load.prompt_tokens, load.answer_max,
      static_cast<double>(stats.tokens_generated) / best, stats.gemm_s / stats.step_s * 100,
      stats.attention_s / stats.step_s * 100, stats.sample_s / stats.step_s * 100, stats.steps);
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::string_view(argv[1]) == "--check";
  small_model("stories260K shape", kStories, {1, 1, 1, 200, 200}, 1);
  for (const std::int32_t batch : {16, 64, 256}) {
    small_model("stories260K shape", kStories, {64, 8, 20, 100, 100}, batch);
    small_model("1M shape (4 layers, hidden 128, vocab 300)", kSmall, {64, 8, 20, 16, 16}, batch);
  }
  const bool batching = continuous_batching();
  const bool prefill = shared_prefill();
  fmt::print("bars reached: {}\n", batching && prefill ? "yes" : "NO");
  return check && !(batching && prefill) ? 1 : 0;
}
