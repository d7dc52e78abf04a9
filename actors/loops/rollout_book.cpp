#include "actors/loops/rollout_book.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/sample_numbering.hpp"
#include "runtime/base/check.hpp"

#include <bit>
#include <utility>
#include <variant>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;

namespace {

/// What the environment said, in the columns of a reward.
result<Batch> environment_reward(double score) {
  Batch out;
  const std::vector<float> one{static_cast<float>(score)};
  TROUPE_TRY_VOID(out.set(std::string(column::kScores), Column::dense(one)));
  TROUPE_TRY_VOID(out.set(std::string(column::kAccuracy), Column::dense(one)));
  TROUPE_TRY_VOID(
      out.set(std::string(column::kAnswers), Column::strings(std::vector<std::string>{""})));
  return out;
}

/// Of KV that it takes at once.
std::int64_t tokens_of(const Trajectory& one) {
  return static_cast<std::int64_t>(one.prompt.size()) + one.length();
}

/// A partial may have grown since the dispatcher last heard of it: what it does not count is made
/// again. Not so the answer of an environment that came after its attempt was given up.
void cut_to(Trajectory& one, std::int64_t tokens) {
  if (one.length() > tokens && tokens >= one.turn_begin) one.rewind(tokens);
}

std::int64_t turns_of(const Trajectory& one) {
  std::int64_t turns = 0;
  for (std::size_t i = 0; i < one.versions.size(); ++i)
    if (one.versions[i] == kNoVersion && (i == 0 || one.versions[i - 1] != kNoVersion)) ++turns;
  return turns;
}

}  // namespace

result<TakeOrder> take_order_from_name(std::string_view name) {
  if (name == "ready") return TakeOrder::kReady;
  if (name == "issue") return TakeOrder::kIssue;
  return fail(ErrorCode::kConfig, "order of groups {}: wanted ready or issue", name);
}

const Trajectory& RolloutBook::Sample::best() const {
  const Trajectory* best = &start;
  for (const auto& [attempt, one] : partials)
    if (one.length() >= best->length()) best = &one;
  return *best;
}

result<std::int64_t> RolloutBook::score_of(const Batch& reward) {
  TROUPE_TRY(const Column scores, reward.require(column::kScores));
  if (reward.rows() != 1 || !(scores.type() == runtime::ColumnType{}))
    return fail(ErrorCode::kInvalidArgument, "rollout: reward of {} rows of {}, wanted one f32",
                reward.rows(), scores.type().to_string());
  return std::bit_cast<std::int32_t>(scores.scalar<float>(0) + 0.0F);  // −0 is 0
}

RolloutBook::Sample* RolloutBook::find(SampleId id) {
  return const_cast<Sample*>(std::as_const(*this).find(id));
}

const RolloutBook::Sample* RolloutBook::find(SampleId id) const {
  const auto place = groups_.find(id.group);
  if (place == groups_.end() || id.index >= place->second.samples.size()) return nullptr;
  return &place->second.samples[id.index];
}

Trajectory* RolloutBook::partial_of(std::uint64_t attempt) {
  return const_cast<Trajectory*>(std::as_const(*this).partial_of(attempt));
}

const Trajectory* RolloutBook::partial_of(std::uint64_t attempt) const {
  const auto place = attempts_.find(attempt);
  const Sample* sample = place == attempts_.end() ? nullptr : find(place->second.sample);
  if (sample == nullptr || sample->whole) return nullptr;
  const auto partial = sample->partials.find(attempt);
  return partial == sample->partials.end() ? nullptr : &partial->second;
}

void RolloutBook::fail_with(Error error) {
  if (failure_) return;
  if (last_error_) error.causes.push_back(*last_error_);
  failure_ = std::move(error);
}

