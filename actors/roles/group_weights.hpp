#pragma once

// The role that brings the policy's weights to the rollout ranks: plans once, then publishes by
// transactions, compares what both sides then say, and counts versions.
//
//   begin on all ranks → targets receive and verify → commit on all ranks, or abort on all
//
// **Ownership:** borrows the groups, which the world owns.
// **Threads:** controller's thread.
// **Invariants:** a transfer that fails leaves the old version serving (unless the rollout role had
// put its weights to sleep) and is one error; each attempt has an epoch of its own. The canary
// comes after the commit: when it fails the new version is there, and the run ends.

#include "actors/roles/policy_worker.hpp"
#include "actors/roles/rollout_worker.hpp"
#include "reshard/execution/coordinator_core.hpp"
#include "reshard/execution/publication_plan.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/task/task.hpp"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace troupe::actors {

/// How weights get from the trainer to the rollout engine.
struct PublicationOptions {
  Bytes bucket = mebibytes(8);     ///< staging of weights from other processes; a rank has two
  int canary_tokens = 8;           ///< generated greedily by each replica after it; 0: none
  double canary_tolerance = 1e-3;  ///< most that the trainer's log-probs of them may differ
  Duration begin_within = std::chrono::minutes(1);
  Duration receive_within = std::chrono::minutes(5);
  Duration commit_within = std::chrono::minutes(1);
  /// What the rollout role gives back while others use the devices; nothing: kept until the ledger
  /// takes it.
  std::optional<SleepLevel> sleep = SleepLevel::kKv;
};

class GroupWeights {
 public:
  /// `canary`: what is asked after each publication; no tokens: nothing. `rollout_devices`: of each
  /// rollout rank; empty: rank i on device i, as the policy's ranks.
  GroupWeights(runtime::WorkerGroup<PolicyWorker>& policy,
               runtime::WorkerGroup<RolloutWorker>& rollout, const PublicationOptions& options,
               CanaryRequest canary, std::vector<int> rollout_devices = {})
      : policy_(policy),
        rollout_(rollout),
        options_(options),
        canary_(std::move(canary)),
        devices_(std::move(rollout_devices)) {}

  /// Publishes as the next version. Metrics `update_weights/{bytes, local_bytes, wire_bytes,
  /// staging_bytes, operations}`, `timing_s/update_weights_transfer`, `canary/*` and
  /// `training/weight_version`. Throws `Failure`: what went wrong, or how the canary's answers
  /// differ.
  runtime::task<runtime::Metrics> publish();
  /// Publishes again under the present version: after a start or a resume.
  runtime::task<void> publish_present();

  WeightVersion version() const { return version_; }
  void set_version(WeightVersion version) { version_ = version; }

  /// What travels; null before the first publication.
  const reshard::PublicationPlan* plan() const { return plan_.get(); }

 private:
  runtime::task<runtime::Metrics> publish_as(WeightVersion version);
  runtime::task<void> exchange_layouts();
  runtime::task<reshard::PublicationOutcome> transact(WeightVersion version);
  runtime::task<void> canary(runtime::Metrics& metrics);

  runtime::WorkerGroup<PolicyWorker>& policy_;
  runtime::WorkerGroup<RolloutWorker>& rollout_;
  const PublicationOptions options_;
  const CanaryRequest canary_;
  const std::vector<int> devices_;  ///< of each rollout rank, or empty
  SteadyClock clock_;
  std::shared_ptr<const reshard::PublicationPlan> plan_;
  std::uint64_t epoch_ = 0;  ///< of the last attempt
  WeightVersion version_{0};
};

}  // namespace troupe::actors
