#include "actors/roles/weight_transfer.hpp"

#include "actors/roles/role_meshes.hpp"
#include "actors/roles/settled.hpp"
#include "runtime/comm/transport.hpp"
#include "runtime/task/failure.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace troupe::actors {

using reshard::CommandKind;
using reshard::CoordinatorCore;
using reshard::CoordinatorEvent;
using reshard::Member;
using reshard::Reply;
using reshard::Side;
using runtime::pending;
using runtime::task;
using runtime::value_or_throw;

namespace {

/// More than a member takes for its own "too late" to arrive.
constexpr Duration kAnswerGrace = std::chrono::seconds(5);

/// Ranks of a plan are devices; ranks that share a host are one node.
class RosterMaker {
 public:
  /// `devices`: of each rank; empty: rank i on device i.
  result<void> add(std::vector<WeightLayout> ranks, const std::vector<int>& devices,
                   reshard::Roster& roster) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      WeightLayout& rank = ranks[i];
      if (roster.ranks.empty()) roster.tensors = rank.tensors;
      if (rank.tensors != roster.tensors)
        return fail(ErrorCode::kConflict, "publication: rank {} has other tensors than rank 0", i);
      rank.layout.rank = devices.empty() ? static_cast<std::int32_t>(i) : devices[i];
      rank.layout.node =
          nodes_.try_emplace(rank.host, static_cast<std::int32_t>(nodes_.size())).first->second;
      roster.ranks.push_back(std::move(rank.layout));
    }
    return {};
  }

 private:
  std::map<std::string, std::int32_t> nodes_;
};

/// What a group said, or every rank of it as lost, the one that the cause names first.
std::vector<CoordinatorEvent> events_of(result<std::vector<Reply>> answer, Side side,
                                        const std::vector<int>& ranks) {
  std::vector<CoordinatorEvent> events;
  if (answer) {
    for (Reply& reply : *answer) events.emplace_back(std::move(reply));
    return events;
  }
  const Error& cause = answer.error();
  const std::optional<RankId> named = cause.root_cause().origin.rank;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool first_one = named && named->value == static_cast<std::int32_t>(i);
    events.insert(first_one ? events.begin() : events.end(),
                  reshard::MemberLost{{side, ranks[i]}, cause});
  }
  return events;
}

std::vector<Member> members_of(int sources, const std::vector<TransferTarget>& targets) {
  std::vector<Member> members;
  for (int rank = 0; rank < sources; ++rank) members.push_back({Side::kSource, rank});
  for (const TransferTarget& target : targets) {
    for (const int device : target.devices) members.push_back({Side::kTarget, device});
  }
  return members;
}

std::vector<std::string> names_of(const std::vector<TransferTarget>& targets) {
  std::vector<std::string> names;
  for (const TransferTarget& target : targets) names.push_back(target.group->name());
  return names;
}

/// The first target that gave no answer, as the transfer's error.
void conclude(TransferResult& result) {
  for (const std::optional<Error>& error : result.silent) {
    if (error && !result.error) result.error = error;
  }
}

}  // namespace

/// What the coordinator wants done next. All commands of a round to one side are the same.
class WeightTransfer::Round {
 public:
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
      if (send.to.side == Side::kTarget) target_ranks_.insert(send.to.rank);
      (send.to.side == Side::kSource ? to_sources : to_targets) = std::move(send.command);
    }
  }
  bool asks(const TransferTarget& target) const {
    return to_targets && std::any_of(target.devices.begin(), target.devices.end(),
                                     [&](int device) { return target_ranks_.contains(device); });
  }

 private:
  std::set<std::int32_t> target_ranks_;
};

task<TransferResult> WeightTransfer::run(WeightVersion version,
                                         std::vector<TransferTarget> targets) {
  TransferResult result;
  result.silent.resize(targets.size());
  result.committed.resize(targets.size(), false);
  co_await exchange_layouts(targets, result);
  if (!result.error) co_await transact(version, targets, result);
  if (result.error) {
    planned_names_.clear();  // whoever has fallen out of step is told everything anew
    result.error =
        Error(*result.error)
            .wrap(result.error->code, fmt::format("publication of version {}", version.value));
  }
  co_return result;
}

task<void> WeightTransfer::exchange_layouts(const Targets& targets, TransferResult& result) {
  if (plan_ && names_of(targets) == planned_names_) co_return;
  plan_.reset();
  auto of_policy = policy_.call<&PolicyWorker::weight_layout>();
  std::vector<pending<std::vector<WeightLayout>>> calls;
  for (const TransferTarget& target : targets)
    calls.push_back(target.group->call<&RolloutWorker::weight_layout>());
  std::vector<WeightLayout> sources = co_await std::move(of_policy);
  std::vector<std::vector<WeightLayout>> layouts(targets.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    auto answer = co_await settled(std::move(calls[i]));
    if (answer)
      layouts[i] = std::move(*answer);
    else
      result.silent[i] = std::move(answer).error();
  }
  conclude(result);
  if (!result.error) co_await open(targets, std::move(sources), std::move(layouts), result);
}

