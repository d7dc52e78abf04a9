#include "actors/roles/update_columns.hpp"

#include "actors/loops/columns.hpp"

#include <numeric>
#include <string_view>
#include <utility>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;

namespace {

/// The column, or nothing when the batch has none.
result<std::vector<float>> present_values(const Batch& batch, std::string_view name,
                                          const PackedBatch& packed) {
  if (!batch.has(name)) return std::vector<float>();
  return token_values(batch, name, packed);
}

/// α of each token, from the version that sampled it.
result<std::vector<float>> alphas_of(const Batch& batch, const UpdateColumns& columns,
                                     const UpdateCorrection& correction) {
  TROUPE_TRY(const Column versions, batch.require(column::kVersions));
  const std::vector<std::int64_t>& lengths = columns.packed.response_lengths;
  if (versions.row_lengths() != lengths)
    return fail(ErrorCode::kConflict, "update: {} has other row lengths than {}", column::kVersions,
                column::kResponses);
  std::vector<std::int64_t> offsets(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
  const std::vector<std::int64_t> values = versions.values<std::int64_t>();
  return proximal_alphas(
      TokenBatchView{.offsets = offsets, .mask = columns.mask}, values,
      {.proximal = correction.version_proximal, .policy = correction.version_policy});
}

}  // namespace

result<UpdateColumns> UpdateColumns::read(const Batch& local,
                                          const PolicyUpdateSettings& settings) {
  UpdateColumns columns;
  TROUPE_TRY(columns.packed, pack_batch(local));
  TROUPE_TRY(columns.mask, response_mask(local, columns.packed));
  TROUPE_TRY(columns.old_log_probs, present_values(local, column::kOldLogProbs, columns.packed));
  TROUPE_TRY(columns.advantages, token_values(local, column::kAdvantages, columns.packed));
  TROUPE_TRY(columns.reference_log_probs,
             present_values(local, column::kReferenceLogProbs, columns.packed));
  TROUPE_TRY(columns.rollout_weights,
             present_values(local, column::kRolloutWeights, columns.packed));
  if (settings.correction.reads_rollout) {
    TROUPE_TRY(columns.rollout_log_probs,
               token_values(local, column::kRolloutLogProbs, columns.packed));
  }
  if (settings.correction.interpolates) {
    TROUPE_TRY(columns.proximal_alphas, alphas_of(local, columns, settings.correction));
  }
  TROUPE_TRY(const Column ids, local.require(column::kSequenceId));
  columns.sequence_ids = ids.values<std::int64_t>();
  return columns;
}

PolicyUpdate UpdateColumns::update(PolicyLoss loss, const PolicyUpdateSettings& settings) const {
  return PolicyUpdate{.old_log_probs = old_log_probs,
                      .advantages = advantages,
                      .mask = mask,
                      .reference_log_probs = reference_log_probs,
                      .rollout_weights = rollout_weights,
                      .rollout_log_probs = rollout_log_probs,
                      .proximal_alphas = proximal_alphas,
                      .sequence_ids = sequence_ids,
                      .temperature = settings.temperature,
                      .cut = settings.cut,
                      .loss = std::move(loss),
                      .objective = settings.objective,
                      .loss_scale_factor = settings.loss_scale_factor,
                      .reports_ratios = settings.correction.reports_ratios};
}

result<PolicyLoss> update_loss(const PolicyLossRegistry& losses,
                               const PolicyUpdateSettings& settings) {
  TROUPE_TRY(PolicyLoss loss, losses.find(settings.loss));
  return corrected_loss(std::move(loss), settings.correction.in_loss);
}

}  // namespace troupe::actors
