#pragma once

// The columns of generated samples, from wherever samples come: an engine's answers, trajectories.
//
// **Threads:** a value that one thread fills.
// **Invariants:** names, types and order are the same for all who generate; row i is the i-th
// sample added.

#include "actors/rollout/generate_request.hpp"
#include "runtime/base/result.hpp"
#include "runtime/batch/batch.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::actors {

class ResponseColumns {
 public:
  /// `processed`: also the log-probs of the distribution that was drawn from, where it is another
  /// one.
  explicit ResponseColumns(bool processed) : processed_(processed) {}

  /// One sample [T tokens each]; `drawn_log_probs` is read when processed.
  void add(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask,
           std::span<const float> full_log_probs, std::span<const float> drawn_log_probs,
           std::span<const WeightVersion> versions, StopReason reason);

  /// `responses`, `response_mask`, `rollout_log_probs`, `weight_versions`, `stop_reason`, and when
  /// processed `rollout_processed_log_probs`.
  result<runtime::Batch> batch() &&;

 private:
  const bool processed_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint8_t> mask_;
  std::vector<float> full_log_probs_;
  std::vector<float> drawn_log_probs_;
  std::vector<std::int64_t> versions_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::string> reasons_;
};

}  // namespace troupe::actors
