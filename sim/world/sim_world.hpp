#pragma once

// The world of cost models: the roles that a loop program directs, on virtual time.
//
//   Simulation simulation;
//   auto world = SimWorld::create(simulation, job);
//   auto cast = cast_of(*world, advantage);
//   simulation.run_task(actors::synchronous_step(cast, prompts, 1));
//
// The loop programs are those of actors/loops, compiled as they are. A token id of a simulated
// sample is a number of real tokens (sample_plan.hpp), so that a batch of thousands of long samples
// is a few kilobytes, and the world's own metrics are made of real sizes.
//
// In the synchronous mode the rollout generates whole batches; in the others it streams
// (streaming.hpp) and weights land while engines wait. Beside its cost models the world has what
// the job declares: slow devices, failures, checkpoints, environments.
// **Ownership:** borrows the simulation; owns engines, links and the log of phases.
// **Threads:** one.
// **Invariants:** satisfies `actors::World`; the same job and seed give the same event log.

#include "actors/loops/cast.hpp"
#include "actors/loops/world.hpp"
#include "sim/engine/simulation.hpp"
#include "sim/network/shared_links.hpp"
#include "sim/rollout/replica.hpp"
#include "sim/world/phase_log.hpp"
#include "sim/world/run_trace.hpp"
#include "sim/world/sample_plan.hpp"
#include "sim/world/sim_job.hpp"
#include "sim/world/streaming.hpp"
#include "sim/world/weight_traffic.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::sim {

/// Sums since the start, of which steps are the differences.
struct WorldTotals {
  std::int64_t samples = 0;  ///< trained on
  double prompt_tokens = 0;
  double answer_tokens = 0;
  double update_flops = 0;  ///< of the policy
  double update_peak = 0;   ///< FLOPs that its devices could have done in that time
  double flops = 0;         ///< of all trained roles; of samples, once each, when they end
  double local_bytes = 0;   ///< of weights
  double node_bytes = 0;
  double network_bytes = 0;
  std::int64_t trainer_failures = 0;
};

/// Equal workers that take work in the order in which it comes.
class WorkerPool {
 public:
  explicit WorkerPool(int workers);
  /// When work of `span_s` that comes now is done.
  TimePoint done(TimePoint now, double span_s);

 private:
  std::priority_queue<TimePoint, std::vector<TimePoint>, std::greater<>> free_;
};

/// Waits for a number of events; many may be under way.
class Countdowns {
 public:
  /// Number to give to `arrive`, and what to await; over at once when `count` is 0.
  std::pair<std::uint64_t, runtime::pending<int>> start(std::int64_t count);
  void arrive(std::uint64_t number);

 private:
  struct One {
    std::int64_t left;
    runtime::completer<int> done;
  };
  std::map<std::uint64_t, One> open_;
  std::uint64_t last_ = 0;
};

class SimWorld : private ReplicaListener, private FlowListener {
 public:
  class Rollout {
   public:
    explicit Rollout(SimWorld& world) : world_(world) {}
    runtime::task<runtime::Batch> generate(runtime::Batch prompts,
                                           actors::SamplingOptions sampling);
    runtime::task<void> sleep(bool publication_follows);

   private:
    SimWorld& world_;
  };
  class Reward {
   public:
    explicit Reward(SimWorld& world) : world_(world), workers_(world.job_.reward.workers) {}
    runtime::task<runtime::Batch> score(runtime::Batch batch);

   private:
    SimWorld& world_;
    WorkerPool workers_;
  };
  class Environment {
   public:
    explicit Environment(SimWorld& world, const SimEnvironment& declared)
        : world_(world), declared_(declared), workers_(declared.workers) {}
    runtime::task<std::vector<actors::EnvironmentAnswer>> turn(
        std::vector<actors::EnvironmentTurn> turns);

   private:
    SimWorld& world_;
    const SimEnvironment& declared_;
    WorkerPool workers_;
  };
  /// Policy, reference and critic.
  class Trained {
   public:
    Trained(SimWorld& world, std::string name, const SimTrainedRole& role, TrainCost cost,
            std::string_view column)
        : world_(world),
          name_(std::move(name)),
          role_(role),
          cost_(std::move(cost)),
          column_(column) {}
    runtime::task<runtime::Batch> log_probs(runtime::Batch batch);
    runtime::task<runtime::Batch> values(runtime::Batch batch) {
      return log_probs(std::move(batch));
    }
    runtime::task<runtime::Metrics> update(runtime::Batch batch);
    /// Gradients of a part; no optimizer step.
    runtime::task<runtime::Metrics> accumulate(runtime::Batch part);
    runtime::task<runtime::Metrics> finish_step();
    /// There are no gradients to forget.
    runtime::task<void> abandon_step() { co_return; }
    const TrainCost& cost() const { return cost_; }

   private:
    /// Is busy so long; slow devices and failures make it longer. The seconds it was busy.
    runtime::task<double> train(double span_s);
    runtime::Metrics count_update(const runtime::Batch& batch, const TrainWork& work,
                                  double spent_s);
    /// Sleeps for what a failure since the last look costs.
    runtime::task<void> survive();
    void draw_failure();

    SimWorld& world_;
    const std::string name_;
    const SimTrainedRole& role_;
    const TrainCost cost_;
    const std::string column_;
    std::uint64_t updates_ = 0;
    std::uint64_t failures_ = 0;
    std::optional<TimePoint> next_failure_{};
  };
  class Weights {
   public:
    explicit Weights(SimWorld& world) : world_(world) {}
    runtime::task<runtime::Metrics> publish() { return move(version_.value + 1); }
    /// To replicas that were made anew.
    runtime::task<void> publish_present();
    WeightVersion version() const { return version_; }

