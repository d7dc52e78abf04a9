#include "actors/roles/rollout_stream.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

namespace troupe::actors {
namespace {

using runtime::Reduction;

/// Longest sleep between two looks at deadlines.
constexpr Duration kNapMax = std::chrono::seconds(1);

RolloutStats since(const RolloutStats& before, const RolloutStats& after) {
  RolloutStats stats;
  stats.tokens_generated = after.tokens_generated - before.tokens_generated;
  stats.prefill_tokens = after.prefill_tokens - before.prefill_tokens;
  stats.prefix_tokens_shared = after.prefix_tokens_shared - before.prefix_tokens_shared;
  stats.preemptions = after.preemptions - before.preemptions;
  stats.failed = after.failed - before.failed;
  stats.step_s = after.step_s - before.step_s;
  return stats;
}

/// Samples that can be one request: see `resume_group`.
bool share_prefill(const Trajectory& a, const Trajectory& b) {
  return a.group == b.group && a.prompt_id == b.prompt_id && a.turn_begin == b.turn_begin &&
         a.prompt == b.prompt && a.sampling == b.sampling &&
         std::equal(a.tokens.begin(), a.tokens.begin() + a.turn_begin, b.tokens.begin());
}

AttemptOutcome outcome_of(const GeneratedSequence& whole, bool cut) {
  if (whole.reason == StopReason::kFailed) return AttemptOutcome::kFailed;
  if (cut || whole.reason == StopReason::kAborted) return AttemptOutcome::kInterrupted;
  return AttemptOutcome::kFinished;
}

SamplePrefix copy_of(const OutputView& view, std::int64_t count) {
  const auto most = static_cast<std::ptrdiff_t>(count);
  return SamplePrefix{
      .tokens = {view.tokens.begin(), view.tokens.begin() + most},
      .log_probs = {view.log_probs.begin(), view.log_probs.begin() + most},
      .full_log_probs = {view.full_log_probs.begin(), view.full_log_probs.begin() + most},
      .versions = {view.versions.begin(), view.versions.begin() + most}};
}

}  // namespace

void add_rollout_stats(const RolloutStats& stats, runtime::Metrics& metrics) {
  const auto add = [&](std::string_view name, std::int64_t value) {
    metrics.add(name, static_cast<double>(value), Reduction::kSum);
  };
  add("rollout/tokens_generated", stats.tokens_generated);
  add("rollout/prefill_tokens", stats.prefill_tokens);
  add("rollout/prefix_tokens_shared", stats.prefix_tokens_shared);
  add("rollout/preemptions", stats.preemptions);
  add("rollout/failed", stats.failed);
}

result<AdvanceReply> RolloutStream::advance(const AdvanceRequest& request, Deadline deadline) {
  TROUPE_TRY(std::vector<Planned> planned, plan(request));
  const RolloutStats before = engine_.stats();
  waited_ = Duration(0);
  TROUPE_TRY_VOID(look_at_clock());
  collect();
  TROUPE_TRY_VOID(meet_new_weights());
  stop(request.stops);
  TROUPE_TRY_VOID(start(std::move(planned)));
  stop(request.stops);  // those of this request; the others are no longer under way
  collect();
  AdvanceReply reply;
  TROUPE_TRY(reply.steps, run(request, deadline));
  tell(reply);
  const RolloutStats done = since(before, engine_.stats());
  add_rollout_stats(done, reply.metrics);
  reply.metrics.add("rollout/busy_s", done.step_s, Reduction::kSum);
  if (delay_.on()) reply.metrics.add("simulated/waited_s", seconds(waited_), Reduction::kSum);
  reply.samples_free = engine_.options().max_num_seqs - running();
  reply.tokens_free = engine_.kv_tokens_free();
  reply.version = engine_.version();
  return reply;
}

// ---- the request ---------------------------------------------------------------------------

result<std::vector<RolloutStream::Planned>> RolloutStream::plan(
    const AdvanceRequest& request) const {
  if (request.steps_max < 1 || request.slice < Duration(0))
    return fail(ErrorCode::kInvalidArgument,
                "advance: steps_max {} and slice {} ns, wanted at least 1 and 0", request.steps_max,
                request.slice.count());
  if (!engine_.has_weights() || !engine_.kv_resident())
    return fail(ErrorCode::kConflict, "advance: the engine has {}",
                engine_.has_weights() ? "no KV cache" : "no weights");
  TROUPE_TRY_VOID(check_room(request));
  std::vector<Planned> planned;
  std::set<std::uint64_t> seen;
  for (const SampleStart& one : request.starts) {
    if (attempts_.contains(one.attempt) || !seen.insert(one.attempt).second)
      return fail(ErrorCode::kConflict, "advance: attempt {} starts, and is here already",
                  one.attempt);
    if (auto fits = one.trajectory.check(); !fits)
      return fail(std::move(fits).error().wrap(ErrorCode::kInvalidArgument,
                                               fmt::format("advance: attempt {}", one.attempt)));
    const auto place = std::ranges::find_if(planned, [&](const Planned& other) {
      return share_prefill(other.trajectories.front(), one.trajectory);
    });
    Planned& target = place == planned.end() ? planned.emplace_back() : *place;
    target.attempts.push_back(one.attempt);
    target.trajectories.push_back(one.trajectory);
  }
  for (Planned& one : planned) {
    auto asked = resume_group(one.trajectories);
    result<void> fits;
    if (asked) {
      one.request = std::move(*asked);
      fits = engine_.check(one.request);
    } else {
      fits = fail(std::move(asked).error());
    }
    if (fits) continue;
    const ErrorCode code = fits.error().code;
    return fail(std::move(fits).error().wrap(
        code, fmt::format("advance: attempt {} and those that share its prefill ({})",
                          one.attempts.front(), one.attempts.size())));
  }
  return planned;
}

result<void> RolloutStream::check_room(const AdvanceRequest& request) const {
  std::set<std::uint64_t> leaving;
  for (const std::uint64_t& attempt : request.stops)
    if (attempts_.contains(attempt)) leaving.insert(attempt);
  const auto starts = static_cast<std::int64_t>(request.starts.size());
  const std::int64_t staying = running() - static_cast<std::int64_t>(leaving.size());
  const EngineOptions& options = engine_.options();
  if (staying + starts > options.max_num_seqs)
    return fail(ErrorCode::kResourceExhausted,
                "advance: {} starts beside {} attempts under way, max_num_seqs is {}", starts,
                staying, options.max_num_seqs);
  if (engine_.unfinished() + starts > options.max_queued_sequences)
    return fail(ErrorCode::kResourceExhausted,
                "advance: {} starts onto a queue of {}, max_queued_sequences is {}", starts,
                engine_.unfinished(), options.max_queued_sequences);
  return {};
}

result<void> RolloutStream::start(std::vector<Planned> planned) {
  for (Planned& one : planned) {
    const bool prefixed = !one.request.prefixes.empty();
    GenerateRequest again;
    if (delay_.on()) {
      again.prompt_id = one.request.prompt_id;
      again.prompt = one.request.prompt;
      again.sampling = one.request.sampling;
    }
    std::vector<Attempt> made;
    for (std::size_t i = 0; i < one.attempts.size(); ++i) {
      Attempt& attempt = made.emplace_back();
      attempt.turn_begin = one.trajectories[i].turn_begin;
      attempt.told = prefixed ? std::ssize(one.request.prefixes[i].tokens) : 0;
      if (!delay_.on()) continue;
      const std::uint32_t sample = one.request.sample_indices[i];
      attempt.again = again;
      attempt.again.sample_indices = {sample};
      attempt.brought = attempt.told;
      attempt.began = now_;
      attempt.lasts = delay_.of(again.prompt_id, sample, again.sampling.seed);
    }
    TROUPE_TRY(const std::vector<SequenceId> ids, engine_.submit(std::move(one.request)));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      made[i].sequence = ids[i];
      by_sequence_.emplace(ids[i], one.attempts[i]);
      attempts_.emplace(one.attempts[i], std::move(made[i]));
    }
  }
  return {};
}

