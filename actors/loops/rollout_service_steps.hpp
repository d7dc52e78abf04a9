#pragma once

// What the loop asks of the rollout service: groups, ends of steps, publications, saving.
//
// Include rollout_service.hpp, which has all parts.
// **Threads:** controller's thread, inside its executor.

#include "actors/loops/rollout_service_class.hpp"

namespace troupe::actors {

template <World W>
result<std::unique_ptr<RolloutService<W>>> RolloutService<W>::open(
    Cast<W>& cast, const ServiceOptions& asked, PromptSource prompts,
    std::span<const std::byte> state) {
  ServiceOptions options = asked;
  options.rollout.sampling = cast.sampling;
  options.rollout.group_size = cast.group_size;
  options.rollout.environment = cast.environment != nullptr;
  TROUPE_TRY_VOID(options.check());
  if (cast.streaming == nullptr)
    return fail(ErrorCode::kUnsupported, "asynchronous rollout: this world cannot stream");
  if (cast.advantage.options().greedy_baseline && cast.environment != nullptr)
    return fail(ErrorCode::kUnsupported,
                "asynchronous rollout: the greedy baseline of remax has no environment's turns");
  const TimePoint now = cast.world.clock().now();
  auto book = state.empty() ? RolloutBook::create(options.rollout)
                            : RolloutBook::restore(options.rollout, state, now);
  if (!book) return fail(std::move(book).error());
  return std::unique_ptr<RolloutService>(
      new RolloutService(cast, options, std::move(*book), std::move(prompts)));
}

template <World W>
runtime::task<void> RolloutService<W>::start() {
  const runtime::TaskContext& context = co_await runtime::this_context();
  background_ = std::make_unique<BackgroundTasks>(context.executor, [this](const Error& error) {
    if (!failure_) failure_ = error;
    bell_.ring();
  });
  log::info("rollout: {}", ledger().effective().to_string());
  step_begin_ = now();
  mark_ = mark_of(book_);
  refresh_replicas(false);
  if (pumps_.empty())
    throw runtime::Failure(Error{
        .code = ErrorCode::kNotFound,
        .message = fmt::format("rollout: no replica to generate on; the role names {}, lent ones "
                               "are used: {}",
                               cast_.streaming->replicas().size(), options_.lend),
        .origin = {},
        .causes = {}});
  background_->add(tick());
  changed();
}

// ---- prompts -------------------------------------------------------------------------------

template <World W>
result<bool> RolloutService<W>::issue_one() {
  if (buffer_begin_ == buffer_.rows()) {
    if (data_over_) return false;
    TROUPE_TRY(std::optional<runtime::Batch> more, prompts_());
    if (!more || more->empty()) {
      data_over_ = true;
      buffer_ = runtime::Batch();
      buffer_begin_ = 0;
      book_.end_of_data(now());
      return false;
    }
    buffer_ = std::move(*more);
    buffer_begin_ = 0;
  }
  TROUPE_TRY(const runtime::Batch row, buffer_.slice(buffer_begin_, 1));
  ++buffer_begin_;
  TROUPE_TRY_VOID(book_.issue(row, now()));
  return true;
}

template <World W>
void RolloutService<W>::refill() {
  while (!paused_ && !stopping_ && book_.free_groups() > 0) {
    const result<bool> issued = issue_one();
    if (!issued && !failure_) failure_ = issued.error();
    if (!issued || !*issued) return;
  }
}

/// After everything that may have changed what can be done next.
template <World W>
void RolloutService<W>::changed() {
  if (stopping_) return;
  book_.pace(waits_, now());
  refill();
  while (scores_in_flight_ < options_.scores_in_flight_max && book_.has_score_jobs()) {
    std::vector<ScoreJob> jobs = book_.next_score_jobs(options_.score_rows_max);
    if (jobs.empty()) continue;
    ++scores_in_flight_;
    background_->add(run_scores(std::move(jobs)));
  }
  while (turns_in_flight_ < options_.turns_in_flight_max && book_.has_environment_jobs()) {
    std::vector<EnvironmentJob> jobs = book_.next_environment_jobs(options_.turn_rows_max);
    if (jobs.empty()) continue;
    ++turns_in_flight_;
    background_->add(ask_turns(std::move(jobs)));
  }
  for (const auto& [replica, pump] : pumps_)
    if (book_.has_work(replica)) pump->bell.ring();
  bell_.ring();
}

// ---- waiting -------------------------------------------------------------------------------

template <World W>
void RolloutService<W>::throw_failure() const {
  if (failure_) throw runtime::Failure(*failure_);
  if (book_.failure()) throw runtime::Failure(*book_.failure());
}

template <World W>
Error RolloutService<W>::no_progress(const std::string& what, TimePoint since) const {
  std::string text = fmt::format("rollout: no progress for {:.1f} s while {}: {}",
                                 seconds(now() - since), what, book_.explain(now()));
  for (const auto& [replica, pump] : pumps_)
    if (pump->call_since)
      text += fmt::format("; replica {} has not answered its slice for {:.1f} s", replica.value,
                          seconds(now() - *pump->call_since));
  if (pumps_.empty()) text += fmt::format("; all replicas are lost, {} come back", reviving_);
  if (scores_in_flight_ > 0)
    text += fmt::format("; {} calls of rewards are under way", scores_in_flight_);
  if (turns_in_flight_ > 0)
    text += fmt::format("; {} calls of environments are under way", turns_in_flight_);
  return {.code = ErrorCode::kDeadline, .message = std::move(text), .origin = {}, .causes = {}};
}

/// Until something changed; throws what ends the run, or when nothing moves.
template <World W>
runtime::task<void> RolloutService<W>::wait_for_change(Watch& watch, std::string what) {
  throw_failure();
  if (watch.since == TimePoint{} || watch.seen != book_.progress())
    watch = {.seen = book_.progress(), .since = now()};
  if (now() - watch.since >= options_.no_progress_within)
    throw runtime::Failure(no_progress(what, watch.since));
  co_await bell_.wait(watch.since + options_.no_progress_within);
  throw_failure();
}

/// With no replica left: brings weights to those that were revived. False: nothing to do.
template <World W>
runtime::task<bool> RolloutService<W>::revive_all_lost() {
  if (!pumps_.empty()) co_return false;
  refresh_replicas(false);
  if (!pumps_.empty()) co_return true;
  if (revived_.empty() && reviving_ > 0) co_return false;
  if (revived_.empty())
    throw runtime::Failure(
        Error{.code = ErrorCode::kRankDead,
              .message = "rollout: all replicas are lost and none could be made anew",
              .origin = {},
              .causes = last_loss_ ? std::vector<Error>{*last_loss_} : std::vector<Error>{}});
  co_await cast_.weights.publish_present();
  refresh_replicas(true);
  changed();
  co_return true;
}

// ---- groups --------------------------------------------------------------------------------

template <World W>
runtime::task<StepGroups> RolloutService<W>::take_step() {
  return take_some(options_.rollout.ledger.groups_per_step,
                   options_.rollout.ledger.groups_per_step);
}

template <World W>
runtime::task<StepGroups> RolloutService<W>::take_some(std::int64_t least, std::int64_t most) {
  const TimePoint begin = now();
  waits_ = true;
  lend();
  Watch watch;
  RolloutBook::Taken taken;
  while (true) {
    changed();
    throw_failure();
    const std::int64_t enough = std::min(least, book_.wanted());
    if (enough == 0) break;
    if (told_to_stop_) break;
    if (book_.ready() >= enough || book_.dry()) {
      const bool last = book_.dry();
      taken = book_.take(most, now());
      if (last || !taken.groups.empty()) break;
      continue;  // what was ready has become too old
    }
    if (co_await revive_all_lost()) continue;
    co_await wait_for_change(watch, "the trainer waits for groups");
  }
  waits_ = false;
  changed();
  co_await recall(true);
  waited_for_groups_ += now() - begin;
  if (told_to_stop_ && taken.groups.empty() && book_.wanted() > 0)
    throw runtime::Failure(
        runtime::cancelled("rollout: told to stop while a step waited for groups"));
  co_return runtime::value_or_throw(groups_of(std::move(taken)));
}

template <World W>
result<StepGroups> RolloutService<W>::groups_of(RolloutBook::Taken taken) {
  StepGroups step;
  if (taken.groups.empty()) return step;
  std::vector<runtime::Batch> rows;
  for (const BatchGroup& one : taken.rows) rows.push_back(one.row);
  TROUPE_TRY(step.prompts, runtime::Batch::concat(rows));
  TROUPE_TRY(step.batch, trajectory_batch(taken.rows, taken.first));
  step.groups = std::move(taken.groups);
  return step;
}

template <World W>
runtime::Metrics RolloutService<W>::end_step() {
  const StepAccount account = runtime::value_or_throw(book_.end_step());
  runtime::Metrics metrics = step_metrics(book_, account, mark_);
  runtime::value_or_throw(metrics.merge(std::exchange(gathered_, {})));
  mark_ = mark_of(book_);
  for (const auto& [replica, pump] : pumps_) count_time(*pump);
  const double wall = std::max(seconds(now() - step_begin_), 1e-9);
  const double alive = seconds(alive_);
  const double idle = std::max(alive - seconds(busy_), 0.0);
  using runtime::Reduction;
  metrics.add("time/wait_for_batch", seconds(waited_for_groups_), Reduction::kSum);
  metrics.add("time/wait_for_samples", seconds(waited_for_samples_), Reduction::kSum);
  metrics.add("time/wait_for_policy", alive > 0 ? idle / alive * wall : 0, Reduction::kSum);
  const double waited = seconds(waited_for_groups_ + waited_for_samples_);
  metrics.add("trainer/idle_ratio", std::min(waited / wall, 1.0), Reduction::kLast);
  metrics.add("rollouter/idle_ratio", alive > 0 ? idle / alive : 1, Reduction::kLast);
  metrics.add("rollouter/replicas", static_cast<double>(pumps_.size()), Reduction::kLast);
  step_begin_ = now();
  waited_for_groups_ = waited_for_samples_ = alive_ = busy_ = Duration::zero();
  changed();
  return metrics;
}

template <World W>
void RolloutService<W>::published(WeightVersion version) {
  runtime::value_or_throw(book_.published(version, now()));
  refresh_replicas(true);
  changed();
}

template <World W>
runtime::task<void> RolloutService<W>::quiesce() {
  const TimePoint begin = now();
  Watch watch;
  const auto runs = [](const auto& one) { return !one.second->held; };
  while (!told_to_stop_ && book_.generating() > 0 && std::ranges::any_of(pumps_, runs)) {
    changed();
    co_await wait_for_change(watch, "a publication waits for samples under way");
  }
  if (told_to_stop_) co_await pause();
  waited_for_samples_ += now() - begin;
}

template <World W>
runtime::task<void> RolloutService<W>::pause() {
  paused_ = true;
  co_await recall(false);
}

template <World W>
void RolloutService<W>::resume() {
  paused_ = false;
  for (const auto& [replica, pump] : pumps_) {
    if (pump->lent && !waits_) continue;
    pump->held = false;
    book_.hold(replica, false, now());
  }
  changed();
}

template <World W>
runtime::task<void> RolloutService<W>::stop() {
  if (stopping_) co_return;
  stopping_ = true;
  book_.close(now());
  if (background_) co_await background_->stop(runtime::cancelled("rollout: the run is over"));
}

template <World W>
result<std::vector<std::byte>> RolloutService<W>::save() const {
  const std::int64_t left = buffer_.rows() - buffer_begin_;
  if (left == 0) return book_.save(runtime::Batch());
  TROUPE_TRY(const runtime::Batch unissued, buffer_.slice(buffer_begin_, left));
  return book_.save(unissued);
}

}  // namespace troupe::actors
