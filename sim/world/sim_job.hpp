#pragma once

// What is simulated: devices, who sits on them in which layout, and the work of a training run.
//
// **Threads:** a value type.
// **Invariants:** `check` has passed wherever a job is used.

#include "actors/loops/rollout_book.hpp"
#include "sim/cost/constants.hpp"
#include "sim/cost/decode_cost.hpp"
#include "sim/cost/device_spec.hpp"
#include "sim/cost/model_spec.hpp"
#include "sim/cost/train_cost.hpp"
#include "sim/rollout/replica.hpp"
#include "sim/workload/lengths.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::sim {

/// Equal devices, numbered one node after the other.
struct DevicePool {
  std::string name{};
  DeviceSpec device{};
  int devices = 0;
};

/// A role that is trained or run forward: a model in a layout on a pool. `layout.devices()` of the
/// pool's devices, from the first.
struct SimTrainedRole {
  ModelSpec model{};
  TrainLayout layout{};
  std::size_t pool = 0;
};

struct SimRollout {
  EngineLayout layout{};
  int replicas = 1;
  std::size_t pool = 0;
  ReplicaOptions engine{};
};

/// Rule rewards on CPUs: declared times.
struct SimReward {
  double sample_s = 0.001;  ///< of one worker, median
  double sigma = 0;         ///< of its logarithm
  int workers = 8;
};

/// The loop program that runs.
enum class SimMode : std::uint8_t { kSynchronous, kOneStepOff, kAsynchronous, kPipelined };
/// `sync`, `one_step_off`, `async`, `pipelined`.
std::string_view sim_mode_name(SimMode mode);
/// kNotFound with the nearest name.
result<SimMode> sim_mode_from_name(std::string_view name);

/// What becomes of KV caches when new weights come in flight.
enum class KvAtUpdate : std::uint8_t {
  kKeep,       ///< of the old weights, as it is
  kRecompute,  ///< everything that runs is prefilled again
};
/// `keep`, `recompute`.
std::string_view kv_at_update_name(KvAtUpdate kv);

/// How far rollout runs ahead, and which tools against stragglers are on: the options of a real
/// run. Read unless the mode is synchronous.
struct SimPacing {
  /// η is `ledger.lead_max`; its groups per step and its steps are the job's.
  actors::LedgerOptions ledger{.groups_per_step = 1, .lead_max = 1};
  actors::DispatchOptions dispatch{};  ///< its group size is the job's
  actors::TakeOrder order = actors::TakeOrder::kReady;
  std::int64_t groups_per_part = 16;  ///< of a pipelined step
  KvAtUpdate kv = KvAtUpdate::kKeep;
  /// Longest time that a replica goes on without telling how far it is. Real engines do every
  /// 20 ms; here as soon when something may bring it work, and else so.
  double slice_max_s = 10;
};

/// Devices that are slower than their kind: declared.
struct SimStragglers {
  double replica_share = 0;   ///< probability that a replica is slow, for the whole run
  double replica_factor = 1;  ///< times as long its steps take
  double step_share = 0;      ///< probability that an update of a trained role is slow
  double step_factor = 1;     ///< times as long it takes then
};

/// Exponential times between failures of one device: declared. 0: never.
struct SimFailures {
  double rollout_mtbf_s = 0;  ///< of one device; a replica dies with any of its own
  double rollout_restart_s = 60;
  double trainer_mtbf_s = 0;  ///< of one device; a role dies with any of its own
  double trainer_restart_s = 300;
  std::int32_t restarts_max = 1'000;  ///< of one replica
};

/// What the trained roles save.
struct SimCheckpoints {
  std::int64_t every_steps = 0;  ///< 0: never
  double bytes = 0;              ///< 0: weights and optimizer states of all trained roles
  double rate = 2e9;             ///< bytes/s to storage, all devices together
};

/// Tools or observations between turns of a sample: declared times.
struct SimEnvironment {
  int turns_min = 1;  ///< of a sample, the last one included; equally likely up to
  int turns_max = 4;
  double turn_s = 1;                ///< of the environment, median
  double sigma = 0;                 ///< of its logarithm
  std::int64_t tokens_a_turn = 64;  ///< that it adds
  int workers = 256;                ///< turns at a time
};

/// One process through which every batch goes to a trained role and back, padded to the longest
/// possible row, as verl's controller has it: software, whose time does not shrink with devices.
struct SimController {
  std::int64_t row_tokens = 0;  ///< prompt and answer; 0: ranks hand rows on, which costs nothing
  double token_bytes = 56;      ///< of all columns of a call: five of 8 bytes, four of 4
};

struct SimJob {
  std::uint64_t seed = 1;
  SimMode mode = SimMode::kSynchronous;
  std::int64_t steps = 1;
  SimPacing pacing{};
  std::vector<DevicePool> pools{};
  SimTrainedRole policy{};
  std::optional<SimTrainedRole> reference{};
  std::optional<SimTrainedRole> critic{};
  SimRollout rollout{};
  SimReward reward{};
  SimController controller{};
  /// Scores by a forward pass behind the rule's time; frozen. Beside training it needs devices that
  /// do not generate.
  std::optional<SimTrainedRole> reward_model{};
  std::int64_t prompts_per_step = 64;
  std::int64_t group_size = 8;
  std::int64_t minibatch_prompts = 64;
  std::int64_t epochs = 1;  ///< over the batch of a step
  /// Roles of different pools evaluate and learn at the same time; those of one take turns.
  bool side_by_side = false;
  /// Weights go by whole tensors, as in a checkpoint: every device of the policy gathers all of
  /// them and devices of engines keep their part. Else by the plan, from shard to shard.
  bool whole_tensors = false;
  /// Moves of weights take what their busiest link needs for its bytes: a lower bound that costs
  /// nothing, for searches. Else flow by flow, max-min fair.
  bool quick_moves = false;
  LengthOptions prompt_lengths{};
  LengthOptions answer_lengths{};  ///< of all turns together
  SimStragglers stragglers{};
  SimFailures failures{};
  SimCheckpoints checkpoints{};
  std::optional<SimEnvironment> environment{};  ///< not in the synchronous mode
  Constants constants{};

  /// Rollout stands on devices of its own; else they are lent while the trainer waits.
  bool own_rollout() const { return rollout.pool != policy.pool; }

  /// Layouts that divide, pools that are large enough, memory that suffices for everything that
  /// shares a device: kInvalidArgument or kResourceExhausted naming role, pool and both values.
  result<void> check() const;
};

/// Bytes on the fullest device of a pool, by role.
struct PoolMemory {
  std::string pool{};
  double device_bytes = 0;
  struct Entry {
    std::string role{};
    double bytes = 0;       ///< while the role works
    double kept_bytes = 0;  ///< while others do
  };
  std::vector<Entry> entries{};
  /// Most that is there at once: one role works, the others keep what they keep.
  double peak() const;
};

std::vector<PoolMemory> memory_of(const SimJob& job);

}  // namespace troupe::sim
