// How long the loops take to learn the same: the sort task under declared, simulated generation
// times (log-normal, sigma 0.9), the same devices, budget and seeds for each loop.
//
//   bench_async_wall [--check] [--seeds N] [--steps N] [--median-ms N] [--keep FOLDER]
//
// Prints, for each loop: seconds until the held-out score that the synchronous loop ends with, its
// final score, idle shares of trainer and rollout, staleness, and tokens that were thrown away.
// Scores are means of three evaluations in a row, for all alike: one alone, of 256 answers, errs by
// 0.025. A loop that needs more steps for the score may take a quarter more. The delays are
// simulated: the table says what overlap gives when generation takes as long as declared, nothing
// about how fast this machine computes.
//
// Two devices each: the synchronous loop shares both among all roles, the others have one for the
// trainer and one for rollout (and, for all to be judged alike, a third that only evaluates; the
// synchronous loop's evaluations are taken off its time instead).
// --check ends with 1 unless `async` and `pipelined` take at most half of the synchronous time.

#include "actors/data/dataset.hpp"
#include "actors/data/tasks.hpp"
#include "actors/text/byte_level_tokenizer.hpp"
#include "apps/training/evaluation_lane.hpp"
#include "apps/training/sft_app.hpp"
#include "apps/training/train_app.hpp"
#include "runtime/observe/metrics_writer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;
using runtime::MetricsRow;
using Words = std::vector<std::string>;

constexpr double kRatioMax = 0.5;
constexpr const char* kScore = "val-core/troupe/sort/acc/mean@1";
constexpr std::size_t kEvaluationsInARow = 3;
constexpr double kStepsMore = 1.25;  ///< of the other loops, at most

struct Options {
  bool check = false;
  std::int64_t seeds = 1;
  std::int64_t steps = 80;
  std::int64_t median_ms = 100;
  std::string keep;  ///< folder for the runs; empty: a temporary one
};

result<void> make_inputs(const std::filesystem::path& folder, std::uint64_t seed) {
  actors::ByteLevelOptions bytes;
  bytes.alphabet = "0123456789 :=-abcdefghijklmnopqrstuvwxyz\n";
  bytes.specials = {"<|pad|>", "<|endoftext|>"};
  bytes.eos_token = "<|endoftext|>";
  TROUPE_TRY(const int vocabulary, actors::write_byte_level_tokenizer(folder / "model", bytes));
  actors::ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.layer_count = 2;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 16;
  config.vocab_size = vocabulary;
  config.positions_max = 64;
  config.tie_embeddings = true;
  config.initializer_range = 0.05;
  config.pad_id = 0;
  config.eos_ids = config.stop_ids = {1};
  TROUPE_TRY_VOID(actors::save_hf_folder(folder / "model", config,
                                         actors::random_weights(config, seed).tensors()));
  TROUPE_TRY(auto rows,
             actors::make_task_rows({.train_rows = 4096, .validation_rows = 256, .seed = seed}));
  for (auto& [part, name] :
       {std::pair{&rows.train, "train.jsonl"}, std::pair{&rows.validation, "val.jsonl"},
        std::pair{&rows.warmup, "warmup.jsonl"}})
    TROUPE_TRY_VOID(actors::Dataset::from_rows(std::move(*part)).save((folder / name).string()));
  return {};
}

result<runtime::Config> config_of(const std::filesystem::path& folder, const Words& more) {
  Words words{"data.train_files=[" + (folder / "train.jsonl").string() + "]",
              "data.val_files=[" + (folder / "val.jsonl").string() + "]",
              "sft.train_files=[" + (folder / "warmup.jsonl").string() + "]",
              "data.max_prompt_length=32",
              "data.max_response_length=16",
              "trainer.progress=false",
              "trainer.log_level=warn"};
  words.insert(words.end(), more.begin(), more.end());
  return runtime::Config::load(apps::schema_for({}), "", words);
}

/// Enough to answer in the right form, not to be right.
result<void> warm_up(const std::filesystem::path& folder, std::uint64_t seed) {
  TROUPE_TRY(
      const auto config,
      config_of(folder, {"actor_rollout_ref.model.path=" + (folder / "model").string(),
                         "sft.train_batch_size=64", "sft.max_length=64", "sft.total_epochs=100",
                         "sft.total_training_steps=80", "sft.optim.lr=3e-3",
                         "sft.optim.lr_warmup_steps=10", "trainer.seed=" + std::to_string(seed),
                         "trainer.default_local_dir=" + (folder / "warmup").string()}));
  TROUPE_TRY_VOID(apps::fine_tune(config).map([](const auto&) {}));
  return {};
}

