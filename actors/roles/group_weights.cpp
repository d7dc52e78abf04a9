#include "actors/roles/group_weights.hpp"

#include "actors/loops/columns.hpp"
#include "actors/roles/canary.hpp"
#include "runtime/base/check.hpp"
#include "runtime/comm/transport.hpp"
#include "runtime/task/failure.hpp"
#include "runtime/task/when.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

using reshard::CommandKind;
using reshard::CoordinatorCore;
using reshard::CoordinatorEvent;
using reshard::Member;
using reshard::Side;
using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using runtime::value_or_throw;

namespace {

/// More than a member takes for its own "too late" to arrive.
constexpr Duration kAnswerGrace = std::chrono::seconds(5);

/// Ranks of a plan are devices; ranks that share a host are one node.
class RosterMaker {
 public:
  /// `devices`: of each rank; empty: rank i on device i.
  result<reshard::Roster> make(std::vector<WeightLayout> ranks, const std::vector<int>& devices) {
    reshard::Roster roster;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      WeightLayout& rank = ranks[i];
      if (i > 0 && rank.tensors != roster.tensors)
        return fail(ErrorCode::kConflict, "publication: rank {} has other tensors than rank 0", i);
      if (i == 0) roster.tensors = std::move(rank.tensors);
      rank.layout.rank = devices.empty() ? static_cast<std::int32_t>(i) : devices[i];
      rank.layout.node =
          nodes_.try_emplace(rank.host, static_cast<std::int32_t>(nodes_.size())).first->second;
      roster.ranks.push_back(std::move(rank.layout));
    }
    return roster;
  }

 private:
  std::map<std::string, std::int32_t> nodes_;
};

/// Every rank of the group as lost, the one that the cause names first.
std::vector<CoordinatorEvent> all_lost(Side side, const Error& cause, int ranks,
                                       const std::vector<int>& devices) {
  const std::optional<RankId> named = cause.root_cause().origin.rank;
  std::vector<CoordinatorEvent> events;
  for (int rank = 0; rank < ranks; ++rank) {
    auto place = named && named->value == rank ? events.begin() : events.end();
    const int device = devices.empty() ? rank : devices[static_cast<std::size_t>(rank)];
    events.insert(place, reshard::MemberLost{{side, device}, cause});
  }
  return events;
}

/// One command to all ranks of a side, and what they say.
template <auto M, class Group>
task<std::vector<CoordinatorEvent>> ask(Group& group, Side side, std::vector<int> devices,
                                        reshard::Command command, Duration within) {
  std::optional<Error> lost;
  try {
    const auto options = runtime::CallOptions().within(within + kAnswerGrace);
    std::vector<reshard::Reply> replies =
        co_await group.template call_with<M>(options, std::move(command));
    std::vector<CoordinatorEvent> events;
    for (reshard::Reply& reply : replies) events.emplace_back(std::move(reply));
    co_return events;
  } catch (const runtime::Failure& failure) {
    lost = failure.error();
  }
  co_return all_lost(side, *lost, group.size(), devices);
}

std::vector<Member> members_of(int sources, int targets) {
  std::vector<Member> members;
  for (int rank = 0; rank < sources; ++rank) members.push_back({Side::kSource, rank});
  for (int rank = 0; rank < targets; ++rank) members.push_back({Side::kTarget, rank});
  return members;
}

/// What the coordinator wants done next. All commands of a round to one side are the same.
struct Round {
  std::optional<reshard::Command> to_sources;
  std::optional<reshard::Command> to_targets;
  std::optional<reshard::FinishPublication> finish;

  void add(std::vector<reshard::CoordinatorEffect> effects) {
    for (reshard::CoordinatorEffect& effect : effects) {
      if (auto* end = std::get_if<reshard::FinishPublication>(&effect)) {
        finish = std::move(*end);
        continue;
      }
      auto& send = std::get<reshard::SendCommand>(effect);
      (send.to.side == Side::kSource ? to_sources : to_targets) = std::move(send.command);
    }
  }
};

/// What the targets say together.
reshard::ReceiveStatistics total(const reshard::PublicationOutcome& outcome) {
  reshard::ReceiveStatistics sum;
  for (const auto& [member, one] : outcome.received) {
    sum.local_bytes += one.local_bytes;
    sum.pulled_bytes += one.pulled_bytes;
    sum.staging_bytes = std::max(sum.staging_bytes, one.staging_bytes);
  }
  return sum;
}

}  // namespace

task<void> GroupWeights::exchange_layouts() {
  if (plan_) co_return;
  RosterMaker rosters;
  PublicationSetup setup;
  setup.bucket = options_.bucket;
  setup.source =
      value_or_throw(rosters.make(co_await policy_.call<&PolicyWorker::weight_layout>(), {}));
  setup.target = value_or_throw(
      rosters.make(co_await rollout_.call<&RolloutWorker::weight_layout>(), devices_));
  const runtime::SessionKey key = value_or_throw(runtime::make_session_key());
  for (const std::byte byte : key) setup.key.push_back(std::to_integer<std::uint8_t>(byte));
  auto plan = value_or_throw(reshard::PublicationPlan::make(setup.source, setup.target));
  auto sources = policy_.call<&PolicyWorker::open_publication>(setup);
  auto targets = rollout_.call<&RolloutWorker::open_publication>(setup);
  co_await std::move(sources);
  co_await std::move(targets);
  plan_ = std::move(plan);
}