void RolloutBook::send(DispatchEvent event) {
  events_.push_back(std::move(event));
  if (handling_) return;
  handling_ = true;
  while (!events_.empty()) {
    DispatchEvent next = std::move(events_.front());
    events_.pop_front();
    if (auto* pulls = std::get_if<RankPulls>(&next)) *pulls = pulls_of(pulls->rank);
    for (const DispatchEffect& effect : dispatcher_.step(next, now_))
      std::visit([this](const auto& one) { on(one); }, effect);
  }
  handling_ = false;
}

// ---- prompts -------------------------------------------------------------------------------

std::vector<RolloutBook::Sample> RolloutBook::samples_of(const GroupTicket& ticket,
                                                         const Batch& row) const {
  SamplingOptions sampling = options_.sampling;
  // Its step in the synchronous order, so that it draws what the synchronous loop would.
  const auto step = static_cast<std::int64_t>(ticket.group) / options_.ledger.groups_per_step + 1;
  sampling.seed = step_seed(options_.sampling.seed, step);
  const auto prompt = row.column(column::kPrompts).row<std::int32_t>(0);
  std::vector<Sample> samples(
      static_cast<std::size_t>(options_.group_size + options_.dispatch.samples_extra));
  for (std::uint32_t i = 0; i < samples.size(); ++i)
    samples[i].start = Trajectory::begin(ticket.group, ticket.origin.prompt_id, i, ticket.issued_at,
                                         {prompt.begin(), prompt.end()}, sampling);
  return samples;
}

result<void> RolloutBook::issue(const Batch& row, TimePoint now) {
  at(now);
  if (row.rows() != 1)
    return fail(ErrorCode::kInvalidArgument, "rollout: issued {} prompts at once, wanted 1",
                row.rows());
  TROUPE_TRY(const Column ids, row.require(column::kPromptIds));
  TROUPE_TRY(const Column prompts, row.require(column::kPrompts));
  const PromptOrigin origin{.prompt_id = static_cast<std::uint64_t>(ids.scalar<std::int64_t>(0))};
  TROUPE_TRY(const GroupTicket ticket, ledger_.issue(origin));
  Group& group = groups_[ticket.group];
  group.ticket = ticket;
  group.row = row;
  group.samples = samples_of(ticket, row);
  send(GroupIssued{.group = ticket.group, .prompt_tokens = prompts.row_length(0)});
  return {};
}

void RolloutBook::end_of_data(TimePoint now) {
  at(now);
  cancelled(ledger_.close(false));
}

void RolloutBook::close(TimePoint now) {
  at(now);
  cancelled(ledger_.close(true));
}

void RolloutBook::cancelled(const std::vector<CancelRecord>& records) {
  for (const CancelRecord& record : records) {
    groups_.erase(record.group);
    send(GroupCancelled{record.group, record.reason});
  }
  if (records.empty()) return;
  ++progress_;
  if (auto barren = ledger_.barren()) fail_with(std::move(*barren));
}

void RolloutBook::give_up(std::uint64_t group, Error error) {
  last_error_ = std::move(error);
  if (!ledger_.open_groups().contains(group)) return;
  auto record = ledger_.cancel(group, CancelReason::kFailed);
  if (!record) return fail_with(std::move(record).error());
  cancelled({*record});
}

// ---- replicas ------------------------------------------------------------------------------

void RolloutBook::join(const ReplicaInfo& info, TimePoint now) {
  at(now);
  replicas_[info.replica] =
      Replica{.info = info, .samples_free = info.samples_max, .tokens_free = info.tokens_max};
  send(RankJoined{info.replica, info.samples_max, info.tokens_max});
  pull(info.replica);
}

void RolloutBook::lose(RankId replica, TimePoint now) {
  at(now);
  std::erase_if(attempts_, [&](const auto& one) { return one.second.replica == replica; });
  if (replicas_.erase(replica) == 0) return;
  ++counts_.replicas_lost;
  send(RankLost{replica});
}

void RolloutBook::hold(RankId replica, bool held, TimePoint now) {
  at(now);
  const auto place = replicas_.find(replica);
  if (place == replicas_.end()) return;
  place->second.held = held;
  send(RankSuspected{replica, held});
  if (!held) pull(replica);
}

