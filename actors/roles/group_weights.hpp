#pragma once

// The role that brings the policy's weights to the rollout groups by transactions, goes on with
// those that survive, compares what both sides then say, and counts versions.
//
// All groups that are alive are targets of one transaction (weight_transfer.hpp). One that dies
// before, during or after it is dropped: undecided, the transaction is aborted and made again for
// the others; decided, the others have the version. One that was made anew is a target from the
// next publication on, and serves only after it.
// **Ownership:** borrows the groups, which the world owns.
// **Threads:** controller's thread.
// **Invariants:** publications come one after the other; a transfer that fails leaves the old
// version serving (unless the rollout role had put its weights to sleep) and is one error. The
// canary comes after the commit: when it fails the new version is there, and the run ends.

#include "actors/roles/policy_worker.hpp"
#include "actors/roles/rollout_replicas.hpp"
#include "actors/roles/weight_transfer.hpp"
#include "runtime/task/task.hpp"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace troupe::actors {

/// How weights get from the trainer to the rollout engines.
struct PublicationOptions {
  Bytes bucket = mebibytes(8);     ///< staging of weights from other processes; a rank has two
  int canary_tokens = 8;           ///< generated greedily by each replica after it; 0: none
  double canary_tolerance = 1e-3;  ///< most that the trainer's log-probs of them may differ
  Duration begin_within = std::chrono::minutes(1);
  Duration receive_within = std::chrono::minutes(5);
  Duration commit_within = std::chrono::minutes(1);
  /// What the rollout role gives back while others use the devices; nothing: kept until the ledger
  /// takes it. Replicas that stream keep everything.
  std::optional<SleepLevel> sleep = SleepLevel::kKv;
  /// What becomes of samples that are under way.
  WeightUpdate update = WeightUpdate::kDrain;
};

/// How long the news of a death may come after an error that it caused at others.
constexpr Duration kDeathReportWithin = std::chrono::seconds(5);

/// True of errors that somebody may have who was left alone by another.
bool may_be_of_a_death(const Error& error);

/// Of a publication's transfers.
TransferOptions transfer_options(const PublicationOptions& options);

/// What a publication goes through; all borrowed.
struct PublicationWay {
  runtime::WorkerGroup<PolicyWorker>& policy;
  RolloutReplicas& replicas;
  WeightTransfer& transfer;
  Turnstile& publishing;  ///< one publication at a time, whoever makes it
};

class GroupWeights {
 public:
  /// `canary`: what is asked after each publication; no tokens: nothing.
  GroupWeights(const PublicationWay& way, const PublicationOptions& options, CanaryRequest canary)
      : way_(way), options_(options), canary_(std::move(canary)) {}

  /// Publishes as the next version. Metrics `update_weights/{bytes, local_bytes, wire_bytes,
  /// staging_bytes, operations}`, `timing_s/update_weights_transfer`, `canary/*` and
  /// `training/weight_version`; where losses are survived, `rollout/replicas{,_lost,_revived}` and
  /// `update_weights/attempts` too. Throws `Failure`: what went wrong, or how the canary's answers
  /// differ.
  runtime::task<runtime::Metrics> publish();
  /// Publishes again under the present version: after a start or a resume. The policy's weights
  /// must be those of that version.
  runtime::task<void> publish_present();
  /// The same to one replica that was made anew, while the others go on.
  runtime::task<void> publish_present(RankId replica);

  WeightVersion version() const { return version_; }
  void set_version(WeightVersion version) { version_ = version; }

  /// What travels; null before the first publication.
  const reshard::PublicationPlan* plan() const { return way_.transfer.plan(); }

 private:
  runtime::task<runtime::Metrics> publish_as(WeightVersion version, std::optional<int> only);
  /// Until it has reached all who are alive; returns them.
  runtime::task<std::vector<int>> transfer(WeightVersion version, std::optional<int> only,
                                           runtime::Metrics& metrics);
  std::vector<int> targets(std::optional<int> only, WeightVersion version);
  /// True when somebody is lost who was not before. Those who do not answer are given up.
  runtime::task<bool> note_losses(const std::vector<int>& chosen, const TransferResult& moved);
  bool all_left_committed(const std::vector<int>& chosen, const TransferResult& moved);
  runtime::task<void> canary(const std::vector<int>& chosen, runtime::Metrics& metrics);

  const PublicationWay way_;
  const PublicationOptions options_;
  const CanaryRequest canary_;
  WeightVersion version_{0};
};

}  // namespace troupe::actors
