// A training batch through worker processes: dispatched, looked at, and a column of results
// collected. The numbers of Troupe's side of bench/peers/dispatch.py.
//
//   bench_batch_call [--rows N] [--tokens N] [--ranks N] [--repeats N] [--json]
//
// The batch is dense [rows, tokens]: `input_ids` and `attention_mask` i64, `rollout_log_probs` f32,
// as verl has them. A worker reads one element of each page of its rows and answers with
// `old_log_probs` f32 [rows, tokens], each row filled with what it read. Three ways, seconds each:
//   values     the payload lies with the caller before, and with the caller after
//   kept       as in a training loop: the batch is a result of the same group, results stay with
//              the workers that made them, and the caller holds references
//   reordered  as kept, but the rows were shuffled in between: about half of them (with 2 ranks)
//              are wanted by another worker than the one that has them
// The first repeat of each is not counted; the median of the others is printed. Answers are
// compared after the clock has stopped.

#include "bench/elapsed.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cluster/process_launcher.hpp"
#include "runtime/cluster/rank_host.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/group/cluster_job.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/link/link_hub.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::runtime;
using std::chrono::steady_clock;

constexpr std::size_t kPageBytes = 4096;

struct Options {
  std::int64_t rows = 8192;
  std::int64_t tokens = 2048;
  int ranks = 2;
  int repeats = 5;
  bool json = false;
};

template <class T>
T taken(result<T> outcome) {
  TROUPE_CHECK(outcome, "bench: {}", outcome.error().to_string());
  return std::move(*outcome);
}

void put(Batch& batch, std::string name, Column column) {
  const auto done = batch.set(std::move(name), std::move(column));
  TROUPE_CHECK(done, "bench: {}", done.error().to_string());
}

/// Row i of every column starts from row number `first` + i.
Batch make_batch(std::int64_t first, std::int64_t rows, std::int64_t tokens) {
  const auto count = static_cast<std::size_t>(rows * tokens);
  const auto width = static_cast<std::size_t>(tokens);
  std::vector<std::int64_t> ids(count);
  for (std::size_t i = 0; i < count; ++i)
    ids[i] = (first + static_cast<std::int64_t>(i / width)) % 1000;
  Batch batch;
  put(batch, "input_ids", Column::dense(std::move(ids), {tokens}));
  put(batch, "attention_mask", Column::dense(std::vector<std::int64_t>(count, 1), {tokens}));
  put(batch, "rollout_log_probs", Column::dense(std::vector<float>(count, -0.5F), {tokens}));
  return batch;
}

template <class T>
double touched(const Column& column, std::int64_t row) {
  const auto values = column.row<T>(row);
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); i += kPageBytes / sizeof(T))
    sum += static_cast<double>(values[i]);
  return sum;
}

/// What a worker reads of one row.
double seen(const Batch& batch, std::int64_t row) {
  return touched<std::int64_t>(batch.column("input_ids"), row) +
         touched<std::int64_t>(batch.column("attention_mask"), row) +
         touched<float>(batch.column("rollout_log_probs"), row);
}

struct Policy {
  explicit Policy(WorkerContext&) {}
  /// Row numbers and widths → the batch of make_batch, of these rows.
  Batch generate(const Batch& prompts) {
    return make_batch(prompts.column("number").scalar<std::int64_t>(0), prompts.rows(),
                      prompts.column("tokens").scalar<std::int64_t>(0));
  }
  Batch score(const Batch& share) {
    const std::int64_t tokens = share.column("input_ids").row_length(0);
    std::vector<float> answers(static_cast<std::size_t>(share.rows() * tokens));
    for (std::int64_t row = 0; row < share.rows(); ++row) {
      const auto at = answers.begin() + row * tokens;
      std::fill(at, at + tokens, static_cast<float>(seen(share, row)));
    }
    Batch out;
    put(out, "old_log_probs", Column::dense(std::move(answers), {tokens}));
    return out;
  }
  Batch score_kept(const Batch& share) { return score(share); }

  static constexpr auto methods() {
    return std::tuple{
        method<&Policy::generate>("generate", args(scatter), returns(concat)).keep_columns(),
        method<&Policy::score>("score", args(scatter), returns(concat)),
        method<&Policy::score_kept>("score_kept", args(scatter), returns(concat)).keep_columns()};
  }
};

using Policies = WorkerGroup<Policy>;

