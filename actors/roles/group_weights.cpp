#include "actors/roles/group_weights.hpp"

#include "actors/loops/columns.hpp"
#include "actors/roles/canary.hpp"
#include "actors/roles/settled.hpp"
#include "runtime/base/log.hpp"
#include "runtime/task/executor.hpp"
#include "runtime/task/failure.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe::actors {

using runtime::Failure;
using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using runtime::value_or_throw;
using State = RolloutReplicas::State;

bool may_be_of_a_death(const Error& error) {
  const ErrorCode code = error.root_cause().code;
  return code == ErrorCode::kRankDead || code == ErrorCode::kAborted ||
         code == ErrorCode::kDeadline || code == ErrorCode::kIo;
}

namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(50);

/// What the targets say together.
void add_traffic(const TransferResult& moved, std::size_t operations, Metrics& metrics) {
  reshard::ReceiveStatistics sum;
  for (const auto& [member, one] : moved.outcome.received) {
    sum.local_bytes += one.local_bytes;
    sum.pulled_bytes += one.pulled_bytes;
    sum.staging_bytes = std::max(sum.staging_bytes, one.staging_bytes);
  }
  const auto add = [&](const char* name, double value, Reduction reduction) {
    metrics.add(std::string("update_weights/") + name, value, reduction);
  };
  add("bytes", static_cast<double>(sum.local_bytes + sum.pulled_bytes), Reduction::kSum);
  add("local_bytes", static_cast<double>(sum.local_bytes), Reduction::kSum);
  add("wire_bytes", static_cast<double>(sum.pulled_bytes), Reduction::kSum);
  add("staging_bytes", static_cast<double>(sum.staging_bytes), Reduction::kMax);
  add("operations", static_cast<double>(operations), Reduction::kLast);
  metrics.add("timing_s/update_weights_transfer", seconds(moved.took), Reduction::kSum);
}

}  // namespace

TransferOptions transfer_options(const PublicationOptions& options) {
  return {.bucket = options.bucket,
          .begin_within = options.begin_within,
          .receive_within = options.receive_within,
          .commit_within = options.commit_within,
          .update = options.update};
}

std::vector<int> GroupWeights::targets(std::optional<int> only, WeightVersion version) {
  std::vector<int> chosen = way_.replicas.alive();
  if (only) std::erase_if(chosen, [&](int replica) { return replica != *only; });
  if (!chosen.empty()) return chosen;
  Error none{.code = ErrorCode::kRankDead,
             .message = fmt::format("publication of version {}: no rollout replica is there to "
                                    "take it",
                                    version.value),
             .origin = {},
             .causes = {}};
  const std::optional<Error> cause = way_.replicas.dead_cause();
  if (cause) none = Error(*cause).wrap(none.code, none.message);
  throw Failure(std::move(none));
}

task<bool> GroupWeights::note_losses(const std::vector<int>& chosen, const TransferResult& moved) {
  RolloutReplicas& replicas = way_.replicas;
  if (!replicas.options().survive) co_return false;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::optional<Error>& silent = moved.silent[i];
    if (silent && silent->code == ErrorCode::kDeadline) replicas.lose(chosen[i], *silent);
  }
  const auto any_lost = [&] {
    return std::any_of(chosen.begin(), chosen.end(),
                       [&](int replica) { return replicas.state(replica) == State::kLost; });
  };
  if (any_lost()) co_return true;
  if (!moved.error || !may_be_of_a_death(*moved.error)) co_return false;
  const TimePoint until = steady_now() + kDeathReportWithin;
  while (!any_lost() && steady_now() < until) co_await runtime::sleep_for(kLookEvery);
  co_return any_lost();
}

bool GroupWeights::all_left_committed(const std::vector<int>& chosen, const TransferResult& moved) {
  bool anybody = false;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (way_.replicas.state(chosen[i]) == State::kLost) continue;
    if (!moved.committed[i]) return false;
    anybody = true;
  }
  return anybody;
}

