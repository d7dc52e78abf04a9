#include "actors/roles/group_evaluator.hpp"

#include "runtime/task/failure.hpp"

#include <utility>
#include <vector>

namespace troupe::actors {

using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using State = RolloutReplicas::State;

task<Metrics> GroupEvaluator::publish() {
  RolloutReplicas& replicas = way_.replicas;
  for (;;) {
    if (replicas.state(0) == State::kLost) co_await replicas.revive(0);  // bounded by its count
    const Turnstile::Pass pass = co_await way_.publishing.enter();
    const WeightVersion version = weights_.version();
    std::vector<TransferTarget> targets;
    targets.push_back({&replicas.group(0), replicas.seat(0).devices});
    const TransferResult moved = co_await way_.transfer.run(version, std::move(targets));
    if (moved.error) {
      if (replicas.state(0) == State::kLost) continue;
      throw runtime::Failure(*moved.error);
    }
    replicas.set_serving(0);
    version_ = version;
    Metrics metrics;
    metrics.add("evaluation/weight_version", static_cast<double>(version.value), Reduction::kLast);
    metrics.add("timing_s/evaluation_weights", seconds(moved.took), Reduction::kSum);
    co_return metrics;
  }
}

task<runtime::Batch> GroupEvaluator::generate(runtime::Batch prompts, SamplingOptions sampling) {
  co_return co_await rollout_.generate(std::move(prompts), std::move(sampling));
}

}  // namespace troupe::actors
