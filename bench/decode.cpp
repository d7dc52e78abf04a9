// Decode speed at a 135M-parameter shape (SmolLM2-135M: 30 layers, hidden 576, 9/3 heads of 64,
// mlp 1536, vocabulary 49152; random weights), one thread, f32.
//
// For each batch size, in alternation: one engine step (schedule, embed, layers, head, sample) and
// its bare kernels (the same GEMMs and paged attention over the same context, nothing else). Prints
// the best of both and their ratio. `--check` fails when bare / step < 0.6 anywhere.

#include "actors/rollout/kv_cache.hpp"
#include "actors/rollout/packed_weights.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "bench/rough_weights.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;

constexpr std::int64_t kContext = 128;  // prompt tokens of each sequence

ModelConfig smol_config() {
  ModelConfig config;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.layer_count = 30;
  config.head_count = 9;
  config.kv_head_count = 3;
  config.head_dim = 64;
  config.vocab_size = 49152;
  config.positions_max = 512;
  config.rms_norm_eps = 1e-5;
  config.tie_embeddings = true;
  return config;
}

/// The GEMMs and the attention of one decode step, and nothing else.
class BareStep {
 public:
  BareStep(const ModelConfig& config, const PackedWeights& weights, std::int64_t batch)
      : config_(config),
        weights_(&weights),
        batch_(batch),
        blocks_per_sequence_(blocks_for_tokens(kContext + 64)),
        cache_(config, batch * blocks_per_sequence_),
        hidden_(batch * padded(config.hidden_size)),
        qkv_(batch * padded(config.q_size() + 2 * config.kv_size())),
        attended_(batch * padded(config.q_size())),
        gate_up_(batch * 2 * padded(config.intermediate_size)),
        logits_(batch * padded(config.vocab_size)),
        scratch_(attention_scratch_floats(config.head_count / config.kv_head_count, config.head_dim,
                                          kContext + 64)) {
    for (std::int64_t b = 0; b < batch * blocks_per_sequence_; ++b)
      table_.push_back(static_cast<std::int32_t>(b));
    const std::vector<float> ones(static_cast<std::size_t>(config.head_dim), 0.01f);
    for (std::int64_t layer = 0; layer < config.layer_count; ++layer)
      for (std::int64_t head = 0; head < config.kv_head_count; ++head)
        for (const std::int32_t block : table_)
          for (std::int64_t slot = 0; slot < kBlockTokens; ++slot)
            cache_.store(layer, head, block, slot, ones.data(), ones.data());
  }
  void run(std::int64_t keys) {
    const std::int64_t hidden = padded(config_.hidden_size);
    const std::int64_t qkv = padded(config_.q_size() + 2 * config_.kv_size());
    const std::int64_t attended = padded(config_.q_size());
    const std::int64_t mlp = 2 * padded(config_.intermediate_size);
    for (std::size_t i = 0; i < weights_->layers().size(); ++i) {
      const PackedLayer& layer = weights_->layers()[i];
      multiply(hidden_, hidden, layer.qkv, qkv_, qkv);
      attend(static_cast<std::int64_t>(i), keys, qkv, attended);
      multiply(attended_, attended, layer.o, hidden_, hidden);
      multiply(hidden_, hidden, layer.gate_up, gate_up_, mlp);
      multiply(gate_up_, mlp, layer.down, hidden_, hidden);
    }
    multiply(hidden_, hidden, weights_->head(), logits_, padded(config_.vocab_size));
  }

 private:
  void multiply(const AlignedBuffer& in, std::int64_t in_stride, const PackedMatrix& weight,
                AlignedBuffer& out, std::int64_t out_stride) {
    packed_gemm(kernel_table(), in.data(), in_stride, batch_, weight, out.data(), out_stride);
  }
  void attend(std::int64_t layer, std::int64_t keys, std::int64_t qkv, std::int64_t attended) {
    const std::int64_t heads = config_.head_count / config_.kv_head_count;
    for (std::int64_t row = 0; row < batch_; ++row)
      for (std::int64_t head = 0; head < config_.kv_head_count; ++head)
        kernel_table().attention(AttentionCall{
            .query = qkv_.data() + row * qkv + head * heads * config_.head_dim,
            .query_stride = qkv,
            .output = attended_.data() + row * attended + head * heads * config_.head_dim,
            .output_stride = attended,
            .queries = 1,
            .heads = heads,
            .head_dim = config_.head_dim,
            .first_keys = keys,
            .cache = cache_.base(layer, head),
            .values_offset = cache_.values_offset(),
            .block_stride = cache_.block_stride(),
            .blocks = table_.data() + row * blocks_per_sequence_,
            .scratch = scratch_.data()});
  }
  ModelConfig config_;
  const PackedWeights* weights_;
  std::int64_t batch_;
  std::int64_t blocks_per_sequence_;
  KvCache cache_;
  std::vector<std::int32_t> table_;
  AlignedBuffer hidden_, qkv_, attended_, gate_up_, logits_, scratch_;
};

template <class F>
double timed(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return seconds(std::chrono::steady_clock::now() - begin);
}

/// Fills the engine with `batch` sequences that are past their prompt.
void start_sequences(RolloutEngine& engine, std::int64_t batch) {
  for (std::int64_t i = 0; i < batch; ++i) {
    GenerateRequest request;
    request.prompt_id = static_cast<std::uint64_t>(i);
    for (std::int64_t t = 0; t < kContext; ++t)
      request.prompt.push_back(static_cast<std::int32_t>((i * 7919 + t * 104729) % 49152));
    request.sampling.max_new_tokens = 200;
    TROUPE_CHECK(engine.submit(request).has_value(), "bench: refused");
  }
  while (engine.stats().tokens_generated < 2 * batch)
    TROUPE_CHECK(engine.step().has_value(), "bench: step failed");
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::string_view(argv[1]) == "--check";
  const ModelConfig config = smol_config();
  PackedWeights bare_weights;
  EngineOptions options;
  options.max_num_seqs = 32;
  auto engine = std::move(RolloutEngine::create(config, options).value());
  {
    const WeightSet weights = bench::rough_weights(config);
    bare_weights = PackedWeights::pack(config, weights.tensors()).value();
    const double took = timed([&] {
      TROUPE_CHECK(engine->load_weights(weights.tensors(), WeightVersion{0}).has_value(),
                   "bench: weights refused");
    });
    fmt::print("{} parameters, kernels {}, packing {:.2f} s\n", config.parameter_count(),
               kernel_path_name(kernel_table().path), took);
  }
  fmt::print("batch    step ms    bare ms   bare/step   tok/s\n");
  bool ok = true;
  for (const std::int64_t batch : {1, 8, 32}) {
    engine->abort_all();
    engine->reset_stats();
    start_sequences(*engine, batch);
    BareStep bare(config, bare_weights, batch);
    bare.run(kContext);
    double step_s = 1e9;
    double bare_s = 1e9;
    for (int round = 0; round < 12; ++round) {
      step_s = std::min(step_s, timed([&] { (void)engine->step(); }));
      bare_s = std::min(bare_s, timed([&] { bare.run(kContext + round); }));
    }
    fmt::print("{:>5} {:>10.2f} {:>10.2f} {:>11.2f} {:>7.1f}\n", batch, step_s * 1e3, bare_s * 1e3,
               bare_s / step_s, static_cast<double>(batch) / step_s);
    ok = ok && bare_s / step_s >= 0.6;
  }
  fmt::print("bare kernels at least 0.6 of the step: {}\n", ok ? "yes" : "NO");
  return check && !ok ? 1 : 0;
}
