#include "runtime/base/log.hpp"
#include "runtime/group/remote_ranks_shared.hpp"
#include "runtime/task/when_done.hpp"

#include <chrono>
#include <utility>

namespace troupe::runtime {
namespace {

/// How long ranks that were told to end for good may take to be reported.
constexpr Duration kForcedEndWithin = std::chrono::seconds(1);

}  // namespace

// --- agreement

void RemoteRanks::Shared::want(Ref<Call> skipped, std::optional<Error> error, bool rebuild) {
  std::optional<std::uint64_t> round;
  {
    const std::lock_guard lock(mutex_);
    if (!core_ || leaving_) return;
    if (skipped) wants_.push_back({std::move(skipped), std::move(error)});
    want_rebuild_ = want_rebuild_ || rebuild;
    round = round_.want();
  }
  if (round) announce(*round);
}

void RemoteRanks::Shared::announce(std::uint64_t round) {
  for (const auto& rank : ranks_) rank->send(kGroupHold, GroupHold{round});
}

void RemoteRanks::Shared::on_held(RankId rank, const GroupHeld& held) {
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    complete = round_.held(rank, held.round, held.last_begun);
  }
  if (complete) finish_round();
}

std::vector<CallId> RemoteRanks::Shared::decide_skips(const std::vector<Want>& wants,
                                                      CallId last_begun) {
  std::vector<CallId> skips;
  for (const Want& one : wants) {
    if (one.call->id > last_begun) {
      if (one.call->decide(Call::kSkip) == Call::kSkip) skips.push_back(one.call->id);
      continue;
    }
    if (one.call->decide(Call::kRun) == Call::kSkip || !one.error) continue;
    if (!one.call->failed.exchange(true))
      break_call(*one.call, one.error->origin.rank.value_or(RankId{0}), *one.error, true);
  }
  return skips;
}

void RemoteRanks::Shared::finish_round() {
  std::vector<Want> wants;
  Ref<GroupCore> own;
  CallId last_begun;
  GroupAgreed agreed;
  std::vector<CallId> failed;
  {
    const std::lock_guard lock(mutex_);
    own = core_;
    wants.swap(wants_);
    last_begun = round_.last_begun();
    agreed.round = round_.round();
  }
  if (!own) return;
  own->decide_begun(last_begun);
  agreed.skips = decide_skips(wants, last_begun);
  bool rebuild = false;
  {
    const std::lock_guard lock(mutex_);
    // What comes from now on is for the next round; breaking a call above came before.
    round_.decided();
    rebuild = std::exchange(want_rebuild_, false);
    failed = failed_seen_;
    if (!wants_.empty()) (void)round_.want();
  }
  if (rebuild) {
    if (const Ref<Call> first_call = own->plan_rebuild()) {
      agreed.rebuild_at = first_call->id;
      agreed.rebuild_epoch = first_call->plan.load() - Call::kRebuildBase;
    }
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    agreed.failed_seen = failed[i];
    ranks_[i]->send(kGroupPlan, agreed);
  }
  std::optional<std::uint64_t> next;
  {
    const std::lock_guard lock(mutex_);
    next = round_.told();
  }
  if (next) announce(*next);
}

void RemoteRanks::Shared::break_call(Call& call, RankId culprit, const Error& cause,
                                     bool others_wait) {
  if (!collectives_) return;
  bool broken = false;
  {
    const std::lock_guard lock(mutex_);
    broken = broken_[static_cast<std::size_t>(culprit.value)] != 0;
  }
  if (others_wait) {
    call.broken.store(true);
    abort(cause, call.id);
  }
  if (others_wait || broken) want({}, {}, true);
}

void RemoteRanks::Shared::abort(const Error& cause, CallId broken) {
  GroupAbort message{.cause = cause, .broken_call = broken};
  {
    const std::lock_guard lock(mutex_);
    message.leaving = leaving_;
  }
  for (const auto& rank : ranks_) rank->send(kGroupAbort, message);
}

