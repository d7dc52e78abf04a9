#pragma once

// What a run writes down for traces and reports beside its phases.
//
// **Threads:** value types.

#include "runtime/base/clock.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::sim {

/// An attempt at a sample on one engine, or its stay in an environment.
struct TrajectorySpan {
  std::uint64_t group = 0;
  std::uint32_t sample = 0;
  int replica = -1;  ///< −1: in its environment
  TimePoint begin{};
  TimePoint end{};
  std::int64_t tokens = 0;          ///< generated in it
  std::int64_t oldest_version = 0;  ///< of those
  std::int64_t newest_version = 0;
  std::string outcome{};  ///< `finished`, `turn`, `interrupted`, `lost`
};

/// Weights on their way to the engines.
struct WeightLanding {
  std::int64_t version = 0;
  TimePoint begin{};
  TimePoint end{};
};

/// KV cache of a replica at one time.
struct KvSample {
  int replica = 0;
  TimePoint at{};
  std::int64_t tokens = 0;
  std::int64_t running = 0;
  std::int64_t waiting = 0;
};

/// Something that broke; `end`: it works again.
struct FailureSpan {
  std::string role{};  ///< `rollout`, `policy`
  int replica = -1;    ///< of the rollout
  TimePoint begin{};
  TimePoint end{};
};

/// What roles write down while they work.
struct RunTrace {
  bool whole = false;  ///< also `trajectories` and `kv`
  std::vector<TrajectorySpan> trajectories{};
  std::vector<KvSample> kv{};
  std::vector<FailureSpan> failures{};
  std::vector<WeightLanding> landings{};
  std::vector<std::uint64_t> prompts{};  ///< trained on, a row of a group each; with `whole`
};

}  // namespace troupe::sim
