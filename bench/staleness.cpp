// What stale data does to a policy, and what corrections do about it: a table of held-out exact
// match by loss and lag, on the sort task with a real trainer and a real rollout engine.
//
//   bench_staleness [--quick] [--all] [--check] [--seeds N] [--steps N] [--plot FILE.svg]
//                   [--folder FOLDER]
//
// A model of about 110,000 parameters is warmed up by supervised steps until it sorts five digits
// in 60 to 80 % of the cases; then GRPO on exact match, one update per rollout. The loop program
// below holds scored batches in a queue, so every step trains on samples whose weights are exactly
// `lag` updates old (fewer at the very start); the versions that the engine stamped on the tokens
// are compared with that. Same seeds, data and number of updates in all runs; at lag 0 all losses
// are the same function, so that column is run once. Each loss is what the named configuration keys
// make of `troupe train`. Score: greedy exact match on 256 held-out prompts; best: after training
// began. --all adds CISPO and M2PO. --quick: one seed, three losses, lags 0 and 16.
// --check ends with 1 unless, on the mean over seeds, data without correction collapses, truncation
// delays that, and a trust region holds. What it does not show: that any of these is best for
// language models.

#include "actors/data/dataset.hpp"
#include "actors/data/tasks.hpp"
#include "actors/loops/learn.hpp"
#include "actors/loops/validation.hpp"
#include "actors/text/byte_level_tokenizer.hpp"
#include "actors/train/train_engine.hpp"
#include "apps/training/correction_keys.hpp"
#include "apps/training/supervised_rows.hpp"
#include "apps/training/train_inputs.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/file.hpp"
#include "runtime/observe/svg_plot.hpp"
#include "runtime/task/executor.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace troupe;
using actors::Cast;
using actors::GroupWorld;
using runtime::Batch;
using runtime::task;
using runtime::value_or_throw;

constexpr std::int64_t kWarmupSteps = 55;
constexpr std::int64_t kWarmupRows = 128;  ///< per supervised step
constexpr double kWarmupRate = 1e-3;
constexpr double kLearningRate = 3e-4;  ///< of reinforcement, after 20 steps of rise

struct Arm {
  std::string name;
  std::vector<std::string> words;  ///< configuration
};

std::vector<Arm> arms(std::size_t count) {
  const std::string loss = "actor_rollout_ref.actor.policy_loss.loss_mode=";
  const std::string preset = "algorithm.rollout_correction.preset=";
  std::vector<Arm> all = {{"no correction", {loss + "gpg"}},
                          {"TIS", {loss + "tis"}},
                          {"PPO clip", {preset + "naive"}},
                          {"MIS", {loss + "mis"}},
                          {"decoupled PPO", {preset + "decoupled"}},
                          {"CISPO", {preset + "cispo"}},
                          {"M2PO", {preset + "m2po"}}};
  all.resize(count);
  return all;
}

struct Plan {
  std::vector<Arm> arms;
  std::vector<std::int64_t> lags = {0, 4, 16};
  std::int64_t steps = 300;
  std::int64_t test_every = 20;
  std::uint64_t seeds = 3;
};

struct Outcome {
  std::vector<std::pair<double, double>> curve;  ///< (step, exact match)
  std::int64_t tokens = 0;                       ///< sampled to train on
  double seconds = 0;
  double last() const { return curve.back().second; }
  double best() const {
    double best = 0;
    for (const auto& [step, score] : curve) best = step > 0 ? std::max(best, score) : best;
    return best;
  }
};

// ---- inputs of one seed -------------------------------------------------------------------------

actors::ModelConfig model_config(int vocabulary) {
  actors::ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 192;
  config.layer_count = 2;
  config.head_count = 4;
  config.kv_head_count = 4;
  config.head_dim = 16;
  config.vocab_size = vocabulary;
  config.positions_max = 48;
  config.tie_embeddings = true;
  config.eos_ids = config.stop_ids = {1};
  return config;
}