void RolloutBook::recall(RankId replica, TimePoint now) {
  hold(replica, true, now);
  const auto place = replicas_.find(replica);
  if (place == replicas_.end()) return;
  const std::vector<std::uint64_t> starts = std::exchange(place->second.starts, {});
  for (const std::uint64_t attempt : place->second.running) {
    Attempt& one = attempts_.at(attempt);
    if (!std::exchange(one.asked_back, true)) place->second.stops.push_back(attempt);
  }
  for (const std::uint64_t attempt : starts) {
    const Trajectory* partial = partial_of(attempt);
    end_attempt(attempt, AttemptOutcome::kInterrupted, partial == nullptr ? 0 : partial->length());
  }
}

void RolloutBook::pull(RankId replica) { send(RankPulls{.rank = replica}); }

/// What the replica would take now: counted when the dispatcher hears of it, since starts that were
/// decided meanwhile use it up.
RankPulls RolloutBook::pulls_of(RankId replica) const {
  const auto place = replicas_.find(replica);
  if (place == replicas_.end()) return {.rank = replica};
  const Replica& one = place->second;
  std::int64_t samples = one.samples_free - one.samples_sent;
  std::int64_t tokens = one.tokens_free - one.tokens_sent;
  for (const std::uint64_t attempt : one.starts) {
    --samples;
    if (const Trajectory* partial = partial_of(attempt)) tokens -= tokens_of(*partial);
  }
  return {replica, std::max<std::int64_t>(samples, 0), std::max<std::int64_t>(tokens, 0)};
}

bool RolloutBook::has_work(RankId replica) const {
  const auto place = replicas_.find(replica);
  if (place == replicas_.end()) return false;
  const Replica& one = place->second;
  return !one.starts.empty() || !one.stops.empty() || !one.running.empty();
}

std::int64_t RolloutBook::running_on(RankId replica) const {
  const auto place = replicas_.find(replica);
  return place == replicas_.end() ? 0 : static_cast<std::int64_t>(place->second.running.size());
}

AdvanceRequest RolloutBook::next_request(RankId replica) {
  AdvanceRequest request;
  const auto place = replicas_.find(replica);
  if (place == replicas_.end()) return request;
  Replica& one = place->second;
  for (const std::uint64_t attempt : std::exchange(one.starts, {})) {
    const Trajectory* partial = partial_of(attempt);
    TROUPE_CHECK(partial != nullptr, "rollout: attempt {} starts without a trajectory", attempt);
    attempts_.at(attempt).stage = Stage::kReplica;
    one.running.insert(attempt);
    ++one.samples_sent;
    one.tokens_sent += tokens_of(*partial);
    request.starts.push_back({.attempt = attempt, .trajectory = *partial});
  }
  request.stops = std::exchange(one.stops, {});
  return request;
}

result<void> RolloutBook::replied(RankId replica, AdvanceReply reply, TimePoint now) {
  at(now);
  if (!replicas_.contains(replica)) return {};
  for (SampleNews& news : reply.news) TROUPE_TRY_VOID(take_news(replica, news));
  // A stop may have crossed the end of its attempt: then there is nobody to stop.
  std::erase_if(replicas_.at(replica).stops,
                [&](std::uint64_t one) { return !attempts_.contains(one); });
  Replica& one = replicas_.at(replica);
  one.samples_free = reply.samples_free;
  one.tokens_free = reply.tokens_free;
  one.samples_sent = one.tokens_sent = 0;
  pull(replica);
  return {};
}