   private:
    runtime::task<runtime::Metrics> move(std::int64_t version);

    SimWorld& world_;
    WeightVersion version_{0};
  };
  using Streaming = SimStreaming;
  using Policy = Trained;
  using Reference = Trained;
  using Critic = Trained;

  /// Errors of `SimJob::check` and of the planner.
  static result<std::unique_ptr<SimWorld>> create(Simulation& simulation, const SimJob& job);
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  const Clock& clock() const { return simulation_.clock(); }
  Rollout& rollout() { return rollout_; }
  Reward& reward() { return reward_; }
  Trained& policy() { return *policy_; }
  Trained* reference() { return reference_ ? &*reference_ : nullptr; }
  Trained* critic() { return critic_ ? &*critic_ : nullptr; }
  Weights& weights() { return weights_; }
  /// Absent in the synchronous mode.
  SimStreaming* streaming() { return streaming_.get(); }
  Environment* environment() { return environment_ ? &*environment_ : nullptr; }

  /// Prompt rows of step `step` (from 1): `prompts`, `prompt_ids`.
  runtime::Batch prompts_of(std::int64_t step) const;
  /// Saves trained roles, when step `step` is one behind which that is done; seconds.
  runtime::task<double> save_behind(std::int64_t step);
  /// Everything that goes on is in the log up to now.
  void flush_phases();

  const SimJob& job() const { return job_; }
  const WeightTraffic& traffic() const { return traffic_; }
  PhaseLog& phases() { return phases_; }
  const SharedLinks& links() const { return links_; }
  WorldTotals totals() const;
  RunTrace& trace() { return trace_; }
  const SamplePlan& plan() const { return *plan_; }
  /// Of one engine.
  std::int64_t kv_pool_tokens() const { return kv_pool_tokens_; }
  /// Bytes that device ports and adapters sent.
  double port_bytes() const;
  double adapter_bytes() const;
  std::vector<ReplicaStatistics> replica_statistics() const;

 private:
  SimWorld(Simulation& simulation, const SimJob& job)
      : simulation_(simulation), job_(job), rollout_(*this), reward_(*this), weights_(*this) {}
  result<void> build();
  result<void> add_engines();
  runtime::task<void> move_weights();
  double busiest_link_s() const;  ///< of a move of the weights, with its latency
  result<void> add_links();
  std::vector<LinkId> path_of(const TrafficFlow& flow) const;
  void on_finished(Replica& replica, const SimSequence& sequence) override;
  void on_sent(Simulation& simulation, std::uint64_t flow) override;
  /// Keeps the trained roles' devices of a pool busy for `span`, behind who came before. When it
  /// began.
  runtime::task<TimePoint> take_turn(std::size_t pool, Duration span);
  /// A batch of so many rows goes to a role and back, through the controller if there is one.
  runtime::task<void> hand_over(std::int64_t rows);
  void log_phase(const SimTrainedRole& role, const std::string& name, const char* phase,
                 TimePoint begin);

  Simulation& simulation_;
  const SimJob job_;
  std::optional<SamplePlan> plan_;
  std::optional<DecodeCost> decode_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  SharedLinks links_;
  struct DeviceLinks {
    LinkId out, in;  ///< port of the device
    LinkId nic_out, nic_in;
  };
  std::vector<DeviceLinks> device_links_;  ///< by number over all pools
  std::vector<double> nic_latency_;        ///< by device
  WeightTraffic traffic_;
  std::int64_t moves_ = 0;  ///< of the weights; the first over the links, flow by flow
  Duration move_span_{};
  Countdowns countdowns_;
  std::map<std::uint64_t, std::uint64_t> countdown_of_sequence_;
  std::map<std::uint64_t, std::uint64_t> countdown_of_flow_;
  std::uint64_t last_sequence_ = 0;
  PhaseLog phases_;
  RunTrace trace_;
  WorldTotals totals_;
  std::map<std::size_t, TimePoint> free_at_;  ///< of the trained roles of a pool
  TimePoint saved_at_{};                      ///< what trained roles go back to
  std::int64_t kv_pool_tokens_ = 0;
  std::unique_ptr<SimStreaming> streaming_;
  std::optional<Environment> environment_;
  Rollout rollout_;
  Reward reward_;
  std::optional<Trained> policy_;
  std::optional<Trained> reference_;
  std::optional<Trained> critic_;
  std::optional<Trained> reward_model_;
  Weights weights_;
};

/// The world's cast, as its job has it; `advantage` and the world outlive it.
inline actors::Cast<SimWorld> cast_of(SimWorld& world, actors::AdvantageStep& advantage) {
  actors::Cast<SimWorld> cast{.world = world,
                              .rollout = world.rollout(),
                              .reward = world.reward(),
                              .policy = world.policy(),
                              .reference = world.reference(),
                              .critic = world.critic(),
                              .weights = world.weights(),
                              .advantage = advantage,
                              .sampling = {},
                              .group_size = world.job().group_size};
  cast.sampling.max_new_tokens = world.plan().chunks_max();
  cast.streaming = world.streaming();
  cast.environment = world.environment();
  cast.side_by_side = world.job().side_by_side;
  return cast;
}

}  // namespace troupe::sim