/// Supervised steps on the model of `folder`, in place.
result<void> warm_up(const std::filesystem::path& folder, const std::string& rows_file) {
  TROUPE_TRY(const auto model, apps::ModelBundle::open(folder));
  TROUPE_TRY(const auto rows,
             apps::SupervisedRows::load(std::vector{rows_file}, *model, {.dataset = {}}));
  actors::TrainEngineOptions options;
  options.optimizer.lr = kWarmupRate;
  options.micro_batch_tokens_max = 8192;
  TROUPE_TRY(const auto engine,
             actors::TrainEngine::create(model->config(), model->weights().tensors(), options));
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows.size()));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t step = 0; step < kWarmupSteps; ++step) {
    const Batch batch = rows.batch(order, step * kWarmupRows, kWarmupRows);
    actors::SequencePack pack;
    for (std::int64_t row = 0; row < batch.rows(); ++row)
      pack.add(batch.column(actors::column::kPrompts).row<std::int32_t>(row),
               batch.column(actors::column::kResponses).row<std::int32_t>(row));
    TROUPE_TRY_VOID(engine->update_sft(pack.view()).map([](const auto&) {}));
  }
  return actors::save_hf_folder(folder, model->config(), engine->weights(),
                                {.tokenizer_folder = {}});
}

result<void> make_inputs(const std::filesystem::path& folder, std::uint64_t seed) {
  TROUPE_TRY(const int vocabulary, actors::write_byte_level_tokenizer(
                                       folder / "model", {.specials = {"<|pad|>", "<|endoftext|>"},
                                                          .alphabet = "0123456789=\n",
                                                          .pad_token = "<|pad|>",
                                                          .eos_token = "<|endoftext|>",
                                                          .bos_token = {}}));
  const actors::ModelConfig config = model_config(vocabulary);
  TROUPE_TRY_VOID(actors::save_hf_folder(folder / "model", config,
                                         actors::random_weights(config, seed).tensors()));
  TROUPE_TRY(auto rows, actors::make_task_rows({.train_rows = 8192,
                                                .validation_rows = 256,
                                                .warmup_rows = kWarmupSteps * kWarmupRows,
                                                .seed = seed}));
  const auto save = [&](std::vector<actors::PromptRow> set, const char* name) {
    for (actors::PromptRow& row : set) {  // `sort: 7 3 9 1 4 =` becomes `73914=`
      std::erase_if(row.prompt.front().content,
                    [](char c) { return c != '=' && (c < '0' || c > '9'); });
      std::erase(row.ground_truth, ' ');
      std::erase(row.response, ' ');
    }
    return actors::Dataset::from_rows(std::move(set)).save((folder / name).string());
  };
  TROUPE_TRY_VOID(save(std::move(rows.train), "train.jsonl"));
  TROUPE_TRY_VOID(save(std::move(rows.validation), "val.jsonl"));
  TROUPE_TRY_VOID(save(std::move(rows.warmup), "warmup.jsonl"));
  return warm_up(folder / "model", (folder / "warmup.jsonl").string());
}

std::vector<std::string> run_words(const std::filesystem::path& folder, std::uint64_t seed,
                                   const Arm& arm) {
  std::vector<std::string> words{"actor_rollout_ref.model.path=" + (folder / "model").string(),
                                 "data.train_files=[" + (folder / "train.jsonl").string() + "]",
                                 "data.val_files=[" + (folder / "val.jsonl").string() + "]",
                                 "data.train_batch_size=16",
                                 "data.max_prompt_length=16",
                                 "data.max_response_length=7",
                                 "actor_rollout_ref.rollout.n=8",
                                 "actor_rollout_ref.rollout.kv_cache_mb=32",
                                 "actor_rollout_ref.rollout.canary.tokens=0",
                                 "actor_rollout_ref.rollout.free_cache_engine=false",
                                 "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192",
                                 "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=8192",
                                 fmt::format("actor_rollout_ref.actor.optim.lr={}", kLearningRate),
                                 "actor_rollout_ref.actor.optim.lr_warmup_steps=20",
                                 "actor_rollout_ref.actor.clip_ratio_low=0.2",
                                 "actor_rollout_ref.actor.clip_ratio_high=0.28",
                                 "algorithm.adv_estimator=grpo",
                                 fmt::format("trainer.seed={}", seed)};
  words.insert(words.end(), arm.words.begin(), arm.words.end());
  return words;
}

// ---- the loop program ---------------------------------------------------------------------------

struct LaggedRun {
  Cast<GroupWorld>& cast;
  const actors::PromptLoader& train;
  const actors::PromptLoader& validation;
  actors::SamplingOptions greedy;
  const Plan& plan;
  std::int64_t lag = 0;
  actors::DataCursor cursor = {};
  std::deque<Batch> queue = {};    ///< scored; the front is trained next
  std::deque<Batch> prompts = {};  ///< of the same batches
  Outcome outcome = {};
};

