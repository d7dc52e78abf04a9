#pragma once

// The background work of the rollout service: pumps of replicas, rewards, environments, revivals.
//
// Include rollout_service.hpp, which has all parts.
// **Threads:** controller's thread, inside its executor.

#include "actors/loops/rollout_service_class.hpp"

namespace troupe::actors {

// ---- replicas ------------------------------------------------------------------------------

template <World W>
void RolloutService<W>::join(const ReplicaInfo& info) {
  revived_.erase(info.replica);
  auto made = std::make_unique<Pump>();
  made->lent = info.lent;
  made->held = info.lent && !waits_;
  made->since = now();
  book_.join(info, now());
  if (made->held || paused_) book_.hold(info.replica, true, now());
  made->life = ++lives_;
  background_->add(pump(info.replica, made->life));
  pumps_[info.replica] = std::move(made);
}

/// A revived one that two publications did not bring in was lost again. The first may have begun
/// before it was there.
template <World W>
void RolloutService<W>::refresh_replicas(bool after_publication) {
  for (const ReplicaInfo& info : cast_.streaming->replicas())
    if (!pumps_.contains(info.replica) && !lost_.contains(info.replica) &&
        (!info.lent || options_.lend))
      join(info);
  if (!after_publication) return;
  std::vector<RankId> gone;
  for (auto& [replica, publications] : revived_)
    if (++publications == 2) gone.push_back(replica);
  for (const RankId replica : gone) {
    log::warn("rollout: replica {} was made anew and lost again before it served", replica.value);
    revived_.erase(replica);
    lost_.insert(replica);
    begin_revival(replica);
  }
}

/// Adds the replica's time since it was last looked at.
template <World W>
void RolloutService<W>::count_time(Pump& pump) {
  if (!pump.held) alive_ += now() - pump.since;
  pump.since = now();
  if (!pump.busy_since) return;
  busy_ += now() - *pump.busy_since;
  pump.busy_since = now();
}

template <World W>
void RolloutService<W>::lost(RankId replica, const Error& error) {
  const auto place = pumps_.find(replica);
  if (place == pumps_.end()) return;
  count_time(*place->second);
  pumps_.erase(place);
  lost_.insert(replica);
  last_loss_ = error;
  log::warn("rollout: replica {} is lost, its samples go elsewhere: {}", replica.value,
            error.message);
  book_.lose(replica, now());
  begin_revival(replica);
  changed();
}

template <World W>
void RolloutService<W>::begin_revival(RankId replica) {
  if (revivals_[replica] >= options_.revives_max) return;
  ++revivals_[replica];
  ++reviving_;
  background_->add(revive(replica));
}

template <World W>
runtime::task<void> RolloutService<W>::revive(RankId replica) {
  result<void> made =
      co_await bounded(cast_.streaming->revive(replica), now() + options_.revive_within);
  --reviving_;
  if (made) {
    lost_.erase(replica);
    revived_[replica] = 0;
  } else {
    log::warn("rollout: replica {} could not be made anew: {}", replica.value,
              made.error().message);
    last_loss_ = made.error();
  }
  changed();
}

template <World W>
typename RolloutService<W>::Pump* RolloutService<W>::find_pump(RankId replica, std::uint64_t life) {
  const auto place = pumps_.find(replica);
  return place != pumps_.end() && place->second->life == life ? place->second.get() : nullptr;
}

/// Ends with the replica; one that came back has a pump of its own.
template <World W>
runtime::task<void> RolloutService<W>::pump(RankId replica, std::uint64_t life) {
  while (!stopping_) {
    Pump* const own = find_pump(replica, life);
    if (own == nullptr) co_return;
    if (!book_.has_work(replica)) {
      co_await own->bell.wait(now() + options_.no_progress_within);
      continue;
    }
    AdvanceRequest request = book_.next_request(replica);
    request.steps_max = options_.slice_steps;
    request.slice = options_.slice;
    count_time(*own);
    own->call_since = own->busy_since = now();
    const TimePoint begin = now();
    result<AdvanceReply> reply = co_await bounded(
        cast_.streaming->advance(replica, std::move(request)), begin + options_.advance_within);
    if (stopping_ || find_pump(replica, life) == nullptr) co_return;  // given up meanwhile
    count_time(*own);
    own->call_since.reset();
    own->busy_since.reset();
    if (!reply) {
      lost(replica, reply.error());
      co_return;
    }
    runtime::value_or_throw(gathered_.merge(reply->metrics));
    const bool idle = reply->steps == 0 && reply->news.empty();
    runtime::value_or_throw(book_.replied(replica, std::move(*reply), now()));
    changed();
    // One that answers at once without having done anything must not be asked in a circle.
    if (idle && now() == begin) co_await runtime::sleep_for(options_.slice);
  }
}

// ---- lending -------------------------------------------------------------------------------

template <World W>
void RolloutService<W>::lend() {
  for (const auto& [replica, pump] : pumps_) {
    if (!pump->lent || !pump->held || paused_) continue;
    count_time(*pump);
    pump->held = false;
    book_.hold(replica, false, now());
  }
}

template <World W>
runtime::task<void> RolloutService<W>::recall(bool lent_only) {
  std::vector<RankId> recalled;
  for (const auto& [replica, pump] : pumps_) {
    if (pump->held || (lent_only && !pump->lent)) continue;
    count_time(*pump);
    pump->held = true;
    book_.recall(replica, now());
    recalled.push_back(replica);
  }
  if (recalled.empty()) co_return;
  changed();
  const TimePoint until = now() + options_.recall_within;
  for (const RankId replica : recalled) {
    while (pumps_.contains(replica) && book_.running_on(replica) > 0 && now() < until) {
      throw_failure();
      co_await bell_.wait(until);
    }
    if (pumps_.contains(replica) && book_.running_on(replica) > 0)
      lost(replica, Error{.code = ErrorCode::kDeadline,
                          .message = fmt::format("replica {} did not give its samples back in "
                                                 "{:.1f} s",
                                                 replica.value, seconds(options_.recall_within)),
                          .origin = {},
                          .causes = {}});
  }
}

// ---- rewards and environments --------------------------------------------------------------

template <World W>
runtime::task<void> RolloutService<W>::run_scores(std::vector<ScoreJob> jobs) {
  co_await score(std::move(jobs), 1);
  --scores_in_flight_;
  changed();
}

template <World W>
result<void> RolloutService<W>::take_scores(const std::vector<ScoreJob>& jobs,
                                            runtime::Batch scores) {
  TROUPE_TRY(scores, scores.resolve(cast_.meter));
  if (std::cmp_not_equal(scores.rows(), jobs.size()))
    return fail(ErrorCode::kConflict, "reward: {} rows for {} samples", scores.rows(), jobs.size());
  TROUPE_TRY_VOID(gathered_.merge(scores.metrics()));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    TROUPE_TRY(runtime::Batch row, scores.slice(static_cast<std::int64_t>(i), 1));
    TROUPE_TRY_VOID(book_.scored(jobs[i].sample, std::move(row), now()));
  }
  return {};
}

