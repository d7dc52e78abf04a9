// Tokens per second of the train engine on one thread, forward and with an update, and the share
// of the time that bare matrix products of the same shapes would take.
//
// Usage: bench_train [--check] [--sequences N] [--length T] [--hidden H] [--layers L] [--budget T]
// [--group G] With --check it ends non-zero when an update reaches less than kShareWanted of its
// bare GEMMs.
#include "actors/model/weight_set.hpp"
#include "actors/train/train_engine.hpp"
#include "bench/bench_model.hpp"
#include "runtime/base/rng.hpp"

#include <fmt/format.h>
#include <time.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace {

using namespace troupe;
using namespace troupe::actors;

constexpr double kShareWanted = 0.35;
constexpr double kSharingWanted = 0.8;  ///< of the ratio of tokens

struct Setup {
  std::int64_t sequences = 1024;
  std::int64_t length = 32;
  std::int64_t hidden = 128;
  std::int64_t layers = 4;
  std::int64_t budget = 8192;
  std::int64_t group = 8;
  bool recompute = false;
  bool check = false;
  bool main_thread = false;
};

/// CPU seconds of this thread: the engine runs on it alone, and other jobs do not disturb it.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Best of three.
template <class Work>
double timed(const Work& work) {
  double best = 1e30;
  for (int i = 0; i < 3; ++i) {
    const double start = now();
    work();
    best = std::min(best, now() - start);
  }
  return best;
}

ModelConfig model(const Setup& setup) { return bench::small_model(setup.hidden, setup.layers); }

/// Seconds that the matrix products of one forward pass over `tokens` tokens take, alone.
double bare_forward(const ModelConfig& c, std::int64_t tokens, std::int64_t rows) {
  const at::NoGradGuard no_gradient;
  const std::pair<std::int64_t, std::int64_t> shapes[] = {
      {c.hidden_size, c.q_size() + 2 * c.kv_size()},
      {c.q_size(), c.hidden_size},
      {c.hidden_size, 2 * c.intermediate_size},
      {c.intermediate_size, c.hidden_size}};
  double total = 0;
  for (const auto& [in, out] : shapes) {
    const at::Tensor x = at::randn({rows, in});
    const at::Tensor w = at::randn({out, in});
    at::Tensor y = at::empty({rows, out});
    const double seconds = timed([&] { at::mm_out(y, x, w.t()); });
    total += seconds * static_cast<double>(tokens) / static_cast<double>(rows);
  }
  return total * static_cast<double>(c.layer_count);
}

Setup parse(int count, char** arguments) {
  Setup setup;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = arguments[i];
    if (name == "--check") setup.check = true;
    if (name == "--recompute") setup.recompute = true;
    if (name == "--main-thread") setup.main_thread = true;
    if (i + 1 >= count) continue;
    const std::int64_t value = std::atoll(arguments[i + 1]);
    if (name == "--sequences") setup.sequences = value;
    if (name == "--length") setup.length = value;
    if (name == "--hidden") setup.hidden = value;
    if (name == "--layers") setup.layers = value;
    if (name == "--budget") setup.budget = value;
    if (name == "--group") setup.group = std::max<std::int64_t>(value, 1);
  }
  return setup;
}

/// Random sequences, half prompt and half response; runs of `group` share their prompt.
SequencePack random_pack(const Setup& setup, Rng& rng, std::int64_t group) {
  SequencePack pack;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(setup.length));
  const std::size_t half = tokens.size() / 2;
  for (std::int64_t s = 0; s < setup.sequences; ++s) {
    for (std::size_t t = s % group == 0 ? 0 : half; t < tokens.size(); ++t)
      tokens[t] = static_cast<std::int32_t>(rng.below(300));
    pack.add(std::span(tokens).first(half), std::span(tokens).subspan(half));
  }
  return pack;
}

/// Seconds of a forward pass and of an update.
struct Times {
  double forward = 0;
  double step = 0;
};

Times time_of(TrainEngine& engine, const PackedSequences& sequences, Rng& rng) {
  const std::vector<float> old = engine.log_probs(sequences, 1.0F).value().log_probs;
  std::vector<float> advantages(old.size());
  for (float& a : advantages) a = static_cast<float>(rng.normal());
  PolicyUpdate update{.old_log_probs = old, .advantages = advantages};
  update.loss = default_policy_losses().find("vanilla").value();
  return {.forward = timed([&] { (void)engine.log_probs(sequences, 1.0F).value(); }),
          .step = timed([&] { (void)engine.update_policy(sequences, update).value(); })};
}

/// Groups of samples with and without a shared prompt; true when sharing gains what it should.
bool measure_sharing(const Setup& setup, const WeightSet& weights, TrainEngineOptions options) {
  Rng rng(8);
  const SequencePack pack = random_pack(setup, rng, setup.group);
  Times times[2];
  for (const bool share : {false, true}) {
    options.share_prompts = share;
    auto engine = TrainEngine::create(model(setup), weights.tensors(), options).value();
    times[share ? 1 : 0] = time_of(*engine, pack.view(), rng);
  }
  const double step = times[0].step / times[1].step;
  const auto group = static_cast<double>(setup.group);
  const double fewer = 2 * group / (1 + group);
  fmt::print(
      "groups of {}, their prompt once: forward {:.2f} x, update {:.2f} x as fast; {:.2f} x "
      "fewer tokens\n",
      setup.group, times[0].forward / times[1].forward, step, fewer);
  return step >= kSharingWanted * fewer;
}

/// The whole measurement; true when the bars are met.
bool measure(const Setup& setup) {
  const ModelConfig config = model(setup);
  const WeightSet weights = random_weights(config, 1);
  TrainEngineOptions options;
  options.optimizer.lr = 1e-4;
  options.micro_batch_tokens_max = setup.budget;
  options.recompute = setup.recompute;
  auto engine = TrainEngine::create(config, weights.tensors(), options).value();

  Rng rng(7);
  const SequencePack pack = random_pack(setup, rng, 1);
  const PackedSequences sequences = pack.view();
  const auto tokens = static_cast<double>(sequences.tokens.size());
  const auto [forward, step] = time_of(*engine, sequences, rng);
  const double bare = bare_forward(config, sequences.offsets.back(),
                                   std::min(setup.budget, sequences.offsets.back()));
  fmt::print("{} parameters, {} sequences x {} tokens, budget {}, GEMM {:.0f} GFLOP/s\n",
             engine->parameter_count(), setup.sequences, setup.length, setup.budget,
             gemm_gigaflops());
  fmt::print("{:<10}{:>10}{:>14}{:>18}\n", "", "seconds", "tokens/s", "share of GEMMs");
  fmt::print("{:<10}{:>10.3f}{:>14.0f}{:>18.2f}\n", "forward", forward, tokens / forward,
             bare / forward);
  fmt::print("{:<10}{:>10.3f}{:>14.0f}{:>18.2f}\n", "update", step, tokens / step, 3 * bare / step);
  fmt::print("activations peak {}\n", to_string(engine->memory().activations_peak));
  const bool gains = measure_sharing(setup, weights, options);
  return 3 * bare / step >= kShareWanted && gains;
}

}  // namespace

int main(int count, char** arguments) {
  const Setup setup = parse(count, arguments);
  bool met = true;
  if (setup.main_thread) {
    met = measure(setup);
  } else {  // engines live on threads of their ranks, whose memory comes from other arenas
    std::thread([&setup, &met] { met = measure(setup); }).join();
  }
  return setup.check && !met ? 1 : 0;
}