void RemoteRanks::Shared::bury(RankId rank, const Error& cause) {
  at(rank).bury(cause);
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    complete = round_.gone(rank);
  }
  if (complete) finish_round();
}

// --- watching and ending

void RemoteRanks::Shared::watch_again() {
  const std::lock_guard lock(mutex_);
  if (!core_) return;
  timer_ = system_.timer().add(steady_now() + core_->options().heartbeat,
                               [self = Ref<Shared>(this)] { self->watch(); });
}

void RemoteRanks::Shared::watch() {
  const auto own = core();
  if (!own) return;
  const Duration limit = own->options().heartbeat_deadline;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i]->dead() || !ranks_[i]->connected()) continue;
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(watched_[i].asked, true)) continue;
    }
    when_done<RankReport>(
        ranks_[i]->report(Deadline::in(limit)),
        [self = Ref<Shared>(this), i, limit](result<RankReport> report) {
          if (report) return self->note_heartbeat(i, *report);
          // A connection that is down has a cause of its own.
          if (report.error().code != ErrorCode::kDeadline) return;
          self->ranks_[i]->kill(
              Error{.code = ErrorCode::kRankDead,
                    .message = fmt::format("its shell did not answer in {:.1f} s", seconds(limit)),
                    .origin = {},
                    .causes = {}});
        });
  }
  watch_again();
}

void RemoteRanks::Shared::note_heartbeat(std::size_t rank, const RankReport& report) {
  const std::int64_t heartbeat = report.progress + report.calls_done;
  std::string stuck;
  {
    const std::lock_guard lock(mutex_);
    Watched& watched = watched_[rank];
    watched.asked = false;
    if (!core_) return;
    if (heartbeat != watched.heartbeat) {
      watched.heartbeat = heartbeat;
      watched.said_stuck = false;
      return;
    }
    if (watched.said_stuck || !report.busy ||
        report.busy_seconds < seconds(core_->options().stuck_after)) {
      return;
    }
    watched.said_stuck = true;
    stuck = report.status(ranks_[rank]->rank()).to_string();
  }
  log::warn("{}: no progress: {}", name_, stuck);
}

result<std::vector<RankStatus>> RemoteRanks::Shared::status(Deadline deadline) {
  std::vector<pending<RankReport>> asked;
  for (const auto& rank : ranks_) asked.push_back(rank->report(deadline));
  std::vector<RankStatus> statuses;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto report = asked[i].wait(deadline);
    if (ranks_[i]->dead()) {
      statuses.push_back(ranks_[i]->status());
      continue;
    }
    if (!report) {
      return fail(ErrorCode::kDeadline, "status: rank {} did not answer: {}", i,
                  report.error().to_string());
    }
    statuses.push_back(report->status(ranks_[i]->rank()));
  }
  return statuses;
}

void RemoteRanks::Shared::close(Deadline deadline) {
  Ref<GroupCore> own;
  std::optional<CallTimer::Id> timer;
  {
    const std::lock_guard lock(mutex_);
    std::swap(own, core_);
    timer = std::exchange(timer_, std::nullopt);
    wants_.clear();
  }
  if (timer) system_.timer().remove(*timer);
  if (!own) return;
  std::vector<RankStatus> last;
  for (const auto& rank : ranks_) last.push_back(rank->status());
  for (const auto& rank : ranks_) rank->begin_close();
  std::vector<Ref<RemoteRank>> late;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i]->wait_ended(deadline)) continue;
    log::warn("{}: {}: its process did not end in {:.1f} s and is killed", name_,
              last[i].to_string(), seconds(own->options().shutdown_wait));
    ranks_[i]->force_end();
    late.push_back(ranks_[i]);
  }
  const Deadline forced = Deadline::in(kForcedEndWithin);
  for (const auto& rank : late) (void)rank->wait_ended(forced);
  for (const auto& rank : ranks_) rank->finish_close();
  if (!ranks_.empty()) job_.remove_group(name_);
}

}  // namespace troupe::runtime