/// Scores together, once more after a while, then by halves, so that one sample whose reward fails
/// does not take others along.
template <World W>
runtime::task<void> RolloutService<W>::score(std::vector<ScoreJob> jobs, std::int32_t call) {
  RetryPauses pauses(options_.retry_after);
  while (true) {
    std::vector<runtime::Batch> rows;
    for (const ScoreJob& job : jobs) rows.push_back(job.row);
    runtime::Batch batch = runtime::value_or_throw(runtime::Batch::concat(rows));
    result<runtime::Batch> scores =
        co_await bounded(cast_.reward.score(std::move(batch)), now() + options_.score_within);
    if (stopping_) co_return;
    if (scores) {
      runtime::value_or_throw(take_scores(jobs, std::move(*scores)));
      changed();
      co_return;
    }
    if (call >= 2 && jobs.size() > 1) break;
    if (call >= options_.calls_max) {
      for (const ScoreJob& job : jobs) book_.score_failed(job.sample, scores.error(), now());
      changed();
      co_return;
    }
    ++call;
    co_await pauses.next();
  }
  const auto half = jobs.begin() + static_cast<std::ptrdiff_t>(jobs.size() / 2);
  std::vector<ScoreJob> rest(std::make_move_iterator(half), std::make_move_iterator(jobs.end()));
  jobs.erase(half, jobs.end());
  co_await score(std::move(jobs), 1);
  co_await score(std::move(rest), 1);
}

template <World W>
runtime::task<void> RolloutService<W>::ask_turns(std::vector<EnvironmentJob> jobs) {
  RetryPauses pauses(options_.retry_after);
  for (std::int32_t call = 1;; ++call) {
    std::vector<EnvironmentTurn> turns;
    for (const EnvironmentJob& job : jobs) turns.push_back(job.turn);
    result<std::vector<EnvironmentAnswer>> answers =
        co_await bounded(cast_.environment->turn(std::move(turns)), now() + options_.turn_within);
    if (stopping_) co_return;
    if (answers && answers->size() != jobs.size())
      answers = fail(ErrorCode::kConflict, "environment: {} answers to {} turns", answers->size(),
                     jobs.size());
    if (answers) {
      for (std::size_t i = 0; i < jobs.size(); ++i)
        runtime::value_or_throw(book_.answered(jobs[i].attempt, std::move((*answers)[i]), now()));
      break;
    }
    if (call >= options_.calls_max) {
      for (const EnvironmentJob& job : jobs)
        book_.environment_failed(job.attempt, answers.error(), now());
      break;
    }
    co_await pauses.next();
  }
  --turns_in_flight_;
  changed();
}

template <World W>
runtime::task<void> RolloutService<W>::tick() {
  while (!stopping_) {
    co_await runtime::sleep_for(options_.tick_every);
    told_to_stop_ = told_to_stop_ || (options_.stop && options_.stop());
    book_.tick(now());
    changed();
  }
}

}  // namespace troupe::actors
