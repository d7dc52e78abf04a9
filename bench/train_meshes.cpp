// Step times of the train engine on every kind of mesh, with ranks as threads of this process, next
// to those of one rank; and what a step costs that is trained part by part instead of at once.
//
// Usage: bench_train_meshes [--check] [--sequences N] [--hidden H] [--layers L] [--parts P]
// Columns: wall seconds of a step, as a ratio to one rank, and as a ratio to the ideal here (one
// rank's time divided by the cores that its ranks can have); CPU seconds of all ranks as a ratio to
// one rank's, which other jobs on the machine disturb little; CPU seconds of a streamed step as a
// ratio to one update. With --check it ends non-zero when the latter exceeds kStreamedMost.
#include "actors/model/weight_set.hpp"
#include "actors/train/train_engine.hpp"
#include "actors/train/train_groups.hpp"
#include "bench/bench_model.hpp"
#include "runtime/base/rng.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;

constexpr double kStreamedMost = 1.1;
constexpr int kRounds = 3;

struct Setup {
  std::int64_t sequences = 96;
  std::int64_t hidden = 128;
  std::int64_t layers = 4;
  std::int64_t parts = 4;
  bool check = false;
};

struct Mesh {
  std::string name;
  int ranks = 1;
  ParallelOptions cut = {};
  bool at_once_only = false;
};

std::vector<Mesh> meshes() {
  return {{"one rank"},
          {"dp2", 2},
          {"tp2", 2, {.tp = 2}},
          {"pp2", 2, {.pp = 2}},
          {"zero1 over 2", 2, {.sharding = Sharding::kZero1}},
          {"fsdp over 2", 2, {.sharding = Sharding::kFsdp}},
          {"dp4", 4},
          {"tp2 pp2", 4, {.tp = 2, .pp = 2}},
          {"tp2 dp2", 4, {.tp = 2}},
          {"hsdp 2x2", 4, {.sharding = Sharding::kFsdp, .shard_ranks = 2}}};
}

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

ModelConfig model(const Setup& setup) { return bench::small_model(setup.hidden, setup.layers); }

/// Some sequences and what an update reads of them.
struct Rows {
  SequencePack pack;
  std::vector<float> old_log_probs;
  std::vector<float> advantages;

  void add(const std::vector<std::int32_t>& prompt, const std::vector<std::int32_t>& response,
           float advantage) {
    pack.add(prompt, response);
    old_log_probs.insert(old_log_probs.end(), response.size(), -5.7F);
    advantages.insert(advantages.end(), response.size(), advantage);
  }
  PolicyUpdate update() const {
    PolicyUpdate update;
    update.old_log_probs = old_log_probs;
    update.advantages = advantages;
    update.loss = default_policy_losses().find("vanilla").value();
    return update;
  }
};

/// What data-parallel rank `dp` has of part `part`; the same rows however the step is cut.
Rows rows_of(const Setup& setup, int dp, int dp_size, std::int64_t part, std::int64_t parts) {
  Rows rows;
  const std::int64_t each = (setup.sequences + parts - 1) / parts;
  const std::int64_t end = std::min(setup.sequences, (part + 1) * each);
  for (std::int64_t i = part * each; i < end; ++i) {
    if (i % dp_size != dp) continue;
    Rng rng(static_cast<std::uint64_t>(i));
    const auto tokens = [&rng](std::int64_t count) {
      std::vector<std::int32_t> out;
      for (std::int64_t t = 0; t < count; ++t)
        out.push_back(static_cast<std::int32_t>(rng.below(300)));
      return out;
    };
    const std::vector<std::int32_t> prompt = tokens(8);
    const auto length = 16 + static_cast<std::int64_t>(rng.below(32));
    rows.add(prompt, tokens(length), static_cast<float>(rng.normal()));
  }
  return rows;
}

void must(const result<runtime::Metrics>& done) {
  if (!done) throw std::runtime_error(done.error().to_string());
}

/// What the fastest round cost: wall of rank 0, CPU of all threads.
struct Cost {
  double wall = 1e30;
  double cpu = 1e30;
};
struct Costs {
  Cost at_once;
  Cost streamed;
};

