#pragma once

// One whole run of a job: the loop that its mode names, over the world of cost models, and what it
// came to.
//
//   TROUPE_TRY(const SimOutcome run, simulate(job));
//   for (const SimStep& step : run.steps) … step.span_s, step.phases_s.at("gen") …
//
// **Threads:** any; each call has a simulation of its own and shares nothing.
// **Invariants:** the same job gives the same outcome, event by event (`digest`); the idle shares
// of a pool by cause add up to its idle share.

#include "actors/loops/step_report.hpp"
#include "sim/rollout/replica.hpp"
#include "sim/world/phase_log.hpp"
#include "sim/world/pool_use.hpp"
#include "sim/world/run_trace.hpp"
#include "sim/world/sim_job.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::sim {

struct SimulateOptions {
  bool keep_phases = true;  ///< the log of phases of all steps; else only what reports need
  bool trace = false;       ///< also trajectories and the use of KV caches
  std::function<void(std::string_view)> write_event{};  ///< gets a line per event
  std::uint64_t events_max = 4'000'000'000;
  /// Called behind each step; false ends the run there.
  std::function<bool(std::int64_t step)> keep_going{};
};

struct SimStep {
  std::int64_t step = 0;  ///< from 1
  TimePoint begin{};
  TimePoint end{};
  double span_s = 0;
  /// Seconds of the loop's own phases: `gen`, `reward`, `old_log_prob`, `ref`, `values`,
  /// `update_critic`, `update_actor`, `update_weights`, `wait_for_batch`, `wait_for_samples`,
  /// `software` (the constant `iteration_host`), and `checkpoint`.
  std::map<std::string, double> phases_s{};
  std::vector<PoolUse> pools{};
  std::int64_t samples = 0;        ///< trained on
  double prompt_tokens = 0;        ///< of those
  double answer_tokens = 0;        ///< of those, environments' tokens included
  double generated_tokens = 0;     ///< by the engines in this step, for whatever step
  double tokens_per_s = 0;         ///< (prompt + answer) / span
  double tokens_per_s_device = 0;  ///< the same by all devices of all pools
  double update_mfu = 0;           ///< FLOPs of the policy's update / (its time · peak)
  double run_mfu = 0;              ///< FLOPs of all roles and the engines / (span · peak of all)
  std::map<std::int64_t, std::int64_t> staleness{};  ///< versions old at use → groups
  double span_mean = 0;  ///< versions crossed inside a sample, worst of each group
  double span_max = 0;
  /// By class of link: `local` copies, `node` (inside), `network`; and what ports and adapters
  /// sent: `device_port`, `adapter`.
  std::map<std::string, double> bytes_by_link{};
  std::int64_t preemptions = 0;
  std::int64_t replicas_lost = 0;
  std::int64_t trainer_failures = 0;
  double recomputed_tokens = 0;  ///< prefilled again: preempted, moved or after new weights
  runtime::Metrics metrics{};    ///< the loop's own report
};

/// Groups of samples: issued = trained + open at the end + dropped, by reason.
struct GroupCounts {
  std::int64_t issued = 0;
  std::int64_t trained = 0;
  std::int64_t open = 0;
  std::map<std::string, std::int64_t> dropped{};
};

struct SimOutcome {
  std::vector<SimStep> steps{};
  TimePoint end{};
  std::uint64_t digest = 0;  ///< of all events
  std::uint64_t events = 0;
  PhaseLog phases{};
  std::vector<PoolMemory> memory{};
  std::int64_t kv_pool_tokens = 0;            ///< of one engine
  std::vector<ReplicaStatistics> replicas{};  ///< of the whole run
  GroupCounts groups{};                       ///< not in the synchronous mode
  std::vector<FailureSpan> failures{};
  std::vector<WeightLanding> landings{};
  std::vector<TrajectorySpan> trajectories{};  ///< with `trace`
  std::vector<KvSample> kv{};                  ///< with `trace`
  std::vector<std::uint64_t> prompts{};        ///< of groups trained on, in order; with `trace`
};

/// Errors of `SimJob::check`, of the planner, and of the loop.
result<SimOutcome> simulate(const SimJob& job, const SimulateOptions& options = {});

}  // namespace troupe::sim