/// Samples and scores the batch that step `number` will train on, by the weights of now.
task<void> sample_ahead(LaggedRun& run, std::int64_t number) {
  actors::PromptLoader::Step next = value_or_throw(run.train.next(run.cursor));
  run.cursor = next.next;
  actors::SamplingOptions sampling = run.cast.sampling;
  sampling.seed = actors::step_seed(run.cast.sampling.seed, number);
  Batch samples = value_or_throw(actors::number_samples(next.batch, run.cast.group_size));
  Batch batch = co_await run.cast.rollout.generate(samples, sampling);
  Batch scores = co_await run.cast.reward.score(batch);
  value_or_throw(batch.merge(scores));
  run.queue.push_back(std::move(batch));
  run.prompts.push_back(std::move(next.batch));
}

/// The engine's stamps must say what the queue promises.
void check_lag(LaggedRun& run, const Batch& batch, std::int64_t step) {
  const Batch versions = value_or_throw(
      value_or_throw(batch.select({std::string(actors::column::kVersions)})).resolve());
  const std::int64_t wanted = std::max<std::int64_t>(0, step - 1 - run.lag);
  for (const auto version : versions.column(actors::column::kVersions).values<std::int64_t>()) {
    TROUPE_CHECK(version == wanted, "step {}: a token of version {}, wanted {}", step, version,
                 wanted);
    ++run.outcome.tokens;
  }
}

task<void> test(LaggedRun& run, std::int64_t step) {
  const runtime::Metrics found = co_await actors::validate<GroupWorld>(
      run.cast.rollout, run.cast.reward, run.validation.all(), 1, run.greedy);
  for (const auto& [name, entry] : found)
    if (name.starts_with("val-core/") && name.ends_with("/acc/mean@1"))
      run.outcome.curve.emplace_back(static_cast<double>(step), entry.value().value_or(0));
}

task<void> train_lagged(LaggedRun& run) {
  co_await run.cast.weights.publish_present();
  co_await test(run, 0);
  for (std::int64_t ahead = 1; ahead <= run.lag; ++ahead) co_await sample_ahead(run, ahead);
  for (std::int64_t step = 1; step <= run.plan.steps; ++step) {
    co_await sample_ahead(run, step + run.lag);
    Batch batch = std::move(run.queue.front());
    run.queue.pop_front();
    const Batch prompts = std::move(run.prompts.front());
    run.prompts.pop_front();
    check_lag(run, batch, step);
    actors::StepReport report{.step = step, .metrics = {}};
    actors::StepTimer timer(run.cast.world.clock(), report.metrics);
    co_await actors::learn(run.cast, std::move(batch), prompts, step, report, timer);
    co_await run.cast.weights.publish();
    if (step % run.plan.test_every == 0 || step == run.plan.steps) co_await test(run, step);
  }
}

result<Outcome> run_one(const Plan& plan, const Arm& arm, std::int64_t lag,
                        const std::filesystem::path& folder, std::uint64_t seed) {
  const auto begin = std::chrono::steady_clock::now();
  const apps::TrainingRegistries registries;
  TROUPE_TRY(const auto config,
             runtime::Config::load(apps::schema_for(registries), "", run_words(folder, seed, arm)));
  TROUPE_TRY(const apps::TrainInputs inputs, apps::open_inputs(config, registries));
  TROUPE_TRY(const auto options, apps::world_options(config, inputs, registries, plan.steps));
  TROUPE_TRY(auto step, apps::advantage_step_options(config, registries.advantages));
  TROUPE_TRY(auto corrected, apps::correction_step_options(config));
  actors::AdvantageStep advantage(std::move(step));
  const actors::CorrectionStep correction(std::move(corrected));
  runtime::ActorSystem system;
  TROUPE_TRY(auto world, GroupWorld::create(
                             actors::make_local_place(system, options, inputs.policy->tokenizer(),
                                                      registries.rewards),
                             options));
  Cast<GroupWorld> cast{.world = *world,
                        .rollout = world->rollout(),
                        .reward = world->reward(),
                        .policy = world->policy(),
                        .weights = world->weights(),
                        .advantage = advantage,
                        .sampling = apps::sampling_options(config, *inputs.policy, false),
                        .group_size = 8,
                        .correction = &correction};
  LaggedRun run{.cast = cast,
                .train = *inputs.train,
                .validation = *inputs.validation,
                .greedy = apps::sampling_options(config, *inputs.policy, true),
                .plan = plan,
                .lag = lag,
                .cursor = {.seed = seed}};
  runtime::Executor executor;
  TROUPE_TRY_VOID(executor.run(train_lagged(run)));
  run.outcome.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return run.outcome;
}

