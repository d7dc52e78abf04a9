#pragma once

// The world of cost models: the roles that a loop program directs, on virtual time.
//
//   Simulation simulation;
//   auto world = SimWorld::create(simulation, job);
//   auto cast = cast_of(*world, advantage);
//   simulation.run_task(actors::synchronous_step(cast, prompts, 1));
//
// The loop programs are those of actors/loops, compiled as they are. A sample's token columns have
// one element here, so that a batch of thousands of long samples is a few kilobytes; its real sizes
// lie in the columns `simulated_prompt_tokens` and `simulated_tokens`, and the world's own metrics
// are made of those.
// **Ownership:** borrows the simulation; owns engines, links and the log of phases.
// **Threads:** one.
// **Invariants:** satisfies `actors::World`; the same job and seed give the same event log.

#include "actors/loops/cast.hpp"
#include "actors/loops/world.hpp"
#include "sim/engine/simulation.hpp"
#include "sim/network/shared_links.hpp"
#include "sim/rollout/replica.hpp"
#include "sim/world/phase_log.hpp"
#include "sim/world/sim_job.hpp"
#include "sim/world/weight_traffic.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::sim {

namespace column {
inline constexpr std::string_view kPromptTokens = "simulated_prompt_tokens";  ///< i64, one a row
inline constexpr std::string_view kTokens = "simulated_tokens";               ///< i64, generated
}  // namespace column

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
    explicit Reward(SimWorld& world) : world_(world) {}
    runtime::task<runtime::Batch> score(runtime::Batch batch);

   private:
    SimWorld& world_;
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
    const TrainCost& cost() const { return cost_; }

   private:
    SimWorld& world_;
    const std::string name_;
    const SimTrainedRole& role_;
    const TrainCost cost_;
    const std::string column_;
  };
  class Weights {
   public:
    explicit Weights(SimWorld& world) : world_(world) {}
    runtime::task<runtime::Metrics> publish();
    WeightVersion version() const { return version_; }

   private:
    SimWorld& world_;
    WeightVersion version_{0};
  };
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

  /// Prompt rows of step `step` (from 1): `prompts`, `prompt_ids`, and their lengths.
  runtime::Batch prompts_of(std::int64_t step) const;

  const SimJob& job() const { return job_; }
  const WeightTraffic& traffic() const { return traffic_; }
  PhaseLog& phases() { return phases_; }
  const SharedLinks& links() const { return links_; }
  const WorldTotals& totals() const { return totals_; }
  /// Bytes that device ports and adapters sent.
  double port_bytes() const;
  double adapter_bytes() const;
  std::vector<ReplicaStatistics> replica_statistics() const;

 private:
  SimWorld(Simulation& simulation, const SimJob& job)
      : simulation_(simulation), job_(job), rollout_(*this), reward_(*this), weights_(*this) {}
  result<void> build();
  result<void> add_links();
  std::vector<LinkId> path_of(const TrafficFlow& flow) const;
  void on_finished(Replica& replica, const SimSequence& sequence) override;
  void on_sent(Simulation& simulation, std::uint64_t flow) override;
  void log_phase(const SimTrainedRole& role, const std::string& name, const char* phase,
                 TimePoint begin);

  Simulation& simulation_;
  const SimJob job_;
  std::optional<LengthModel> prompt_lengths_;
  std::optional<LengthModel> answer_lengths_;
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
  Countdowns countdowns_;
  std::map<std::uint64_t, std::uint64_t> countdown_of_sequence_;
  std::map<std::uint64_t, std::uint64_t> countdown_of_flow_;
  std::uint64_t last_sequence_ = 0;
  PhaseLog phases_;
  WorldTotals totals_;
  Rollout rollout_;
  Reward reward_;
  std::optional<Trained> policy_;
  std::optional<Trained> reference_;
  std::optional<Trained> critic_;
  Weights weights_;
};

/// The world's cast, as its job has it; `advantage` and the world outlive it.
inline actors::Cast<SimWorld> cast_of(SimWorld& world, actors::AdvantageStep& advantage) {
  return {.world = world,
          .rollout = world.rollout(),
          .reward = world.reward(),
          .policy = world.policy(),
          .reference = world.reference(),
          .critic = world.critic(),
          .weights = world.weights(),
          .advantage = advantage,
          .sampling = {},
          .group_size = world.job().group_size};
}

}  // namespace troupe::sim
