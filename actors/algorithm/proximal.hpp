#pragma once

// The proximal policy of decoupled PPO (Hilton et al. 2021, "Batch size-invariance for policy
// optimization", arXiv 2110.00641): the centre of the clip, which is the policy at the start of the
// step and not the one that sampled.
//
// Its log-probs come from one of three places (`ProximalSource`): a forward pass at the start of
// the step (exact); the rollout's own log-probs (then it is plain PPO whose clip centre is the
// behaviour policy); or a line between the two in log space, which saves the pass (AReaL,
// `prox_logp_method=loglinear`):
//   log π_prox = log π_b + α (log π_θ - log π_b),  α = (v_prox - v_b) / (v_θ - v_b).
// **Gradient:** the result is a constant, also where log π_θ entered it.
// **Threads:** pure functions. **Cost:** O(T), one [T] vector out.

#include "actors/algorithm/token_batch.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::actors {

enum class ProximalSource {
  kRecompute,  ///< forward pass at the start of the step
  kLogLinear,  ///< interpolated between rollout and current log-probs, by versions
  kRollout,    ///< the rollout's log-probs; verl's bypass_mode
};
/// recompute, loglinear, rollout; kConfig otherwise.
result<ProximalSource> proximal_source_from_name(std::string_view name);

struct ProximalVersions {
  std::int64_t proximal = 0;  ///< v_prox: weights at the start of the step
  /// v_θ ≥ v_prox: of the weights whose log-probs are interpolated. v_prox + k/n before update k of
  /// n of the step: exact at k = 0. AReaL's v_prox + 1 throughout is coarser.
  double policy = 0;
};

/// α of each token from the version that sampled it, i64 [T] → f32 [T] in [0, 1]; 1 where
/// v_θ = v_prox, 0 on masked tokens. kInvalidArgument naming sequence and token where a token is of
/// a version after v_prox or before 0.
result<std::vector<float>> proximal_alphas(const TokenBatchView& batch,
                                           std::span<const std::int64_t> token_versions,
                                           const ProximalVersions& versions);

/// f32 [T], [T], α [T] → f32 [T]. α = 1 gives log π_θ and α = 0 log π_b, bit for bit; between, the
/// log-ratio is held within ±20.
result<std::vector<float>> interpolated_log_probs(const TokenBatchView& batch,
                                                  std::span<const float> log_probs,
                                                  std::span<const float> rollout_log_probs,
                                                  std::span<const float> alphas);

}  // namespace troupe::actors
