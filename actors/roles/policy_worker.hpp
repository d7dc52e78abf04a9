#pragma once

// The trainer rank: a policy, or a frozen reference, over one train engine.
//
// **Ownership:** as TrainWorker; borrows the losses, and the weight port if it was given one.
// **Threads:** the engine thread of its rank only.
// **Invariants:** every rank of the group gets the same calls; a rank may have no rows.

#include "actors/algorithm/objective.hpp"
#include "actors/algorithm/processed_distribution.hpp"
#include "actors/algorithm/rollout_correction.hpp"
#include "actors/roles/publication_wire.hpp"
#include "actors/roles/role_wire.hpp"
#include "actors/roles/train_worker.hpp"
#include "actors/roles/weight_door.hpp"
#include "reshard/execution/publication_source.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace troupe::actors {

/// How log-probs are asked for.
struct LogProbRequest {
  float temperature = 1.0F;
  std::string column;          ///< name of the resulting column
  bool compare = false;        ///< also report the distance to `rollout_log_probs`
  SamplingTransform cut = {};  ///< of PolicyUpdate

  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("temperature", &LogProbRequest::temperature),
                      field("column", &LogProbRequest::column),
                      field("compare", &LogProbRequest::compare),
                      field("cut", &LogProbRequest::cut)};
  }
};

/// What an update does about data of another policy; docs/algorithms.md.
struct UpdateCorrection {
  bool reads_rollout = false;      ///< `rollout_log_probs` are needed, by what follows or the loss
  CorrectionOptions in_loss = {};  ///< applied to the current policy: `corrected_loss`
  bool reports_ratios = false;     ///< nobody else has seen the ratios: log_probs was not asked
  bool interpolates = false;       ///< proximal log-probs by `weight_versions` (proximal.hpp)
  std::int64_t version_proximal = 0;  ///< of the step's start; set by the role for each update
  double version_policy = 0;          ///< of this update; set by the role
  bool operator==(const UpdateCorrection&) const = default;

  static constexpr auto fields() {
    using runtime::field;
    using T = UpdateCorrection;
    return std::tuple{field("reads_rollout", &T::reads_rollout),
                      field("in_loss", &T::in_loss),
                      field("reports_ratios", &T::reports_ratios),
                      field("interpolates", &T::interpolates),
                      field("version_proximal", &T::version_proximal),
                      field("version_policy", &T::version_policy)};
  }
};

/// What an update needs besides the columns; the same on all ranks.
struct PolicyUpdateSettings {
  std::string loss;                  ///< name in the registry that the rank was given
  PolicyObjectiveOptions objective;  ///< a KL coefficient ≠ 0 reads `ref_log_prob`
  float temperature = 1.0F;
  double loss_scale_factor = 0;
  SamplingTransform cut = {};  ///< of PolicyUpdate
  UpdateCorrection correction = {};

  static constexpr auto fields() {
    using runtime::field;
    using T = PolicyUpdateSettings;
    return std::tuple{field("loss", &T::loss),
                      field("objective", &T::objective),
                      field("temperature", &T::temperature),
                      field("loss_scale_factor", &T::loss_scale_factor),
                      field("cut", &T::cut),
                      field("correction", &T::correction)};
  }
};

class PolicyWorker : public TrainWorker {
 public:
  static result<std::unique_ptr<PolicyWorker>> create(runtime::WorkerContext& context,
                                                      const TrainWorkerOptions& options,
                                                      WeightSeat seat = {});

  /// `prompts`, `responses` → the column named in the request, jagged f32. Metrics when compared:
  /// `training/rollout_probs_diff_{mean,max}`, `training/rollout_log_probs_diff_max`, and the raw
  /// ratios of add_ratio_metrics under `rollout_corr`.
  result<runtime::Batch> log_probs(const runtime::Batch& batch, const LogProbRequest& request);

