#pragma once

// What is simulated: devices, who sits on them in which layout, and the work of a training run.
//
// **Threads:** a value type.
// **Invariants:** `check` has passed wherever a job is used.

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

struct SimJob {
  std::uint64_t seed = 1;
  std::vector<DevicePool> pools{};
  SimTrainedRole policy{};
  std::optional<SimTrainedRole> reference{};
  std::optional<SimTrainedRole> critic{};
  SimRollout rollout{};
  SimReward reward{};
  std::int64_t prompts_per_step = 64;
  std::int64_t group_size = 8;
  std::int64_t minibatch_prompts = 64;
  std::int64_t epochs = 1;  ///< over the batch of a step
  LengthOptions prompt_lengths{};
  LengthOptions answer_lengths{};
  Constants constants{};

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