result<void> RolloutBook::take_news(RankId replica, SampleNews& news) {
  const auto place = attempts_.find(news.attempt);
  if (place == attempts_.end()) return {};  // nobody waits for it any more
  Attempt& attempt = place->second;
  if (attempt.replica != replica || attempt.stage != Stage::kReplica)
    return fail(ErrorCode::kConflict, "rollout: replica {} speaks of attempt {}, which is not its",
                replica.value, news.attempt);
  const bool finished = news.ended && news.outcome == AttemptOutcome::kFinished;
  std::int64_t tokens = news.from + static_cast<std::int64_t>(news.piece.tokens.size());
  if (Trajectory* partial = partial_of(news.attempt)) {
    TROUPE_TRY_VOID(partial->extend(
        news.from, news.piece, finished ? std::optional(news.reason) : std::nullopt, news.text));
    tokens = partial->length();
    if (!news.piece.versions.empty() && ledger_.open_groups().contains(partial->group))
      TROUPE_TRY_VOID(ledger_.began(partial->group, news.piece.versions.front()));
  }
  if (!news.piece.tokens.empty() || news.ended) ++progress_;
  if (!news.ended) {
    if (!news.piece.tokens.empty()) send(AttemptProgress{news.attempt, tokens});
    return {};
  }
  replicas_.at(replica).running.erase(news.attempt);
  if (news.outcome == AttemptOutcome::kFailed && news.error) last_error_ = *news.error;
  if (finished && options_.environment && partial_of(news.attempt) != nullptr) {
    send(AttemptProgress{news.attempt, tokens});
    finish_turn(news.attempt);
    return {};
  }
  end_attempt(news.attempt, news.outcome, tokens);
  return {};
}

/// The attempt has left its replica; the environment has the word.
void RolloutBook::finish_turn(std::uint64_t attempt) {
  const auto place = attempts_.find(attempt);
  if (place == attempts_.end()) return;
  place->second.stage = Stage::kEnvironment;
  turn_queue_.push_back(attempt);
}

void RolloutBook::end_attempt(std::uint64_t attempt, AttemptOutcome outcome, std::int64_t tokens) {
  const auto place = attempts_.find(attempt);
  if (place == attempts_.end()) return;
  const RankId rank = place->second.replica;
  const bool on_replica = place->second.stage == Stage::kReplica;
  const auto replica = replicas_.find(rank);
  if (replica != replicas_.end()) replica->second.running.erase(attempt);
  attempts_.erase(place);
  if (outcome == AttemptOutcome::kInterrupted) ++counts_.interrupted;
  if (outcome == AttemptOutcome::kFailed) ++counts_.failed;
  send(AttemptEnded{attempt, outcome, tokens});
  // One that was not there gives its place back without word from the replica.
  if (!on_replica && replica != replicas_.end()) pull(rank);
}

// ---- what the dispatcher decides -----------------------------------------------------------

void RolloutBook::on(const StartSample& effect) {
  Sample* sample = find(effect.sample);
  TROUPE_CHECK(sample != nullptr && !sample->whole, "rollout: group {} sample {} starts again",
               effect.sample.group, effect.sample.index);
  const bool fresh = effect.from_attempt == 0 && effect.from_tokens == 0;
  Trajectory from = sample->start;
  if (!fresh) {
    const auto place = sample->partials.find(effect.from_attempt);
    TROUPE_CHECK(place != sample->partials.end() && place->second.length() >= effect.from_tokens,
                 "rollout: group {} sample {} goes on from {} tokens of attempt {}, which are gone",
                 effect.sample.group, effect.sample.index, effect.from_tokens, effect.from_attempt);
    from = place->second;
    cut_to(from, effect.from_tokens);
  }
  std::erase_if(sample->partials, [&](const auto& one) {
    return one.first != effect.from_attempt && !attempts_.contains(one.first);
  });
  const bool turn_over = from.state == TrajectoryState::kFinished;
  sample->partials.insert_or_assign(effect.attempt, std::move(from));
  attempts_[effect.attempt] = Attempt{.sample = effect.sample, .replica = effect.rank};
  ++counts_.starts;
  if (turn_over) return finish_turn(effect.attempt);  // the environment still owes its answer
  replicas_.at(effect.rank).starts.push_back(effect.attempt);
}