// ---- all runs, table, plot, bars ----------------------------------------------------------------

struct Job {
  std::size_t arm = 0;
  std::int64_t lag = 0;
  std::uint64_t seed = 0;
};

using Outcomes = std::map<std::pair<std::size_t, std::int64_t>, std::vector<Outcome>>;

std::vector<Job> jobs_of(const Plan& plan) {
  std::vector<Job> jobs;
  for (std::uint64_t seed = 1; seed <= plan.seeds; ++seed)
    for (const std::int64_t lag : plan.lags)
      for (std::size_t arm = 0; arm < (lag == 0 ? 1 : plan.arms.size()); ++arm)
        jobs.push_back({arm, lag, seed});
  return jobs;
}

/// Runs the jobs on as many threads as there are cores; every run has a world of its own.
result<Outcomes> run_all(const Plan& plan, const std::filesystem::path& root) {
  const std::vector<Job> jobs = jobs_of(plan);
  std::vector<std::optional<Outcome>> done(jobs.size());
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;  // of `error` and the terminal
  std::optional<Error> error;
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      const Job& job = jobs[i];
      auto found = run_one(plan, plan.arms[job.arm], job.lag,
                           root / fmt::format("seed{}", job.seed), job.seed);
      const std::lock_guard lock(mutex);
      if (!found) {
        error = found.error();
        next = jobs.size();
        return;
      }
      fmt::print(stderr, "[{}/{}] {}, lag {}, seed {}: {:.2f} ({:.2f}), {:.0f} s\n", i + 1,
                 jobs.size(), job.lag == 0 ? "all" : plan.arms[job.arm].name, job.lag, job.seed,
                 found->last(), found->best(), found->seconds);
      done[i] = std::move(*found);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (error) return fail(*error);
  Outcomes outcomes;
  for (std::size_t i = 0; i < jobs.size(); ++i)
    outcomes[{jobs[i].arm, jobs[i].lag}].push_back(std::move(*done[i]));
  return outcomes;
}

double mean_last(const Outcomes& outcomes, std::size_t arm, std::int64_t lag) {
  double sum = 0;
  const auto& runs = outcomes.at({lag == 0 ? 0 : arm, lag});
  for (const Outcome& run : runs) sum += run.last();
  return sum / static_cast<double>(runs.size());
}

std::string cell(const std::vector<Outcome>& runs) {
  double last = 0;
  double best = 0;
  double low = 1;
  double high = 0;
  for (const Outcome& run : runs) {
    last += run.last() / static_cast<double>(runs.size());
    best += run.best() / static_cast<double>(runs.size());
    low = std::min(low, run.last());
    high = std::max(high, run.last());
  }
  return fmt::format("{:.2f} ({:.2f}) {:.2f}-{:.2f}", last, best, low, high);
}

void print_table(const Plan& plan, const Outcomes& outcomes) {
  const Outcome& first = outcomes.begin()->second.front();
  fmt::print(
      "sort, 5 digits, {} updates of 16 prompts x 8 samples, {} seeds; after {} supervised "
      "steps {:.2f}\nheld-out exact match: mean final (mean best), spread of the final\n",
      plan.steps, plan.seeds, kWarmupSteps, first.curve.front().second);
  fmt::print("{:<14}", "loss");
  for (const std::int64_t lag : plan.lags) fmt::print("  {:<22}", fmt::format("lag {}", lag));
  fmt::print("\n");
  for (std::size_t arm = 0; arm < plan.arms.size(); ++arm) {
    fmt::print("{:<14}", plan.arms[arm].name);
    for (const std::int64_t lag : plan.lags)
      fmt::print("  {:<22}", lag == 0 && arm > 0 ? "=" : cell(outcomes.at({arm, lag})));
    fmt::print("\n");
  }
}