/// The median of all repeats but the first.
double median_seconds(const Options& options, const std::function<void()>& step) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {
    const auto begin = steady_clock::now();
    step();
    if (repeat > 0) seconds.push_back(bench::seconds_since(begin));
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// Row i of the answers belongs to row order[i] of the batch.
void compare(const Batch& answers, const Batch& batch, const std::vector<std::int64_t>& order) {
  TROUPE_CHECK(answers.rows() == batch.rows(), "bench: {} answers to {} rows", answers.rows(),
               batch.rows());
  const Batch here = taken(answers.resolve());
  for (std::int64_t row = 0; row < here.rows(); row += 97) {
    const auto wanted = static_cast<float>(seen(batch, order[static_cast<std::size_t>(row)]));
    const auto found = here.column("old_log_probs").row<float>(row);
    TROUPE_CHECK(found.front() == wanted && found.back() == wanted,
                 "bench: row {}: {} instead of {}", row, found.front(), wanted);
  }
}

Batch generated(Policies& group, const Options& options) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(options.rows));
  std::iota(numbers.begin(), numbers.end(), 0);
  Batch prompts;
  put(prompts, "tokens", Column::dense(std::vector<std::int64_t>(numbers.size(), options.tokens)));
  put(prompts, "number", Column::dense(std::move(numbers)));
  return taken(group.call<&Policy::generate>(prompts).wait());
}

void measure(Policies& group, const Options& options) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(options.rows));
  std::iota(order.begin(), order.end(), 0);
  const Batch here = make_batch(0, options.rows, options.tokens);
  Batch answers;
  const double values =
      median_seconds(options, [&] { answers = taken(group.call<&Policy::score>(here).wait()); });
  compare(answers, here, order);
  const Batch there = generated(group, options);
  const double kept = median_seconds(
      options, [&] { answers = taken(group.call<&Policy::score_kept>(there).wait()); });
  compare(answers, here, order);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  const double reordered = median_seconds(options, [&] {
    const Batch shuffled = taken(there.reorder(order));
    answers = taken(group.call<&Policy::score_kept>(shuffled).wait());
  });
  compare(answers, here, order);
  if (options.json) {
    fmt::print("{{\"values\": {:.6f}, \"kept\": {:.6f}, \"reordered\": {:.6f}}}\n", values, kept,
               reordered);
    return;
  }
  const auto row_bytes = static_cast<double>(options.tokens) * (8 + 8 + 4 + 4);
  fmt::print("{} rows of {} tokens, {} ranks: {:.0f} MiB there and back\n", options.rows,
             options.tokens, options.ranks,
             static_cast<double>(options.rows) * row_bytes / 1048576);
  for (const auto& [name, seconds] :
       {std::pair{"values", values}, {"kept", kept}, {"reordered", reordered}})
    fmt::print("  {:<10} {:>10.2f} ms\n", name, seconds * 1e3);
}

void run(const Options& options) {
  ActorSystem system;
  LinkOptions link;
  link.self = PeerName{PeerRole::kController, "bench"};
  const auto hub = taken(LinkHub::open(system, link));
  const auto launcher = taken(ProcessLauncher::open());
  ClusterJobOptions job_options;
  job_options.job = "bench";
  job_options.command = {"/proc/self/exe"};
  const auto job = taken(ClusterJob::open(system, hub.get(), *launcher, job_options));
  GroupOptions group_options;
  group_options.name = "policy";
  group_options.mesh = Mesh::data_parallel(options.ranks);
  group_options.collectives = false;
  auto group = taken(Policies::create(*job, group_options, {.name = "policy"}));
  measure(group, options);
}

}  // namespace

int main(int count, char** words) {
  RankPrograms programs;
  programs.add<Policy>("policy");
  if (const auto code = maybe_run_rank(programs)) return *code;
  log::set_up(log::Level::kWarn);
  Options options;
  CLI::App app("A batch through worker processes");
  app.add_option("--rows", options.rows)->check(CLI::Range(1, 1 << 20));
  app.add_option("--tokens", options.tokens)->check(CLI::Range(1, 1 << 20));
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  app.add_option("--repeats", options.repeats)->check(CLI::Range(1, 1000));
  app.add_flag("--json", options.json, "one line of JSON, seconds");
  CLI11_PARSE(app, count, words);
  run(options);
  return 0;
}
