#include "actors/algorithm/proximal.hpp"

#include "actors/algorithm/token_math.hpp"

#include <cmath>

namespace troupe::actors {

result<ProximalSource> proximal_source_from_name(std::string_view name) {
  if (name == "recompute") return ProximalSource::kRecompute;
  if (name == "loglinear") return ProximalSource::kLogLinear;
  if (name == "rollout") return ProximalSource::kRollout;
  return fail(ErrorCode::kConfig, "proximal: unknown '{}', wanted recompute, loglinear or rollout",
              name);
}

result<std::vector<float>> proximal_alphas(const TokenBatchView& batch,
                                           std::span<const std::int64_t> token_versions,
                                           const ProximalVersions& versions) {
  TROUPE_TRY_VOID(batch.check());
  if (token_versions.size() != batch.tokens())
    return fail(ErrorCode::kInvalidArgument,
                "weight_versions: {} entries, wanted {} (one per token)", token_versions.size(),
                batch.tokens());
  const auto proximal = static_cast<double>(versions.proximal);
  if (!(std::isfinite(versions.policy) && versions.policy >= proximal))
    return fail(ErrorCode::kInvalidArgument, "policy version {}, wanted {} (proximal) or more",
                versions.policy, versions.proximal);
  std::vector<float> alphas(batch.tokens(), 0.0F);
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const std::int64_t version = token_versions[t];
      if (version < 0 || version > versions.proximal)
        return fail(ErrorCode::kInvalidArgument,
                    "weight_versions: sequence {} token {} is of version {}, wanted 0 to {} "
                    "(proximal)",
                    s, t - batch.begin(s), version, versions.proximal);
      const double way = versions.policy - static_cast<double>(version);
      // A token of the very weights that are trained: its proximal policy is they.
      alphas[t] =
          way > 0 ? static_cast<float>((proximal - static_cast<double>(version)) / way) : 1.0F;
    }
  }
  return alphas;
}

result<std::vector<float>> interpolated_log_probs(const TokenBatchView& batch,
                                                  std::span<const float> log_probs,
                                                  std::span<const float> rollout_log_probs,
                                                  std::span<const float> alphas) {
  TROUPE_TRY_VOID(batch.check());
  TROUPE_TRY_VOID(check_log_probs(batch, log_probs, "log_probs"));
  TROUPE_TRY_VOID(check_log_probs(batch, rollout_log_probs, "rollout_log_probs"));
  TROUPE_TRY_VOID(check_tokens(batch, alphas, "proximal_alphas"));
  std::vector<float> proximal(batch.tokens(), 0.0F);
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const double alpha = alphas[t];
      if (!(alpha >= 0 && alpha <= 1))
        return fail(ErrorCode::kInvalidArgument,
                    "proximal_alphas: sequence {} token {} is {}, wanted 0 to 1", s,
                    t - batch.begin(s), alpha);
      const double way = log_ratio(log_probs[t], rollout_log_probs[t]).value;
      if (alpha == 1)
        proximal[t] = log_probs[t];
      else
        proximal[t] = static_cast<float>(double{rollout_log_probs[t]} + alpha * way);
    }
  }
  return proximal;
}

}  // namespace troupe::actors
