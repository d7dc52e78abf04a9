// What tensor parallelism costs and how fast weights go into a rollout engine, f32, random weights.
//
// 1. Decode at a 100M-parameter shape with even head counts, 8 sequences: milliseconds per step of
//    one rank, of two ranks that are threads here, and how much of a step the ranks spend in
//    collectives (waiting for each other included). On as many free cores as ranks the step should
//    approach one rank's time divided by ranks; the ratio is printed, not judged: it depends on the
//    machine.
// 2. Latency per collective: the same at a shape whose arithmetic is next to nothing, so that a
// step
//    is its 2·L + 3 collectives.
// 3. Publication: `write` of every tensor whole into the set that does not serve, and its commit,
//    against memcpy of the same bytes into touched memory, in the same run. Bar: 0.5.
// `--check` fails when the bar is missed.

#include "actors/rollout/model_share.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "bench/rough_weights.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/comm/collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;

ModelConfig config_of(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                      std::int64_t kv_heads, std::int64_t mlp, std::int64_t vocab) {
  ModelConfig config;
  config.layer_count = layers;
  config.hidden_size = hidden;
  config.head_count = heads;
  config.kv_head_count = kv_heads;
  config.head_dim = 64;
  config.intermediate_size = mlp;
  config.vocab_size = vocab;
  config.positions_max = 512;
  config.tie_embeddings = true;
  return config;
}

template <class F>
double timed(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return seconds(std::chrono::steady_clock::now() - begin);
}

struct StepCost {
  double step_s = 1e9;      // the fastest step
  double collective = 0.0;  // share of all steps
};

/// Decode steps of `sequences` sequences on one rank.
StepCost decode(const ModelConfig& config, const WeightSet& weights, std::int64_t sequences,
                runtime::Collective* tp) {
  auto engine = std::move(RolloutEngine::create(config, EngineOptions{}, tp).value());
  TROUPE_CHECK(engine->load_weights(weights.tensors(), WeightVersion{0}).has_value(), "weights");
  for (std::int64_t i = 0; i < sequences; ++i) {
    GenerateRequest request;
    request.prompt_id = static_cast<std::uint64_t>(i);
    for (std::int64_t t = 0; t < 32; ++t)
      request.prompt.push_back(static_cast<std::int32_t>((i * 7919 + t * 104729) % 250));
    request.sampling.max_new_tokens = 200;
    TROUPE_CHECK(engine->submit(request).has_value(), "refused");
  }
  for (int i = 0; i < 3; ++i) TROUPE_CHECK(engine->step().has_value(), "step");
  engine->reset_stats();
  StepCost cost;
  for (int i = 0; i < 40; ++i)
    cost.step_s = std::min(cost.step_s, timed([&] { (void)engine->step(); }));
  cost.collective = engine->stats().collective_s / engine->stats().step_s;
  return cost;
}

StepCost decode_on(int size, const ModelConfig& config, const WeightSet& weights,
                   std::int64_t sequences) {
  if (size == 1) return decode(config, weights, sequences, nullptr);
  auto group = runtime::make_local_group(size);
  std::vector<StepCost> costs(group.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < group.size(); ++rank)
    threads.emplace_back(
        [&, rank] { costs[rank] = decode(config, weights, sequences, group[rank].get()); });
  for (std::thread& thread : threads) thread.join();
  return *std::ranges::max_element(costs, {}, &StepCost::step_s);
}

void print_decode(const ModelConfig& config) {
  const WeightSet weights = bench::rough_weights(config);
  const StepCost alone = decode_on(1, config, weights, 8);
  const StepCost pair = decode_on(2, config, weights, 8);
  fmt::print(
      "decode, {}M parameters, 8 sequences: 1 rank {:.2f} ms, 2 ranks {:.2f} ms ({:.2f} of 1 rank, "
      "0.5 would be ideal), {:.0f} % of it in collectives, {} cores\n",
      config.parameter_count() / 1'000'000, alone.step_s * 1e3, pair.step_s * 1e3,
      pair.step_s / alone.step_s, pair.collective * 100, std::thread::hardware_concurrency());
}

void print_latency() {
  const ModelConfig config = config_of(16, 64, 8, 8, 64, 256);
  const WeightSet weights = bench::rough_weights(config);
  const double alone = decode_on(1, config, weights, 1).step_s;
  for (const int size : {2, 4, 8}) {
    const StepCost cost = decode_on(size, config, weights, 1);
    const auto collectives = static_cast<double>(2 * config.layer_count + 3);
    fmt::print("latency, {} ranks: {:.0f} µs per step of {:.0f} collectives, {:.1f} µs each\n",
               size, cost.step_s * 1e6, collectives,
               (cost.step_s - alone / size) * 1e6 / collectives);
  }
}

bool publication(const ModelConfig& config) {
  const WeightSet weights = bench::rough_weights(config);
  auto engine = std::move(RolloutEngine::create(config, EngineOptions{}).value());
  std::vector<float> copy(static_cast<std::size_t>(weights.element_count()));
  double write_s = 1e9;
  double copy_s = 1e9;
  for (std::int64_t version = 0; version < 6; ++version) {
    TROUPE_CHECK(engine->begin_update(WeightVersion{version}).has_value(), "begin");
    write_s = std::min(
        write_s, timed([&] {
          for (const NamedTensor& tensor : weights.tensors()) {
            const std::int64_t cols = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
            const reshard::Box box{0, tensor.shape[0], 0, cols};
            TROUPE_CHECK(engine->write(tensor.name, box, tensor.data.data(), cols).has_value(),
                         "write");
          }
          TROUPE_CHECK(engine->commit_update().has_value(), "commit");
        }));
    copy_s = std::min(copy_s, timed([&] {
                        float* target = copy.data();
                        for (const NamedTensor& tensor : weights.tensors()) {
                          std::memcpy(target, tensor.data.data(), tensor.data.size_bytes());
                          target += tensor.data.size();
                        }
                      }));
  }
  const double bytes = static_cast<double>(weights.element_count()) * 4;
  fmt::print(
      "publication of {:.0f} MiB: write and commit {:.2f} GB/s, memcpy {:.2f} GB/s: {:.2f} (bar "
      "0.5)\n",
      bytes / (1 << 20), bytes / write_s / 1e9, bytes / copy_s / 1e9, copy_s / write_s);
  return copy_s / write_s >= 0.5;
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::string_view(argv[1]) == "--check";
  const ModelConfig config = config_of(24, 512, 8, 4, 1536, 32768);
  print_decode(config);
  print_latency();
  const bool ok = publication(config);
  fmt::print("bar reached: {}\n", ok ? "yes" : "NO");
  return check && !ok ? 1 : 0;
}