Words keys_of(const Options& options, const std::string& mode, std::uint64_t seed) {
  const double more = mode == "sync" ? 1 : kStepsMore;
  const auto steps = static_cast<std::int64_t>(more * static_cast<double>(options.steps));
  Words words{"data.train_batch_size=32",
              "actor_rollout_ref.actor.ppo_mini_batch_size=32",
              "actor_rollout_ref.actor.optim.lr=4e-4",
              "actor_rollout_ref.actor.optim.lr_warmup_steps=5",
              "algorithm.rollout_correction.bypass_mode=true",
              "actor_rollout_ref.rollout.n=8",
              "actor_rollout_ref.rollout.max_num_seqs=128",
              "actor_rollout_ref.rollout.kv_cache_mb=64",
              fmt::format("actor_rollout_ref.rollout.simulated_delay.median_s={}",
                          static_cast<double>(options.median_ms) / 1000),
              "actor_rollout_ref.rollout.simulated_delay.sigma=0.9",
              "algorithm.adv_estimator=grpo",
              "trainer.mode=" + mode,
              "trainer.total_training_steps=" + std::to_string(steps),
              "trainer.total_epochs=1000",
              "trainer.test_freq=5",
              "trainer.seed=" + std::to_string(seed)};
  if (mode == "sync") {
    words.emplace_back("trainer.n_gpus_per_node=2");
  } else {
    words.insert(words.end(), {"trainer.n_gpus_per_node=1", "trainer.rollout_devices=1",
                               "trainer.evaluation_devices=1",
                               mode == "one_step_off" ? "async.staleness=1" : "async.staleness=2",
                               "async.groups_per_part=8"});
  }
  return words;
}

/// What a run gave: held-out scores over the seconds that count, and means over its steps.
struct Run {
  std::vector<std::pair<double, double>> scores;  ///< (seconds, score), by step
  double seconds = 0;                             ///< of all steps
  double trainer_idle = 0;
  double rollout_idle = 0;
  double wasted = 0;
  std::map<std::string, double> ages;
};

double value_or(const MetricsRow& row, std::string_view name, double otherwise) {
  const auto found = row.values.find(name);
  return found == row.values.end() ? otherwise : found->second;
}

result<Run> read_run(const std::filesystem::path& folder, bool sync) {
  TROUPE_TRY(const auto rows, runtime::read_metrics((folder / "metrics.jsonl").string()));
  Run run;
  double steps = 0;
  for (const MetricsRow& row : rows) {
    const double step_s = value_or(row, "timing_s/step", 0);
    run.seconds = sync ? run.seconds + step_s : value_or(row, "perf/wall_s", 0);
    if (const auto found = row.values.find(std::string_view(kScore)); found != row.values.end())
      run.scores.emplace_back(run.seconds, found->second);
    if (row.step == 0) continue;
    steps += 1;
    // Sharing devices, each waits while the other works.
    const double generating = value_or(row, "timing_s/gen", 0);
    const double share = step_s > 0 ? generating / step_s : 0;
    run.trainer_idle += sync ? share : value_or(row, "trainer/idle_ratio", 0);
    run.rollout_idle += sync ? 1 - share : value_or(row, "rollouter/idle_ratio", 0);
    run.wasted += value_or(row, "async/wasted_tokens", 0);
    for (const auto& [name, value] : row.values)
      if (name.starts_with("staleness/age_"))
        run.ages[name.substr(14, name.find('/', 14) - 14)] += value;
  }
  run.trainer_idle /= std::max(steps, 1.0);
  run.rollout_idle /= std::max(steps, 1.0);
  if (sync) return run;
  TROUPE_TRY(const auto judged, runtime::read_metrics((folder / apps::kEvaluationsFile).string()));
  for (const MetricsRow& row : judged)
    run.scores.emplace_back(value_or(row, "perf/wall_s", 0), value_or(row, kScore, 0));
  return run;
}

/// Of `kEvaluationsInARow` scores each, at the time of the last of them.
void smooth(Run& run) {
  std::vector<std::pair<double, double>> means;
  for (std::size_t last = kEvaluationsInARow - 1; last < run.scores.size(); ++last) {
    double sum = 0;
    for (std::size_t i = 0; i < kEvaluationsInARow; ++i) sum += run.scores[last - i].second;
    means.emplace_back(run.scores[last].first, sum / kEvaluationsInARow);
  }
  run.scores = std::move(means);
}

/// Seconds until the score was first reached.
std::optional<double> reached(const Run& run, double score) {
  for (const auto& [at, value] : run.scores)
    if (value >= score) return at;
  return std::nullopt;
}

