#pragma once

// What the simulator says to the published figures.
//
// **Threads:** pure.
// **Invariants:** every function is given its constants; none has others of its own.

#include "sim/world/sim_job.hpp"
#include "tests/conformance/published.hpp"

#include <map>
#include <string>
#include <vector>

namespace troupe::conformance {

/// The job that a row describes.
result<sim::SimJob> job_of(const Row& row, const sim::Constants& constants);

/// Seconds of the phases that the row has measured; without the one that its unpublished lengths
/// were taken from.
result<std::map<std::string, double>> predict(const Row& row, const sim::Constants& constants);

/// `constants` with the software of an engine of 2024 (vLLM 0.3) without captured graphs, which
/// HybridFlow's figures were made with: the high end of the prior of `decode_sequence_host`, and
/// 5 ms a step, reference §2.2.
sim::Constants of_2024(sim::Constants constants);

/// Seconds from the end of an update until the engines have their weights.
result<double> predict(const Transition& transition, const sim::Constants& constants);

/// Seconds of generation by tensor parallelism; a size whose KV cache holds no sample is left out.
result<std::map<int, double>> predict(const GenerationTp& generation,
                                      const sim::Constants& constants);

/// Seconds of a PPO step by placement (`colocate`, `split`, `standalone`), each with its best
/// layouts and allocation.
result<std::map<std::string, double>> predict(const Placement& placement,
                                              const sim::Constants& constants);

/// Tokens a second and device, without the host's part.
result<double> predict(const Training& training, sim::Constants constants);

struct TailTime {
  double rollout_s = 0;
  double tail_s = 0;  ///< from the end of nine tenths of the samples
  std::int64_t preemptions = 0;
};
result<TailTime> predict(const Tail& tail, const sim::Constants& constants);

struct MemoryNeed {
  bool fits = false;
  double device_bytes = 0;
  double peak_bytes = 0;
};
result<MemoryNeed> predict(const MemoryFact& fact, const sim::Constants& constants);

}  // namespace troupe::conformance
