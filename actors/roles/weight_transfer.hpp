#pragma once

// `WeightTransfer`: one publication transaction from the policy's ranks to any number of rollout
// groups, and the plan that it follows.
//
//   begin on all ranks → targets receive and verify → commit on all ranks, or abort on all
//
// **Ownership:** borrows the policy's group; targets live until `run` is over.
// **Threads:** controller's thread.
// **Invariants:** one `run` at a time; each has an epoch of its own. The plan is made anew when the
// targets are not those of the last run, and after one that failed. An error leaves the old version
// serving everywhere, unless `committed` says otherwise.

#include "actors/roles/policy_worker.hpp"
#include "actors/roles/rollout_worker.hpp"
#include "reshard/execution/coordinator_core.hpp"
#include "reshard/execution/publication_plan.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/task/task.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

struct TransferOptions {
  Bytes bucket = mebibytes(8);  ///< staging of weights from other processes; a rank has two
  Duration begin_within = std::chrono::minutes(1);
  Duration receive_within = std::chrono::minutes(5);
  Duration commit_within = std::chrono::minutes(1);
  /// What becomes of samples that are under way in the rollout engines.
  WeightUpdate update = WeightUpdate::kDrain;
};

struct TransferTarget {
  runtime::WorkerGroup<RolloutWorker>* group = nullptr;
  std::vector<int> devices;  ///< of its ranks
};

/// How a transfer ended; vectors are by target.
struct TransferResult {
  std::optional<Error> error;
  reshard::PublicationOutcome outcome;
  /// What the call of a target ended with that is not an answer of its ranks: it died, or was
  /// silent.
  std::vector<std::optional<Error>> silent;
  std::vector<bool> committed;  ///< all its ranks serve the new version
  Duration took{};              ///< of the transaction
};

class WeightTransfer {
 public:
  WeightTransfer(runtime::WorkerGroup<PolicyWorker>& policy, const TransferOptions& options)
      : policy_(policy), options_(options) {}

  /// Throws `Failure` when the policy's ranks fail before anything was begun.
  runtime::task<TransferResult> run(WeightVersion version, std::vector<TransferTarget> targets);

  /// What travels; null before the first run.
  const reshard::PublicationPlan* plan() const { return plan_.get(); }

 private:
  class Round;
  using Targets = std::vector<TransferTarget>;
  runtime::task<void> exchange_layouts(const Targets& targets, TransferResult& result);
  runtime::task<void> open(const Targets& targets, std::vector<WeightLayout> sources,
                           std::vector<std::vector<WeightLayout>> layouts, TransferResult& result);
  runtime::task<void> transact(WeightVersion version, const Targets& targets,
                               TransferResult& result);
  runtime::task<void> carry_out(Round& round, reshard::CoordinatorCore& core,
                                const Targets& targets, TransferResult& result);
  Duration within(const reshard::Command& command) const;

  runtime::WorkerGroup<PolicyWorker>& policy_;
  const TransferOptions options_;
  SteadyClock clock_;
  std::vector<std::uint8_t> key_;           ///< of the ports; made once, since ports open once
  std::vector<std::string> planned_names_;  ///< of the groups that the plan is for
  std::shared_ptr<const reshard::PublicationPlan> plan_;
  std::uint64_t epoch_ = 0;  ///< of the last attempt
};

}  // namespace troupe::actors