void RolloutStream::stop(const std::vector<std::uint64_t>& stops) {
  for (const std::uint64_t& number : stops) {
    const auto found = attempts_.find(number);
    if (found == attempts_.end() || found->second.stopped) continue;
    // Whole and over already: it has finished, which is what the next news says.
    if (ended(found->second)) continue;
    found->second.stopped = true;
    engine_.abort(found->second.sequence);
  }
  collect();
}

/// Results of sequences that belong to no attempt any more are nobody's.
void RolloutStream::collect() {
  for (GeneratedSequence& sequence : engine_.take_finished()) {
    const auto found = by_sequence_.find(sequence.id);
    if (found == by_sequence_.end()) continue;
    attempts_.at(found->second).whole = std::move(sequence);
    by_sequence_.erase(found);
  }
}

// ---- time ----------------------------------------------------------------------------------

/// Ranks must decide alike: the time is that of the rank whose clock says least.
result<void> RolloutStream::look_at_clock() {
  if (!delay_.on()) return {};
  TROUPE_TRY(const std::int64_t agreed, engine_.smallest(clock_.now().time_since_epoch().count()));
  now_ = TimePoint(Duration(agreed));
  return {};
}

std::int64_t RolloutStream::generated(const Attempt& attempt) const {
  if (attempt.whole) return std::ssize(attempt.whole->tokens);
  return std::ssize(output(attempt, 0).tokens);
}