/// One step of `work` on all ranks between two barriers; rank 0 measures.
template <class Work>
void measured(runtime::Collective& world, int rank, Cost& cost, const Work& work) {
  const auto meet = [&world] {
    if (!world.barrier(Deadline::in(std::chrono::minutes(5))))
      throw std::runtime_error("bench: ranks did not meet");
  };
  meet();
  const double wall = seconds_of(CLOCK_MONOTONIC);
  const double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  work();
  meet();
  if (rank != 0) return;
  cost.wall = std::min(cost.wall, seconds_of(CLOCK_MONOTONIC) - wall);
  cost.cpu = std::min(cost.cpu, seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu);
}

void run_rank(const Setup& setup, const Mesh& mesh, int rank, runtime::Collective& world,
              Costs& costs) {
  const ModelConfig config = model(setup);
  const WeightSet weights = random_weights(config, 1);
  TrainEngineOptions options;
  options.micro_batch_tokens_max = 512;
  options.parallel = mesh.cut;
  auto engine = TrainEngine::create(config, weights.tensors(), options, &world);
  if (!engine) throw std::runtime_error(engine.error().to_string());
  const MeshPlace place = mesh_place(mesh.cut, rank, mesh.ranks);
  const Rows all = rows_of(setup, place.dp, place.dp_size, 0, 1);
  std::vector<Rows> parts;
  for (std::int64_t part = 0; part < setup.parts; ++part)
    parts.push_back(rows_of(setup, place.dp, place.dp_size, part, setup.parts));
  must((*engine)->update_policy(all.pack.view(), all.update()));  // makes buffers and threads
  for (int round = 0; round < kRounds; ++round) {
    measured(world, rank, costs.at_once,
             [&] { must((*engine)->update_policy(all.pack.view(), all.update())); });
    if (mesh.at_once_only) continue;
    measured(world, rank, costs.streamed, [&] {
      for (const Rows& part : parts)
        must((*engine)->accumulate_policy(part.pack.view(), part.update()));
      must((*engine)->finish_step());
    });
  }
}

Costs run_mesh(const Setup& setup, const Mesh& mesh) {
  auto group = runtime::make_local_group(mesh.ranks, {.name = "bench"});
  Costs costs;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < mesh.ranks; ++rank)
    threads.emplace_back(
        [&, rank] { run_rank(setup, mesh, rank, *group[static_cast<std::size_t>(rank)], costs); });
  for (std::thread& thread : threads) thread.join();
  return costs;
}

Setup parse(int count, char** arguments) {
  Setup setup;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = arguments[i];
    if (name == "--check") setup.check = true;
    if (i + 1 >= count) continue;
    const std::int64_t value = std::atoll(arguments[i + 1]);
    if (name == "--sequences") setup.sequences = value;
    if (name == "--hidden") setup.hidden = value;
    if (name == "--layers") setup.layers = value;
    if (name == "--parts") setup.parts = value;
  }
  return setup;
}

}  // namespace

int main(int count, char** arguments) {
  const Setup setup = parse(count, arguments);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  fmt::print("{} sequences, hidden {}, {} layers, streamed in {} parts, {} cores, best of {}\n",
             setup.sequences, setup.hidden, setup.layers, setup.parts, cores, kRounds);
  fmt::print("{:<14}{:>10}{:>14}{:>12}{:>14}{:>16}\n", "mesh", "wall s", "to one rank", "to ideal",
             "CPU to one", "streamed CPU");
  double worst = 0;
  for (const Mesh& mesh : meshes()) {
    // Beside each mesh anew: what else the machine does changes over the whole run.
    const Cost one = run_mesh(setup, {.name = "one rank", .at_once_only = true}).at_once;
    const Costs costs = run_mesh(setup, mesh);
    const double ideal = one.wall / std::min(mesh.ranks, cores);
    const double streamed = costs.streamed.cpu / costs.at_once.cpu;
    worst = std::max(worst, streamed);
    fmt::print("{:<14}{:>10.3f}{:>14.2f}{:>12.2f}{:>14.2f}{:>16.3f}\n", mesh.name,
               costs.at_once.wall, costs.at_once.wall / one.wall, costs.at_once.wall / ideal,
               costs.at_once.cpu / one.cpu, streamed);
  }
  fmt::print("streamed step against one update: {:.3f} at most, wanted ≤ {}\n", worst,
             kStreamedMost);
  return setup.check && worst > kStreamedMost ? 1 : 0;
}
