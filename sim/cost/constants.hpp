#pragma once

// The constants of the cost models that no data sheet gives: shares of peak, latencies, software
// costs. Each has a prior, a range and a source; calibration moves them, reports print them.
//
// **Threads:** value types.
// **Invariants:** a constant lies inside its range; nothing else in the models is tuned.

#include "runtime/base/result.hpp"

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace troupe::sim {

enum class Constant : std::size_t {
  kGemmShare,         ///< of peak FLOPs, large matrices
  kWeightReadShare,   ///< of HBM rate, when weights are read for few tokens
  kKvReadShare,       ///< of HBM rate, attention over the KV cache
  kTrainShare,        ///< of the GEMM rate that training keeps beside its GEMMs
  kAttentionShare,    ///< of the GEMM rate that attention reaches over whole sequences
  kExpertShare,       ///< of the GEMM rate that routed experts' grouped matrices reach in training
  kExpertUnevenness,  ///< tokens of the rank whose experts are chosen most over the mean of ranks
  kDecodeStepHost,    ///< s a decode step takes on the host
  kLayerKernels,      ///< s that the kernels of a layer take in a decode step beside their bytes
  kDecodeSequenceHost,  ///< s more for each running sequence
  kNvlinkShare,         ///< of the NVLink rate that collectives reach
  kNicShare,            ///< of the adapter's rate that collectives reach
  kNvlinkLatency,       ///< s a hop
  kNicLatency,          ///< s a hop
  kIterationHost,       ///< s of software per training step
  kMinibatchHost,       ///< s of software per optimizer step
  kPassHost,            ///< s of software per forward pass of a trained or frozen role over a batch
  kTransitionHost,      ///< s of software per change between training and generation
  kControllerRate,      ///< bytes/s of one process through which padded batches go
  kPageableRate,        ///< bytes/s between a device and host memory that is not pinned
  kEngineMemoryShare,   ///< of HBM that a rollout engine may take
  kEngineWorkspace,     ///< bytes beside weights and KV cache
  kKvFragmentation,     ///< of the KV pool that cannot be used
  kCount,
};
inline constexpr std::size_t kConstants = static_cast<std::size_t>(Constant::kCount);

struct ConstantInfo {
  std::string_view name;
  double prior;
  double low;
  double high;
  std::string_view unit;
  std::string_view source;
};

/// What is known of each constant before anything is measured.
std::span<const ConstantInfo, kConstants> constant_table();
const ConstantInfo& info_of(Constant constant);
/// kNotFound with the nearest name.
result<Constant> constant_from_name(std::string_view name);

class Constants {
 public:
  /// Priors.
  Constants();
  double operator[](Constant constant) const { return values_[static_cast<std::size_t>(constant)]; }
  /// kInvalidArgument naming the constant, the value and its range.
  result<void> set(Constant constant, double value);
  bool operator==(const Constants&) const = default;

 private:
  std::array<double, kConstants> values_;
};

}  // namespace troupe::sim