OutputView RolloutStream::output(const Attempt& attempt, std::int64_t from) const {
  if (attempt.whole) {
    const GeneratedSequence& whole = *attempt.whole;
    const auto first = static_cast<std::size_t>(from);
    return OutputView{.tokens = std::span(whole.tokens).subspan(first),
                      .log_probs = std::span(whole.log_probs).subspan(first),
                      .full_log_probs = std::span(whole.full_log_probs).subspan(first),
                      .versions = std::span(whole.versions).subspan(first)};
  }
  const auto view = engine_.output(attempt.sequence, from);
  TROUPE_CHECK(view.has_value(), "rollout stream: sequence {} is lost", attempt.sequence.value);
  return *view;
}

/// When the declared time of a whole sample is over. It had part of its tokens when it began here.
TimePoint RolloutStream::over_at(const Attempt& attempt) const {
  const std::int64_t all = attempt.turn_begin + generated(attempt);
  const std::int64_t here = generated(attempt) - attempt.brought;
  const double share = all == 0 ? 0.0 : static_cast<double>(here) / static_cast<double>(all);
  return attempt.began + Duration(std::llround(static_cast<double>(attempt.lasts.count()) * share));
}

bool RolloutStream::ended(const Attempt& attempt) const {
  if (!attempt.whole) return false;
  const StopReason reason = attempt.whole->reason;
  return !delay_.on() || attempt.stopped || reason == StopReason::kAborted ||
         reason == StopReason::kFailed || now_ >= over_at(attempt);
}

bool RolloutStream::any_ended() const {
  return std::ranges::any_of(attempts_, [this](const auto& one) { return ended(one.second); });
}

/// Output tokens that the other side may have by now. Of a sample of n tokens in the end, n · t / d
/// take t of its time d; before the end is known, n is at least what is there.
std::int64_t RolloutStream::due(const Attempt& attempt) const {
  const std::int64_t there = generated(attempt);
  if (!delay_.on()) return there;
  const bool whole = attempt.whole && attempt.whole->reason != StopReason::kAborted;
  if (whole && now_ >= over_at(attempt)) return there;
  const double spent = static_cast<double>((now_ - attempt.began).count());
  const double paced = static_cast<double>(attempt.turn_begin + there) * spent /
                       static_cast<double>(attempt.lasts.count());
  const std::int64_t most = whole ? there - 1 : there;  // its end is what it waits for
  const double bounded = std::min(std::max(paced, 0.0), static_cast<double>(there));
  const std::int64_t paid = attempt.brought + static_cast<std::int64_t>(std::floor(bounded));
  return std::max(attempt.told, std::min(paid, most));
}

/// Tokens that an attempt has ahead of its pace would not have been made under the old weights.
result<void> RolloutStream::meet_new_weights() {
  if (engine_.version() == version_) return {};
  version_ = engine_.version();
  if (!delay_.on()) return {};
  for (auto& [number, attempt] : attempts_) {
    const std::int64_t keep = due(attempt);
    if (ended(attempt) || keep == generated(attempt)) continue;
    GenerateRequest request = attempt.again;
    request.prefixes = {copy_of(output(attempt, 0), keep)};
    if (!attempt.whole) {
      by_sequence_.erase(attempt.sequence);
      engine_.abort(attempt.sequence);
    }
    TROUPE_TRY(const std::vector<SequenceId> ids, engine_.submit(std::move(request)));
    attempt.whole.reset();
    attempt.sequence = ids.front();
    attempt.brought = keep;
    attempt.began = now_;
    by_sequence_.emplace(ids.front(), number);
  }
  collect();
  return {};
}