result<Run> train(const std::filesystem::path& folder, const Options& options,
                  const std::string& mode, std::uint64_t seed) {
  const auto place = folder / mode;
  Words words = keys_of(options, mode, seed);
  words.push_back("actor_rollout_ref.model.path=" + (folder / "warmup/huggingface").string());
  words.push_back("trainer.default_local_dir=" + place.string());
  TROUPE_TRY(const auto config, config_of(folder, words));
  TROUPE_TRY_VOID(apps::train(config, {}).map([](const auto&) {}));
  TROUPE_TRY(Run run, read_run(place, mode == "sync"));
  smooth(run);
  if (run.scores.empty())
    return fail(ErrorCode::kInternal, "{}: fewer than {} evaluations", mode, kEvaluationsInARow);
  return run;
}

/// Prints one seed's table; the largest ratio of time to the synchronous loop's.
result<double> compare(const std::filesystem::path& folder, const Options& options,
                       std::uint64_t seed) {
  TROUPE_TRY_VOID(make_inputs(folder, seed));
  TROUPE_TRY_VOID(warm_up(folder, seed));
  fmt::print("seed {}: delays simulated, log-normal, median {} ms, sigma 0.9; {} steps of 32 × 8\n",
             seed, options.median_ms, options.steps);
  fmt::print("{:<13}{:>9}{:>12}{:>8}{:>8}{:>9}{:>13}{:>13}{:>9}  groups by staleness\n", "loop",
             "run, s", "to score, s", "ratio", "first", "final", "trainer idle", "rollout idle",
             "wasted");
  double target = 0;
  double base = 0;
  double worst = 0;
  for (const std::string mode : {"sync", "one_step_off", "async", "pipelined"}) {
    TROUPE_TRY(const Run run, train(folder, options, mode, seed));
    if (mode == "sync") {
      target = run.scores.back().second;
      base = reached(run, target).value_or(run.seconds);
      if (target <= run.scores.front().second)
        return fail(ErrorCode::kInternal, "sync: learned nothing, from {:.3f} to {:.3f}",
                    run.scores.front().second, run.scores.back().second);
    }
    const auto took = reached(run, target);
    const double ratio = took ? *took / base : std::numeric_limits<double>::infinity();
    if (mode == "async" || mode == "pipelined") worst = std::max(worst, ratio);
    std::string ages;
    for (const auto& [age, groups] : run.ages)
      if (groups > 0) ages += fmt::format(" {}:{:.0f}", age, groups);
    fmt::print("{:<13}{:>9.1f}{:>12}{:>8.2f}{:>8.3f}{:>9.3f}{:>12.0f}%{:>12.0f}%{:>9.0f} {}\n",
               mode, run.seconds, took ? fmt::format("{:.1f}", *took) : "never", ratio,
               run.scores.front().second, run.scores.back().second, 100 * run.trainer_idle,
               100 * run.rollout_idle, run.wasted, ages);
    std::fflush(stdout);
  }
  fmt::print("score to reach: {:.3f}, the synchronous loop's last\n", target);
  return worst;
}

result<int> measure(const Options& options) {
  const std::filesystem::path root =
      options.keep.empty()
          ? std::filesystem::temp_directory_path() / fmt::format("troupe_async_wall_{}", getpid())
          : std::filesystem::path(options.keep);
  double worst = 0;
  for (std::int64_t seed = 1; seed <= options.seeds; ++seed) {
    const auto folder = root / fmt::format("seed{}", seed);
    std::filesystem::create_directories(folder);
    TROUPE_TRY(const double ratio, compare(folder, options, static_cast<std::uint64_t>(seed)));
    worst = std::max(worst, ratio);
  }
  if (options.keep.empty()) std::filesystem::remove_all(root);
  fmt::print("largest ratio of async and pipelined: {:.2f}, bar {:.2f}\n", worst, kRatioMax);
  return options.check && worst > kRatioMax ? 1 : 0;
}

bool read_number(std::string_view text, std::int64_t& target) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), target);
  return problem == std::errc() && end == text.data() + text.size() && target > 0;
}

}  // namespace

int main(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    const std::string_view next = i + 1 < count ? words[i + 1] : "";
    std::int64_t* number = word == "--seeds"       ? &options.seeds
                           : word == "--steps"     ? &options.steps
                           : word == "--median-ms" ? &options.median_ms
                                                   : nullptr;
    if (word == "--check") {
      options.check = true;
    } else if (word == "--keep" && !next.empty()) {
      options.keep = next;
      ++i;
    } else if (number != nullptr && read_number(next, *number)) {
      ++i;
    } else {
      fmt::print(stderr, "bench_async_wall: '{}': not understood\n", word);
      return 2;
    }
  }
  const auto done = measure(options);
  if (done) return *done;
  fmt::print(stderr, "bench_async_wall: {}\n", done.error().to_string());
  return 1;
}
