// What it costs to run samples in slices instead of in one call, and to update weights in flight.
// One thread, f32, random weights, the 1M-parameter shape of `./run`, groups of 8.
//
// 1. The same samples by `generate` and by `advance` in slices of 20 ms that also end with each
//    sample, trajectories kept as a controller keeps them. Bar: 1.05×.
// 2. The same, with every request and reply through the bytes that processes exchange; information.
// 3. New weights every 16 engine steps, by kKeepKv and by kRecompute, against none; information:
//    what an update costs beyond the copy of the weights.
// Times are of processor time of this thread. Each round runs all of them in turn; a ratio is the
// median over rounds of a time and that of one call beside it, so that what else the machine does
// falls on both. `--check` fails when the bar is missed.

#include "actors/roles/rollout_stream.hpp"
#include "actors/roles/streaming_wire.hpp"
#include "bench/rough_weights.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;

constexpr double kBar = 1.05;
constexpr std::int64_t kGroups = 24;
constexpr std::uint32_t kGroupSize = 8;
constexpr std::int32_t kSamples = static_cast<std::int32_t>(kGroups * kGroupSize);

ModelConfig config_of_run() {
  ModelConfig config;
  config.layer_count = 4;
  config.hidden_size = 128;
  config.head_count = config.kv_head_count = 4;
  config.head_dim = 32;
  config.intermediate_size = 512;
  config.vocab_size = 300;
  config.positions_max = 512;
  config.tie_embeddings = true;
  return config;
}

std::vector<GenerateRequest> requests_of() {
  Rng rng(3);
  std::vector<GenerateRequest> requests;
  for (std::int64_t i = 0; i < kGroups; ++i) {
    GenerateRequest request;
    request.prompt_id = static_cast<std::uint64_t>(i);
    request.sample_indices.resize(kGroupSize);
    std::iota(request.sample_indices.begin(), request.sample_indices.end(), 0u);
    for (int t = 0; t < 20; ++t)
      request.prompt.push_back(static_cast<std::int32_t>(rng.below(300)));
    request.sampling.max_new_tokens = 16 + static_cast<std::int32_t>(rng.below(80));
    requests.push_back(request);
  }
  return requests;
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class T>
T through_bytes(const T& value) {
  return runtime::decode_value<T>(runtime::encode_value(value).value()).value();
}

struct Slices {
  bool wire = false;
  std::int64_t steps_between_updates = 0;  ///< 0: none
  WeightUpdate update = WeightUpdate::kKeepKv;
};

struct Outcome {
  double cpu_s = 0;
  std::int64_t slices = 0;
  std::int64_t tokens = 0;
  std::int64_t prefilled = 0;
};

class Bench {
 public:
  Bench() : config_(config_of_run()), weights_(bench::rough_weights(config_)) {
    engine_ = std::move(RolloutEngine::create(config_, {.max_num_seqs = kSamples}).value());
    load(WeightUpdate::kDrain);
  }

  Outcome by_generate() {
    const auto requests = requests_of();
    const double begin = cpu_seconds();
    const auto out = engine_->generate(requests).value();
    Outcome outcome{.cpu_s = cpu_seconds() - begin};
    for (const auto& one : out) outcome.tokens += std::ssize(one.tokens);
    return outcome;
  }

  Outcome by_slices(const Slices& how) {
    SteadyWaitingClock clock;
    RolloutStream stream(*engine_, {}, clock);
    std::map<std::uint64_t, Trajectory> kept;
    AdvanceRequest request;
    for (const GenerateRequest& one : requests_of())
      for (const std::uint32_t& sample : one.sample_indices) {
        const std::uint64_t attempt = kept.size() + 1;
        Trajectory begun = Trajectory::begin(one.prompt_id, one.prompt_id, sample, WeightVersion{0},
                                             one.prompt, one.sampling);
        kept.emplace(attempt, begun);
        request.starts.push_back({.attempt = attempt, .trajectory = std::move(begun)});
      }
    if (how.steps_between_updates > 0) request.steps_max = how.steps_between_updates;
    engine_->reset_stats();
    Outcome outcome;
    double loading = 0;
    const double begin = cpu_seconds();
    std::size_t ended = 0;
    std::int64_t steps = 0;
    while (ended < kept.size()) {
      AdvanceReply reply =
          stream.advance(how.wire ? through_bytes(request) : request, Deadline::by_default())
              .value();
      if (how.wire) reply = through_bytes(reply);
      request.starts.clear();
      for (const SampleNews& news : reply.news) {
        const auto stop = news.ended ? std::optional(news.reason) : std::nullopt;
        TROUPE_CHECK(kept.at(news.attempt).extend(news.from, news.piece, stop).has_value(), "news");
        ended += news.ended ? 1 : 0;
      }
      ++outcome.slices;
      steps += reply.steps;
      if (how.steps_between_updates == 0 || steps < how.steps_between_updates) continue;
      steps = 0;
      const double before = cpu_seconds();
      load(how.update);
      loading += cpu_seconds() - before;
    }
    outcome.cpu_s = cpu_seconds() - begin - loading;
    for (const auto& [attempt, one] : kept) outcome.tokens += one.length();
    outcome.prefilled = engine_->stats().prefill_tokens;
    return outcome;
  }

 private:
  void load(WeightUpdate update) {
    const auto loaded =
        engine_->load_weights(weights_.tensors(), WeightVersion{version_++}, update);
    TROUPE_CHECK(loaded.has_value(), "bench: weights refused");
  }

  ModelConfig config_;
  WeightSet weights_;
  std::unique_ptr<RolloutEngine> engine_;
  std::int64_t version_ = 0;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::string_view(argv[1]) == "--check";
  Bench bench;
  const std::vector<Slices> ways{{},
                                 {.wire = true},
                                 {.steps_between_updates = 16, .update = WeightUpdate::kKeepKv},
                                 {.steps_between_updates = 16, .update = WeightUpdate::kRecompute}};
  constexpr int kRounds = 7;
  Outcome whole = bench.by_generate();  // also warms up
  std::vector<Outcome> sliced(ways.size());
  std::vector<std::vector<double>> ratios(ways.size());
  std::vector<double> rates;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      // The costly ones need no care.
      if (i > 0 && round >= 3) break;
      const double before = bench.by_generate().cpu_s;
      sliced[i] = bench.by_slices(ways[i]);
      const double behind = bench.by_generate().cpu_s;
      ratios[i].push_back(sliced[i].cpu_s * 2 / (before + behind));
      rates.push_back(static_cast<double>(whole.tokens) / before);
    }
  }
  const char* const names[] = {"in slices", "in slices, through bytes",
                               "weights every 16 steps, KV kept",
                               "weights every 16 steps, KV recomputed"};
  fmt::print("{} samples, {} tokens by one call: {:.0f} tok/s\n", kSamples, whole.tokens,
             median(rates));
  for (std::size_t i = 0; i < ways.size(); ++i)
    fmt::print("{}: {} slices, {} tokens prefilled, {:.3f}x the time of one call\n", names[i],
               sliced[i].slices, sliced[i].prefilled, median(ratios[i]));
  TROUPE_CHECK(sliced[0].tokens == whole.tokens, "bench: {} tokens in slices, {} by one call",
               sliced[0].tokens, whole.tokens);
  const double ratio = median(ratios[0]);
  fmt::print("slices {:.3f}x (bar {}): {}\n", ratio, kBar, ratio <= kBar ? "reached" : "MISSED");
  return check && ratio > kBar ? 1 : 0;
}