void RolloutBook::on(const StopAttempt& effect) {
  const auto place = attempts_.find(effect.attempt);
  if (place == attempts_.end()) return;
  ++counts_.stops;
  Attempt& attempt = place->second;
  const Trajectory* partial = partial_of(effect.attempt);
  const std::int64_t tokens = partial == nullptr ? 0 : partial->length();
  Replica& replica = replicas_.at(attempt.replica);
  switch (attempt.stage) {
    case Stage::kOutbox:
      std::erase(replica.starts, effect.attempt);
      return end_attempt(effect.attempt, AttemptOutcome::kInterrupted, tokens);
    case Stage::kReplica:
      if (!std::exchange(attempt.asked_back, true)) replica.stops.push_back(effect.attempt);
      return;
    case Stage::kEnvironment:
      // Its answer ends the attempt; one that nobody wants need not wait for it.
      if (effect.cause == StopCause::kHedge || effect.cause == StopCause::kDropped)
        end_attempt(effect.attempt, AttemptOutcome::kInterrupted, tokens);
      return;
  }
}

void RolloutBook::on(const ScoreSample& effect) {
  Sample* sample = find(effect.sample);
  if (sample == nullptr) return;
  if (!sample->whole) {
    const auto place = sample->partials.find(effect.from_attempt);
    TROUPE_CHECK(place != sample->partials.end(),
                 "rollout: group {} sample {} is whole in attempt {}, which is gone",
                 effect.sample.group, effect.sample.index, effect.from_attempt);
    Trajectory end = std::move(place->second);
    cut_to(end, effect.tokens);
    if (end.state == TrajectoryState::kPartial) {
      end.state = TrajectoryState::kFinished;
      end.reason = StopReason::kLength;  // cut short by its deadline
    }
    sample->partials.clear();
    sample->partials.emplace(effect.from_attempt, std::move(end));
    sample->whole = true;
    ++progress_;
  }
  const Trajectory& end = sample->partials.begin()->second;
  if (end.score && !sample->reward) {
    auto reward = environment_reward(*end.score);
    if (!reward) return fail_with(std::move(reward).error());
    sample->reward = std::move(*reward);
  }
  if (!sample->reward) return score_queue_.push_back(effect.sample);
  const auto score = score_of(*sample->reward);
  if (!score) return fail_with(score.error());
  send(SampleScored{effect.sample, *score});
}

void RolloutBook::on(const GroupComplete& effect) {
  const auto place = groups_.find(effect.group);
  if (place == groups_.end()) return;
  Group& group = place->second;
  group.winners = effect.samples;
  std::vector<VersionSpan> spans;
  for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
    if (std::ranges::binary_search(group.winners, i))
      spans.push_back(group.samples[i].best().span());
    else
      group.samples[i].partials.clear();
  }
  ++progress_;
  auto record = ledger_.finish(effect.group, spans);
  if (!record) return fail_with(std::move(record).error());
  if (*record) cancelled({**record});
}

void RolloutBook::on(const GroupDropped& effect) {
  groups_.erase(effect.group);
  if (!ledger_.open_groups().contains(effect.group)) return;
  auto record = ledger_.cancel(effect.group, effect.reason);
  if (!record) return fail_with(std::move(record).error());
  cancelled({*record});
}

// ---- rewards and environments --------------------------------------------------------------

std::vector<ScoreJob> RolloutBook::next_score_jobs(std::int64_t most) {
  std::vector<ScoreJob> jobs;
  while (!score_queue_.empty() && std::cmp_less(jobs.size(), most)) {
    const SampleId id = score_queue_.front();
    score_queue_.pop_front();
    const Sample* sample = find(id);
    if (sample == nullptr || !sample->whole || sample->reward) continue;
    BatchGroup one{.row = groups_.at(id.group).row, .samples = {sample->best()}};
    auto row = sample_batch({&one, 1}, static_cast<std::int64_t>(id.group));
    if (!row) {
      fail_with(std::move(row).error());
      return {};
    }
    jobs.push_back({.sample = id, .row = std::move(*row)});
  }
  return jobs;
}