task<std::vector<int>> GroupWeights::transfer(WeightVersion version, std::optional<int> only,
                                              Metrics& metrics) {
  RolloutReplicas& replicas = way_.replicas;
  const bool survive = replicas.options().survive;
  // Each attempt but one has lost somebody; the one may have left its targets with two versions.
  const int attempts_max = survive ? replicas.size() + 1 : 1;
  for (int attempt = 1;; ++attempt) {
    const std::vector<int> chosen = targets(only, version);
    std::vector<TransferTarget> groups;
    for (const int replica : chosen)
      groups.push_back({&replicas.group(replica), replicas.seat(replica).devices});
    const TransferResult moved = co_await way_.transfer.run(version, std::move(groups));
    const bool lost = co_await note_losses(chosen, moved);
    if (!moved.error || (lost && all_left_committed(chosen, moved))) {
      add_traffic(moved, plan()->plan().ops.size(), metrics);
      if (survive) metrics.add("update_weights/attempts", attempt, Reduction::kLast);
      co_return chosen;
    }
    const bool torn = !moved.outcome.committed.empty();
    if ((!lost && !(torn && survive)) || attempt == attempts_max || way_.policy.dead_cause())
      throw Failure(*moved.error);
    log::warn("{}; again for those that are left", moved.error->to_string());
  }
}

/// All replicas must say the same, and the trainer must find it as likely as they do.
task<void> GroupWeights::canary(const std::vector<int>& chosen, Metrics& metrics) {
  if (canary_.tokens == 0) co_return;
  RolloutReplicas& replicas = way_.replicas;
  std::vector<std::pair<int, runtime::pending<std::vector<CanaryAnswer>>>> calls;
  for (const int replica : chosen) {
    if (replicas.state(replica) == State::kLost) continue;
    calls.emplace_back(replica, replicas.group(replica).call<&RolloutWorker::canary>(canary_));
  }
  std::vector<CanaryAnswer> answers;
  std::vector<int> numbers;
  int parts = 0;
  for (auto& [replica, call] : calls) {
    auto said = co_await settled(std::move(call));
    if (!said && replicas.options().survive && replicas.state(replica) == State::kLost) continue;
    const runtime::Mesh& mesh = replicas.group(replica).mesh();
    std::vector<CanaryAnswer> more = value_or_throw(std::move(said));
    for (std::size_t rank = 0; rank < more.size(); ++rank) {
      const int part = mesh.data_part(RankId{static_cast<std::int32_t>(rank)});
      numbers.push_back(replicas.size() == 1 ? part : replica);
      answers.push_back(std::move(more[rank]));
    }
    parts += mesh.data_parts();
  }
  if (answers.empty()) co_return;  // all are lost since: who generates next will say so
  value_or_throw(compare_replicas(answers, numbers, version_));
  runtime::Batch batch = value_or_throw(
      canary_batch(canary_.prompt, answers.front(), way_.policy.mesh().data_parts()));
  LogProbRequest request;
  request.column = std::string(column::kOldLogProbs);
  runtime::Batch found =
      co_await way_.policy.call<&PolicyWorker::log_probs>(std::move(batch), std::move(request));
  found = value_or_throw(found.resolve());
  const double largest = value_or_throw(compare_log_probs(
      answers.front(), found.column(column::kOldLogProbs), options_.canary_tolerance));
  metrics.add("canary/tokens", canary_.tokens, Reduction::kLast);
  metrics.add("canary/replicas", parts, Reduction::kLast);
  metrics.add("canary/log_probs_diff_max", largest, Reduction::kMax);
}

task<Metrics> GroupWeights::publish_as(WeightVersion version, std::optional<int> only) {
  const Turnstile::Pass pass = co_await way_.publishing.enter();
  RolloutReplicas& replicas = way_.replicas;
  Metrics metrics;
  const std::vector<int> reached = co_await transfer(version, only, metrics);
  version_ = version;
  const bool sleeps = options_.sleep && !replicas.options().survive;
  // The weights are there: gradients make room, so that the KV cache can come back.
  if (sleeps) co_await way_.policy.call<&PolicyWorker::release_gradients>();
  co_await canary(reached, metrics);
  if (sleeps) co_await replicas.group(0).call<&RolloutWorker::wake>();
  for (const int replica : reached) replicas.set_serving(replica);
  if (replicas.options().survive) {
    const auto count = [&](const char* name, auto value) {
      metrics.add(name, static_cast<double>(value), Reduction::kLast);
    };
    count("rollout/replicas", replicas.serving().size());
    count("rollout/replicas_lost", replicas.losses());
    count("rollout/replicas_revived", replicas.revivals());
  }
  co_return metrics;
}

task<Metrics> GroupWeights::publish() {
  Metrics metrics = co_await publish_as(WeightVersion{version_.value + 1}, {});
  metrics.add("training/weight_version", static_cast<double>(version_.value), Reduction::kLast);
  co_return metrics;
}

task<void> GroupWeights::publish_present() { co_await publish_as(version_, {}); }

task<void> GroupWeights::publish_present(RankId replica) {
  co_await publish_as(version_, replica.value);
}

}  // namespace troupe::actors