task<reshard::PublicationOutcome> GroupWeights::transact(WeightVersion version) {
  reshard::CoordinatorOptions options;
  options.id.epoch = ++epoch_;
  options.id.version = version;
  options.id.digest = plan_->plan().digest;
  options.members = members_of(policy_.size(), rollout_.size());
  options.begin_within = options_.begin_within;
  options.receive_within = options_.receive_within;
  options.commit_within = options_.commit_within;
  options.repeat_every = std::chrono::hours(24);  // calls of a group arrive, or end in an error
  CoordinatorCore core(options);
  Round round;
  round.add(core.start(clock_.now()));
  while (!round.finish) {
    std::vector<task<std::vector<CoordinatorEvent>>> asks;
    const auto within = [&](const reshard::Command& command) {
      if (command.kind == CommandKind::kBegin) return options_.begin_within;
      return command.kind == CommandKind::kReceive ? options_.receive_within
                                                   : options_.commit_within;
    };
    if (round.to_sources)
      asks.push_back(ask<&PolicyWorker::publication>(policy_, Side::kSource, {}, *round.to_sources,
                                                     within(*round.to_sources)));
    if (round.to_targets)
      asks.push_back(ask<&RolloutWorker::publication>(
          rollout_, Side::kTarget, devices_, *round.to_targets, within(*round.to_targets)));
    round = Round();
    if (asks.empty()) {  // nobody is left whose answer could come
      round.add(core.step(reshard::ClockTick{}, std::max(clock_.now(), core.due())));
      continue;
    }
    const std::vector<std::vector<CoordinatorEvent>> answers =
        co_await runtime::when_all(std::move(asks));
    for (const std::vector<CoordinatorEvent>& side : answers) {
      for (const CoordinatorEvent& event : side) round.add(core.step(event, clock_.now()));
    }
  }
  if (round.finish->error)
    throw runtime::Failure(Error(*round.finish->error)
                               .wrap(round.finish->error->code,
                                     fmt::format("publication of version {}", version.value)));
  co_return core.outcome();
}

/// All replicas must say the same, and the trainer must find it as likely as they do.
task<void> GroupWeights::canary(Metrics& metrics) {
  if (canary_.tokens == 0) co_return;
  const std::vector<CanaryAnswer> answers = co_await rollout_.call<&RolloutWorker::canary>(canary_);
  value_or_throw(compare_replicas(answers, rollout_.mesh(), version_));
  runtime::Batch batch =
      value_or_throw(canary_batch(canary_.prompt, answers.front(), policy_.mesh().data_parts()));
  LogProbRequest request;
  request.column = std::string(column::kOldLogProbs);
  runtime::Batch found =
      co_await policy_.call<&PolicyWorker::log_probs>(std::move(batch), std::move(request));
  found = value_or_throw(found.resolve());
  const double largest = value_or_throw(compare_log_probs(
      answers.front(), found.column(column::kOldLogProbs), options_.canary_tolerance));
  metrics.add("canary/tokens", canary_.tokens, Reduction::kLast);
  metrics.add("canary/replicas", rollout_.mesh().data_parts(), Reduction::kLast);
  metrics.add("canary/log_probs_diff_max", largest, Reduction::kMax);
}

task<Metrics> GroupWeights::publish_as(WeightVersion version) {
  co_await exchange_layouts();
  const TimePoint begin = clock_.now();
  const reshard::PublicationOutcome outcome = co_await transact(version);
  version_ = version;
  const reshard::ReceiveStatistics moved = total(outcome);
  Metrics metrics;
  const auto add = [&](const char* name, double value, Reduction reduction) {
    metrics.add(std::string("update_weights/") + name, value, reduction);
  };
  add("bytes", static_cast<double>(moved.local_bytes + moved.pulled_bytes), Reduction::kSum);
  add("local_bytes", static_cast<double>(moved.local_bytes), Reduction::kSum);
  add("wire_bytes", static_cast<double>(moved.pulled_bytes), Reduction::kSum);
  add("staging_bytes", static_cast<double>(moved.staging_bytes), Reduction::kMax);
  add("operations", static_cast<double>(plan_->plan().ops.size()), Reduction::kLast);
  metrics.add("timing_s/update_weights_transfer", seconds(clock_.now() - begin), Reduction::kSum);
  // The weights are there: gradients make room, so that the KV cache can come back.
  if (options_.sleep) co_await policy_.call<&PolicyWorker::release_gradients>();
  co_await canary(metrics);
  if (options_.sleep) co_await rollout_.call<&RolloutWorker::wake>();
  co_return metrics;
}

task<Metrics> GroupWeights::publish() {
  Metrics metrics = co_await publish_as(WeightVersion{version_.value + 1});
  metrics.add("training/weight_version", static_cast<double>(version_.value), Reduction::kLast);
  co_return metrics;
}

task<void> GroupWeights::publish_present() { co_await publish_as(version_); }

}  // namespace troupe::actors