task<void> WeightTransfer::open(const Targets& targets, std::vector<WeightLayout> sources,
                                std::vector<std::vector<WeightLayout>> layouts,
                                TransferResult& result) {
  RosterMaker rosters;
  PublicationSetup setup;
  setup.bucket = options_.bucket;
  setup.update = options_.update;
  value_or_throw(rosters.add(std::move(sources), {}, setup.source));
  std::vector<std::int32_t> firsts;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    firsts.push_back(static_cast<std::int32_t>(setup.target.ranks.size()));
    value_or_throw(rosters.add(std::move(layouts[i]), targets[i].devices, setup.target));
  }
  if (key_.empty()) {
    const runtime::SessionKey key = value_or_throw(runtime::make_session_key());
    for (const std::byte byte : key) key_.push_back(std::to_integer<std::uint8_t>(byte));
  }
  setup.key = key_;
  auto plan = value_or_throw(reshard::PublicationPlan::make(setup.source, setup.target));
  auto at_policy = policy_.call<&PolicyWorker::open_publication>(setup);
  std::vector<pending<void>> calls;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    setup.target_first = firsts[i];
    calls.push_back(targets[i].group->call<&RolloutWorker::open_publication>(setup));
  }
  co_await std::move(at_policy);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    auto answer = co_await settled(std::move(calls[i]));
    if (!answer) result.silent[i] = std::move(answer).error();
  }
  conclude(result);
  if (result.error) co_return;
  plan_ = std::move(plan);
  planned_names_ = names_of(targets);
}

Duration WeightTransfer::within(const reshard::Command& command) const {
  if (command.kind == CommandKind::kBegin) return options_.begin_within;
  return command.kind == CommandKind::kReceive ? options_.receive_within : options_.commit_within;
}

/// Asks all whom the round wants asked, side by side, and tells the coordinator what they say.
task<void> WeightTransfer::carry_out(Round& round, CoordinatorCore& core, const Targets& targets,
                                     TransferResult& result) {
  std::optional<pending<std::vector<Reply>>> of_policy;
  if (round.to_sources) {
    const auto options = runtime::CallOptions().within(within(*round.to_sources) + kAnswerGrace);
    of_policy = policy_.call_with<&PolicyWorker::publication>(options, *round.to_sources);
  }
  std::vector<std::optional<pending<std::vector<Reply>>>> of_targets(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!round.asks(targets[i])) continue;
    const auto options = runtime::CallOptions().within(within(*round.to_targets) + kAnswerGrace);
    of_targets[i] =
        targets[i].group->call_with<&RolloutWorker::publication>(options, *round.to_targets);
  }
  round = Round();
  std::vector<CoordinatorEvent> events;
  if (of_policy)
    events = events_of(co_await settled(*std::move(of_policy)), Side::kSource,
                       devices_from(0, policy_.size()));
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!of_targets[i]) continue;
    auto answer = co_await settled(*std::move(of_targets[i]));
    if (!answer) result.silent[i] = answer.error();
    auto more = events_of(std::move(answer), Side::kTarget, targets[i].devices);
    events.insert(events.end(), std::make_move_iterator(more.begin()),
                  std::make_move_iterator(more.end()));
  }
  // Nobody is left whose answer could come: the step's time is over.
  if (events.empty())
    round.add(core.step(reshard::ClockTick{}, std::max(clock_.now(), core.due())));
  for (const CoordinatorEvent& event : events) round.add(core.step(event, clock_.now()));
}

task<void> WeightTransfer::transact(WeightVersion version, const Targets& targets,
                                    TransferResult& result) {
  reshard::CoordinatorOptions options;
  options.id.epoch = ++epoch_;
  options.id.version = version;
  options.id.digest = plan_->plan().digest;
  options.members = members_of(policy_.size(), targets);
  options.begin_within = options_.begin_within;
  options.receive_within = options_.receive_within;
  options.commit_within = options_.commit_within;
  options.repeat_every = std::chrono::hours(24);  // calls of a group arrive, or end in an error
  CoordinatorCore core(options);
  const TimePoint begin = clock_.now();
  Round round;
  round.add(core.start(begin));
  while (!round.finish) co_await carry_out(round, core, targets, result);
  result.took = clock_.now() - begin;
  result.error = round.finish->error;
  result.outcome = core.outcome();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const std::vector<int>& devices = targets[i].devices;
    result.committed[i] = std::all_of(devices.begin(), devices.end(), [&](int device) {
      return result.outcome.committed.contains({Side::kTarget, device});
    });
  }
}

}  // namespace troupe::actors