result<void> RolloutBook::scored(SampleId id, Batch row, TimePoint now) {
  at(now);
  Sample* sample = find(id);
  if (sample == nullptr || !sample->whole || sample->reward) return {};
  TROUPE_TRY(const std::int64_t score, score_of(row));
  if (const Column* failed = row.find(column::kScoreFailed)) {
    if (failed->scalar<std::uint8_t>(0) != 0) {
      ++counts_.score_failures;
      give_up(id.group, Error{.code = ErrorCode::kAborted,
                              .message = fmt::format("the reward gave group {} sample {} up",
                                                     id.group, id.index),
                              .origin = {},
                              .causes = {}});
      return {};
    }
    TROUPE_TRY(row, row.drop({std::string(column::kScoreFailed)}));
  }
  row.metrics().clear();
  sample->reward = std::move(row);
  ++counts_.scored;
  ++progress_;
  send(SampleScored{id, score});
  return {};
}

void RolloutBook::score_failed(SampleId id, const Error& error, TimePoint now) {
  at(now);
  last_error_ = error;
  ++counts_.score_failures;
  send(ScoreFailed{id});
}

std::vector<EnvironmentJob> RolloutBook::next_environment_jobs(std::int64_t most) {
  std::vector<EnvironmentJob> jobs;
  while (!turn_queue_.empty() && std::cmp_less(jobs.size(), most)) {
    const std::uint64_t attempt = turn_queue_.front();
    turn_queue_.pop_front();
    const Trajectory* partial = partial_of(attempt);
    if (partial == nullptr) {  // the sample was won by another attempt, or given up
      end_attempt(attempt, AttemptOutcome::kInterrupted, 0);
      continue;
    }
    const auto begin = static_cast<std::ptrdiff_t>(partial->turn_begin);
    jobs.push_back({.attempt = attempt,
                    .turn = {.group = partial->group,
                             .sample_index = partial->sample_index,
                             .response = {partial->tokens.begin() + begin, partial->tokens.end()},
                             .state = partial->environment,
                             .row = groups_.at(partial->group).row}});
  }
  return jobs;
}

result<void> RolloutBook::answered(std::uint64_t attempt, EnvironmentAnswer answer, TimePoint now) {
  at(now);
  const auto place = attempts_.find(attempt);
  if (place == attempts_.end() || place->second.stage != Stage::kEnvironment) return {};
  Trajectory* partial = partial_of(attempt);
  if (partial == nullptr) {
    end_attempt(attempt, AttemptOutcome::kInterrupted, 0);
    return {};
  }
  ++counts_.turns;
  ++progress_;
  if (!answer.failure.empty()) {
    give_up(partial->group, Error{.code = ErrorCode::kAborted,
                                  .message = "environment: " + answer.failure,
                                  .origin = {},
                                  .causes = {}});
    return {};
  }
  if (!answer.done && answer.tokens.empty())
    return fail(ErrorCode::kInvalidArgument,
                "environment: group {} sample {}: the episode goes on without a token",
                partial->group, partial->sample_index);
  const bool fits = static_cast<std::int64_t>(answer.tokens.size()) < partial->budget_left() &&
                    turns_of(*partial) < options_.environment_turns_max;
  if (answer.done || !fits) {
    if (!answer.done) partial->reason = StopReason::kLength;
    if (answer.score) partial->score = answer.score;
    end_attempt(attempt, AttemptOutcome::kFinished, partial->length());
    return {};
  }
  TROUPE_TRY_VOID(partial->append_environment(answer.tokens, std::move(answer.state)));
  end_attempt(attempt, AttemptOutcome::kInterrupted, partial->length());
  return {};
}

void RolloutBook::environment_failed(std::uint64_t attempt, const Error& error, TimePoint now) {
  at(now);
  last_error_ = error;
  const Trajectory* partial = partial_of(attempt);
  end_attempt(attempt, AttemptOutcome::kFailed, partial == nullptr ? 0 : partial->length());
}

}  // namespace troupe::actors