// ---- the slice -----------------------------------------------------------------------------

result<std::int64_t> RolloutStream::run(const AdvanceRequest& request, Deadline deadline) {
  const TimePoint end = clock_.now() + request.slice;
  std::int64_t steps = 0;
  bool leave = any_ended();
  while (!leave && !attempts_.empty()) {
    if (engine_.unfinished() == 0) {
      TROUPE_TRY(const bool over, wait(end, deadline));
      if (over) break;
    } else {
      const bool over = (steps > 0 && clock_.now() >= end) || deadline.passed();
      if (steps == request.steps_max) break;
      TROUPE_TRY(const std::optional<EngineStep> report, engine_.step_unless(over));
      if (!report) break;
      ++steps;
      if (report->finished > 0) collect();
      leave = report->finished > 0 && any_ended();
    }
    if (!delay_.on()) continue;
    TROUPE_TRY_VOID(look_at_clock());
    leave = any_ended();
  }
  return steps;
}

/// All attempts are whole: sleeps until the next one is over, or the slice; true when it is.
result<bool> RolloutStream::wait(TimePoint end, Deadline deadline) {
  TROUPE_CHECK(delay_.on(), "rollout stream: {} attempts are neither under way nor over",
               running());
  const TimePoint here = clock_.now();
  TROUPE_TRY(const std::int64_t left,
             engine_.smallest(deadline.passed() ? 0 : (end - here).count()));
  if (left <= 0) return true;
  Duration nap = std::min(Duration(left), kNapMax);
  for (const auto& [number, attempt] : attempts_) nap = std::min(nap, over_at(attempt) - now_);
  nap = std::max(nap, Duration(1));
  clock_.sleep_for(nap);
  waited_ += nap;
  return false;
}

result<void> RolloutStream::settle(Deadline deadline) {
  TROUPE_TRY_VOID(engine_.drain());
  collect();
  if (!delay_.on()) return {};
  while (true) {
    TROUPE_TRY_VOID(look_at_clock());
    Duration longest{0};
    for (const auto& [number, attempt] : attempts_)
      if (attempt.whole && !ended(attempt)) longest = std::max(longest, over_at(attempt) - now_);
    if (longest <= Duration(0)) return {};
    TROUPE_TRY(const std::int64_t in_time, engine_.smallest(deadline.passed() ? 0 : 1));
    if (in_time == 0)
      return fail(ErrorCode::kDeadline,
                  "rollout stream: {} attempts still wait {:.3f} s for their simulated end",
                  running(), seconds(longest));
    clock_.sleep_for(std::min(longest, kNapMax));
  }
}

// ---- the answer ----------------------------------------------------------------------------

void RolloutStream::tell(AdvanceReply& reply) {
  for (auto place = attempts_.begin(); place != attempts_.end();) {
    Attempt& attempt = place->second;
    const bool over = ended(attempt);
    if (over || due(attempt) > attempt.told) reply.news.push_back(news_of(place->first, attempt));
    if (over && delay_.on())
      reply.metrics.add("simulated/generation_delay_s", seconds(attempt.lasts), Reduction::kMean);
    place = over ? attempts_.erase(place) : std::next(place);
  }
}

SampleNews RolloutStream::news_of(std::uint64_t number, Attempt& attempt) const {
  SampleNews news;
  news.attempt = number;
  news.from = attempt.turn_begin + attempt.told;
  news.ended = ended(attempt);
  const bool failed = news.ended && attempt.whole->reason == StopReason::kFailed;
  const std::int64_t upto = failed ? attempt.told : due(attempt);
  news.piece = copy_of(output(attempt, attempt.told), upto - attempt.told);
  attempt.told = upto;
  if (!news.ended) return news;
  const bool cut = attempt.stopped && upto < generated(attempt);
  news.outcome = outcome_of(*attempt.whole, cut);
  news.reason =
      news.outcome == AttemptOutcome::kInterrupted ? StopReason::kAborted : attempt.whole->reason;
  if (news.outcome == AttemptOutcome::kFinished) news.text = std::move(attempt.whole->text);
  news.error = std::move(attempt.whole->error);
  return news;
}

}  // namespace troupe::actors