/// One panel per lag: mean exact match over updates.
std::string plot(const Plan& plan, const Outcomes& outcomes) {
  constexpr int kPanel = 250;
  constexpr const char* kColours[] = {"#3b7dd8", "#e07b39", "#2f9e66", "#c44e6e",
                                      "#8a63c9", "#b08a1e", "#1f9bb0"};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 {}\" font-family=\"sans-serif\">"
      "<style>.t{{font-size:11px;fill:#667}}.h{{font-size:13px;font-weight:600;fill:#223}}"
      ".g{{stroke:#ddd}}.a{{stroke:#889}}.l{{fill:none;stroke-width:1.8}}",
      kPanel * static_cast<int>(plan.lags.size()));
  for (std::size_t i = 0; i < std::size(kColours); ++i)
    svg += fmt::format(".s{0}{{stroke:{1}}}.f{0}{{fill:{1}}}", i, kColours[i]);
  svg += "</style>\n";
  int top = 0;
  for (const std::int64_t lag : plan.lags) {
    std::vector<runtime::PlotSeries> series;
    for (std::size_t arm = 0; arm < (lag == 0 ? 1 : plan.arms.size()); ++arm) {
      const auto& runs = outcomes.at({arm, lag});
      runtime::PlotSeries line{.name = lag == 0 ? "all losses" : plan.arms[arm].name,
                               .points = runs.front().curve};
      for (std::size_t p = 0; p < line.points.size(); ++p) {
        line.points[p].second = 0;
        for (const Outcome& run : runs)
          line.points[p].second += run.curve[p].second / static_cast<double>(runs.size());
      }
      series.push_back(std::move(line));
    }
    std::string panel = runtime::line_plot(
        fmt::format("held-out exact match over updates, lag {} (mean of {} seeds)", lag,
                    plan.seeds),
        series);
    panel.replace(
        0, 4, fmt::format("<svg x=\"0\" y=\"{}\" width=\"640\" height=\"{}\"", top, kPanel - 10));
    svg += panel + "\n";
    top += kPanel;
  }
  return svg + "</svg>\n";
}

/// The ordering, with margins that are wide against the spread over seeds.
bool in_order(const Plan& plan, const Outcomes& outcomes) {
  const auto arm_of = [&](std::string_view name) {
    const auto at = std::ranges::find(plan.arms, name, &Arm::name);
    TROUPE_CHECK(at != plan.arms.end(), "no arm {}", name);
    return static_cast<std::size_t>(at - plan.arms.begin());
  };
  const auto score = [&](std::string_view name, std::int64_t lag) {
    return mean_last(outcomes, arm_of(name), lag);
  };
  bool ok = true;
  const auto demand = [&](double lower, double margin, double upper, std::string_view what) {
    const bool holds = lower + margin <= upper;
    fmt::print("{} {}: {:.2f} + {:.2f} <= {:.2f}\n", holds ? "ok    " : "MISSED", what, lower,
               margin, upper);
    ok &= holds;
  };
  const std::int64_t far = plan.lags.back();
  demand(score("no correction", far), 0.3, score("no correction", 0),
         fmt::format("uncorrected collapses at lag {}", far));
  demand(score("no correction", far), 0.05, score("TIS", far),
         fmt::format("truncation delays it at lag {}", far));
  demand(score("TIS", far), 0.05, score("PPO clip", far),
         fmt::format("a trust region holds more than truncation at lag {}", far));
  demand(score("no correction", far), 0.3, score("PPO clip", far),
         fmt::format("a trust region holds at lag {}", far));
  return ok;
}

result<bool> run_bench(const Plan& plan, const std::filesystem::path& root,
                       const std::string& plot_file) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t seed = 1; seed <= plan.seeds; ++seed)
    TROUPE_TRY_VOID(make_inputs(root / fmt::format("seed{}", seed), seed));
  TROUPE_TRY(const Outcomes outcomes, run_all(plan, root));
  print_table(plan, outcomes);
  TROUPE_TRY_VOID(write_text_file(plot_file, plot(plan, outcomes)));
  const double taken =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{:.0f} s in all; plot: {}\n", taken, plot_file);
  return in_order(plan, outcomes);
}

}  // namespace

int main(int count, char** words) {
  bool check = false;
  Plan plan{.arms = arms(5)};
  std::string plot_file = "staleness.svg";
  std::filesystem::path root =
      std::filesystem::temp_directory_path() / fmt::format("troupe-staleness-{}", ::getpid());
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--check") check = true;
    if (word == "--quick") plan = {.arms = arms(3), .lags = {0, 16}, .seeds = 1};
    if (word == "--all") plan.arms = arms(7);
    if (i + 1 >= count) continue;
    if (word == "--seeds") plan.seeds = std::stoull(words[++i]);
    if (word == "--steps") plan.steps = std::stoll(words[++i]);
    if (word == "--plot") plot_file = words[++i];
    if (word == "--folder") root = words[++i];
  }
  const auto in_order = run_bench(plan, root, plot_file);
  std::filesystem::remove_all(root);
  if (!in_order) {
    fmt::print(stderr, "{}\n", in_order.error().to_string());
    return 2;
  }
  return check && !*in_order ? 1 : 0;
}