  /// One optimizer step on this rank's share of a mini-batch: `prompts`, `responses`,
  /// `response_mask`, `old_log_probs`, `advantages`, `sequence_id` (i64); `ref_log_prob` and
  /// `rollout_weights` where there are; `rollout_log_probs` and `weight_versions` as the settings
  /// say. Metrics as in TrainEngine::update_policy.
  result<runtime::Metrics> update(const runtime::Batch& batch,
                                  const PolicyUpdateSettings& settings);

  /// A part of a streamed step: the columns of `update`, of which `old_log_probs` may be missing;
  /// weights stay. TrainEngine::accumulate_policy says more.
  result<runtime::Metrics> accumulate(const runtime::Batch& batch,
                                      const PolicyUpdateSettings& settings);
  /// The optimizer step over all parts; waits for the end of a publication that reads the weights.
  result<runtime::Metrics> finish_step();
  result<void> abandon_step();

  /// One supervised step: token-mean cross-entropy of the responses.
  result<runtime::Metrics> update_sft(const runtime::Batch& batch);
  /// Mean cross-entropy over all ranks, without an update.
  result<runtime::Metrics> sft_loss(const runtime::Batch& batch);

  /// Waits for the end of a publication that reads the weights.
  result<void> load_state(const EngineState& state);

  /// Where this rank's weights lie.
  result<WeightLayout> weight_layout();
  /// Gets ready for publications of these rosters.
  result<void> open_publication(const PublicationSetup& setup);
  /// A step of a publication: between begin and commit or abort the weights do not change, and
  /// targets read them where they lie. Errors are in the reply.
  result<reshard::Reply> publication(const reshard::Command& command);
  /// Gives the gradient buffer back until the next update; not while a streamed step needs it.
  result<void> release_gradients();

  static constexpr auto methods() {
    using namespace runtime;
    return std::tuple{
        method<&PolicyWorker::log_probs>("log_probs", args(scatter, broadcast), returns(concat))
            .phase("log_prob")
            .keep_columns(),
        method<&PolicyWorker::update>("update", args(scatter, broadcast), returns(reduce(kMerge)))
            .phase("train"),
        method<&PolicyWorker::accumulate>("accumulate", args(scatter, broadcast),
                                          returns(reduce(kMerge)))
            .phase("train"),
        method<&PolicyWorker::finish_step>("finish_step", args(), returns(reduce(kMerge)))
            .phase("train"),
        method<&PolicyWorker::abandon_step>("abandon_step", args(), returns(none)),
        method<&PolicyWorker::update_sft>("update_sft", args(scatter), returns(reduce(kMerge)))
            .phase("train"),
        method<&PolicyWorker::sft_loss>("sft_loss", args(scatter), returns(first))
            .phase("log_prob"),
        method<&PolicyWorker::weight_layout>("weight_layout", args(), returns(all)),
        method<&PolicyWorker::open_publication>("open_publication", args(broadcast), returns(none)),
        method<&PolicyWorker::publication>("publication", args(broadcast), returns(all)),
        method<&PolicyWorker::release_gradients>("release_gradients", args(), returns(none))
            .phase("release"),
        method<&PolicyWorker::weight_parts>("weight_parts", args(broadcast), returns(all)),
        method<&PolicyWorker::state>("state", args(broadcast), returns(all)),
        method<&PolicyWorker::load_state>("load_state", args(broadcast), returns(none))
            .phase("train")};
  }

 private:
  PolicyWorker(runtime::WorkerContext& context, std::shared_ptr<TrainEngine> engine,
               const PolicyLossRegistry* losses, WeightSeat seat);
  /// Held while the weights change; null when nobody ever reads them.
  result<std::unique_ptr<reshard::UpdateLease>> start_update();

  const PolicyLossRegistry* losses_;  // null: this rank updates nothing
  WeightDoor door_;
  std::unique_ptr<reshard::PublicationSource> source_;  // null before open_publication
};

}  // namespace troupe::actors
