#include "sim/world/streaming.hpp"

#include "runtime/base/check.hpp"
#include "runtime/task/executor.hpp"
#include "runtime/task/failure.hpp"
#include "sim/engine/duration.hpp"
#include "sim/engine/random.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe::sim {

using actors::AdvanceReply;
using actors::AdvanceRequest;
using actors::AttemptOutcome;
using actors::SampleNews;
using actors::StopReason;
using runtime::task;

namespace {

/// How soon real engines look for new work while others run.
constexpr Duration kLookEvery = std::chrono::milliseconds(20);

[[noreturn]] void die_with(ErrorCode code, std::string message) {
  throw runtime::Failure(
      Error{.code = code, .message = std::move(message), .origin = {}, .causes = {}});
}

/// Devices of the rollout's pool, from the first, on which trained roles stand, too.
int shared_devices(const SimJob& job) {
  int devices = 0;
  const auto look = [&](const SimTrainedRole& role) {
    if (role.pool == job.rollout.pool) devices = std::max(devices, role.layout.devices());
  };
  look(job.policy);
  if (job.reference) look(*job.reference);
  if (job.critic) look(*job.critic);
  return devices;
}

int turns_of(const actors::Trajectory& one) {
  int turns = 0;
  for (std::size_t i = 0; i < one.versions.size(); ++i)
    if (one.versions[i] == actors::kNoVersion &&
        (i == 0 || one.versions[i - 1] != actors::kNoVersion))
      ++turns;
  return turns;
}

}  // namespace

ReplicaOptions engine_options(const SimJob& job, int replica) {
  ReplicaOptions options = job.rollout.engine;
  const DrawKey key{job.seed, static_cast<std::uint64_t>(replica), Purpose::kStepNoise, 0};
  if (uniform(key) < job.stragglers.replica_share)
    options.slowness *= job.stragglers.replica_factor;
  return options;
}

result<std::unique_ptr<StreamReplica>> StreamReplica::create(StreamShared& shared,
                                                             const DecodeCost& cost, int index) {
  std::unique_ptr<StreamReplica> made(new StreamReplica(shared, index));
  TROUPE_TRY(made->engine_, Replica::create(cost, engine_options(shared.job, index), *made));
  made->draw_death();
  return made;
}

actors::ReplicaInfo StreamReplica::info() const {
  const int first = index_ * shared_.job.rollout.layout.tp;
  return {.replica = RankId{index_},
          .samples_max = slots(),
          .tokens_max = engine_->pool_tokens() / shared_.plan.chunk_tokens(),
          .lent = first < shared_devices(shared_.job)};
}

// ---- life ----------------------------------------------------------------------------------

void StreamReplica::draw_death() {
  const SimFailures& failures = shared_.job.failures;
  if (failures.rollout_mtbf_s <= 0) return;
  const DrawKey key{shared_.job.seed, static_cast<std::uint64_t>(index_), Purpose::kFailure, life_};
  const double mean = failures.rollout_mtbf_s / shared_.job.rollout.layout.tp;
  death_ = shared_.simulation.after(to_duration(mean * exponential(key)), *this, kDeath);
}

void StreamReplica::die() {
  flush_phase();
  alive_ = false;
  ++life_;
  engine_->stop_all(shared_.simulation);
  for (auto& [number, attempt] : attempts_) end_attempt(number, attempt, attempt.closed, "lost");
  attempts_.clear();
  finished_.clear();
  failed_since_ = now();
  phase_since_ = now();
  if (slice_) {
    shared_.simulation.cancel(slice_end_);
    const runtime::completer<int> slice = std::move(*slice_);
    slice_.reset();
    slice.fail(Error{.code = ErrorCode::kRankDead,
                     .message = fmt::format("replica {} died", index_),
                     .origin = {},
                     .causes = {}});
  }
  shared_.nudge();
}

void StreamReplica::require_life(std::uint64_t life) const {
  if (!alive_ || life_ != life)
    die_with(ErrorCode::kRankDead, fmt::format("replica {} died", index_));
}

task<void> StreamReplica::revive() {
  const std::uint64_t life = life_;
  co_await runtime::sleep_for(to_duration(shared_.job.failures.rollout_restart_s));
  if (alive_ || life_ != life)
    die_with(ErrorCode::kConflict, fmt::format("replica {} is alive", index_));
  revived_ = true;
}

void StreamReplica::on_event(Simulation&, const Event& event) {
  if (event.kind == kSliceEnd) return end_slice();
  die();
}

void StreamReplica::end_slice() {
  if (!slice_) return;
  shared_.simulation.cancel(slice_end_);
  const runtime::completer<int> slice = std::move(*slice_);
  slice_.reset();
  slice.complete(0);
}

void StreamReplica::on_finished(Replica& engine, const SimSequence& sequence) {
  if (const auto place = attempts_.find(sequence.id); place != attempts_.end())
    close(place->second, sequence.generated, true, true);
  finished_.push_back(sequence);
  if (engine.running() + engine.waiting() == 0) flush_phase();
  end_slice();
}

/// Busy, or dead, up to now.
void StreamReplica::flush_phase() {
  if (!phase_since_) return;
  const int tp = shared_.job.rollout.layout.tp;
  if (now() > *phase_since_)
    shared_.phases.add({.role = "rollout",
                        .phase = alive_ ? "generate" : "failed",
                        .pool = shared_.job.rollout.pool,
                        .first_device = index_ * tp,
                        .devices = tp,
                        .begin = *phase_since_,
                        .end = now()});
  phase_since_ = now();
  if (alive_ && engine_->running() + engine_->waiting() == 0) phase_since_.reset();
}

// ---- weights -------------------------------------------------------------------------------

void StreamReplica::pause() {
  if (!alive_) return;
  flush_phase();
  phase_since_.reset();
  engine_->pause(shared_.simulation);
}

void StreamReplica::land(WeightVersion version) {
  if (!alive_) {
    version_ = version;
    if (!std::exchange(revived_, false)) return;
    flush_phase();
    phase_since_.reset();
    alive_ = true;
    shared_.trace.failures.push_back(
        {.role = "rollout", .replica = index_, .begin = failed_since_, .end = now()});
    draw_death();
    engine_->resume(shared_.simulation);
    return;
  }
  engine_->settle(shared_.simulation);
  engine_->for_each([this](const SimSequence& one) {
    const auto attempt = attempts_.find(one.id);
    if (attempt != attempts_.end()) close(attempt->second, one.generated, true, false);
  });
  version_ = version;
  if (shared_.job.pacing.kv == KvAtUpdate::kRecompute)
    for (const SimSequence& one : engine_->stop_all(shared_.simulation))
      runtime::value_or_throw(engine_->submit(shared_.simulation, one));
  if (engine_->running() + engine_->waiting() > 0) phase_since_ = now();
  engine_->resume(shared_.simulation);
}

// ---- attempts ------------------------------------------------------------------------------

/// Writes what is not in chunks yet into some, under the version that serves: whole ones, or all of
/// it. The last place that the trajectory has is kept for the end.
void StreamReplica::close(Attempt& attempt, std::int64_t generated, bool all, bool last) {
  std::int64_t open = generated - attempt.closed;
  const std::int64_t unit = shared_.plan.chunk_tokens();
  while (open > 0 && (all || open >= unit)) {
    if (attempt.chunks_left < 2 && !last) return;
    const std::int64_t tokens = attempt.chunks_left < 2 ? open : std::min(open, unit);
    attempt.chunks.push_back({static_cast<std::int32_t>(tokens), version_});
    if (!attempt.oldest) attempt.oldest = version_;
    attempt.newest = version_;
    --attempt.chunks_left;
    attempt.closed += tokens;
    open -= tokens;
  }
}

SampleNews StreamReplica::news_of(std::uint64_t number, Attempt& attempt) const {
  SampleNews news{.attempt = number, .from = attempt.told};
  for (const Chunk& chunk : attempt.chunks) {
    news.piece.tokens.push_back(chunk.tokens);
    news.piece.log_probs.push_back(0);
    news.piece.full_log_probs.push_back(0);
    news.piece.versions.push_back(chunk.version);
  }
  attempt.told += static_cast<std::int64_t>(attempt.chunks.size());
  attempt.chunks.clear();
  return news;
}

void StreamReplica::end_attempt(std::uint64_t, Attempt& attempt, std::int64_t generated,
                                std::string_view outcome) {
  if (!shared_.trace.whole) return;
  shared_.trace.trajectories.push_back({.group = attempt.group,
                                        .sample = attempt.sample,
                                        .replica = index_,
                                        .begin = attempt.begin,
                                        .end = now(),
                                        .tokens = generated - attempt.had,
                                        .oldest_version = attempt.oldest.value_or(version_).value,
                                        .newest_version = attempt.newest.value,
                                        .outcome = std::string(outcome)});
}

void StreamReplica::start(actors::SampleStart& one, std::vector<SampleNews>& news) {
  const SamplePlan& plan = shared_.plan;
  const actors::Trajectory& sample = one.trajectory;
  Attempt attempt{.group = sample.group,
                  .prompt_id = sample.prompt_id,
                  .sample = sample.sample_index,
                  .prompt = tokens_in(sample.prompt),
                  .had = tokens_in(sample.tokens),
                  .told = sample.length(),
                  .begin = now(),
                  .newest = version_};
  attempt.closed = attempt.had;
  std::int64_t sampled = 0;
  for (std::size_t i = 0; i < sample.tokens.size(); ++i)
    if (sample.versions[i] != actors::kNoVersion) sampled += sample.tokens[i];
  const int turn = turns_of(sample);
  const int turns_left = plan.turns(sample.prompt_id, sample.sample_index) - turn - 1;
  const std::int64_t goal = plan.tokens_by_turn(sample.prompt_id, sample.sample_index, turn);
  attempt.last_turn = turns_left <= 0;
  attempt.chunks_left = std::max<std::int64_t>(
      1, sample.budget_left() - std::max(turns_left, 0) * plan.turn_chunks());
  const std::int64_t rest = std::max<std::int64_t>(1, goal - sampled);
  const SimSequence sequence{.id = one.attempt,
                             .group = sample.group,
                             .prompt = attempt.prompt,
                             .length = attempt.had + rest,
                             .generated = attempt.had};
  if (auto taken = engine_->submit(shared_.simulation, sequence); !taken) {
    SampleNews failed{.attempt = one.attempt, .from = attempt.told, .ended = true};
    failed.outcome = AttemptOutcome::kFailed;
    failed.reason = StopReason::kFailed;
    failed.error = taken.error();
    if (!shared_.failure) shared_.failure = taken.error();
    news.push_back(std::move(failed));
    return;
  }
  attempts_.emplace(one.attempt, std::move(attempt));
  if (!phase_since_ && !engine_->paused()) phase_since_ = now();
}

void StreamReplica::stop(std::uint64_t number, std::vector<SampleNews>& news) {
  const auto place = attempts_.find(number);
  if (place == attempts_.end()) return;
  const auto stopped = engine_->stop(shared_.simulation, number);
  if (!stopped) return;  // it has just finished: its news come by themselves
  close(place->second, stopped->generated, true, false);
  SampleNews one = news_of(number, place->second);
  one.ended = true;
  end_attempt(number, place->second, stopped->generated, "interrupted");
  attempts_.erase(place);
  news.push_back(std::move(one));
}

void StreamReplica::collect(std::vector<SampleNews>& news) {
  for (const SimSequence& sequence : std::exchange(finished_, {})) {
    const auto place = attempts_.find(sequence.id);
    if (place == attempts_.end()) continue;
    Attempt& attempt = place->second;
    SampleNews one = news_of(sequence.id, attempt);
    one.ended = true;
    one.outcome = AttemptOutcome::kFinished;
    const std::int64_t answer = shared_.plan.answer_tokens(attempt.prompt_id, attempt.sample);
    const bool cut = attempt.last_turn && shared_.plan.at_bound(answer);
    one.reason = cut ? StopReason::kLength : StopReason::kStopId;
    if (attempt.last_turn) {
      const auto whole = static_cast<double>(attempt.prompt + sequence.generated);
      shared_.flops += forward_flops(shared_.job.policy.model, whole, whole * whole);
    }
    end_attempt(sequence.id, attempt, sequence.generated, attempt.last_turn ? "finished" : "turn");
    attempts_.erase(place);
    news.push_back(std::move(one));
  }
  // All that run grow by one token a step: before so many steps none has a whole chunk more.
  engine_->settle(shared_.simulation);
  const std::int64_t steps = engine_->statistics().steps;
  if (steps - steps_told_ < shared_.plan.chunk_tokens()) return;
  steps_told_ = steps;
  engine_->for_each([&](const SimSequence& sequence) {
    const auto place = attempts_.find(sequence.id);
    if (place == attempts_.end()) return;
    close(place->second, sequence.generated, false, false);
    if (!place->second.chunks.empty()) news.push_back(news_of(sequence.id, place->second));
  });
}

task<AdvanceReply> StreamReplica::advance(AdvanceRequest request) {
  const std::uint64_t life = life_;
  require_life(life);
  if (slice_) die_with(ErrorCode::kConflict, fmt::format("replica {}: two slices at once", index_));
  const std::int64_t steps = engine_->statistics().steps;
  AdvanceReply reply;
  for (const std::uint64_t attempt : request.stops) stop(attempt, reply.news);
  for (actors::SampleStart& one : request.starts) start(one, reply.news);
  const bool works = engine_->running() + engine_->waiting() > 0;
  if (reply.news.empty() && finished_.empty() && works) {
    auto ends = runtime::make_pending<int>();
    slice_ = std::move(ends.second);
    slice_end_ =
        shared_.simulation.after(to_duration(shared_.job.pacing.slice_max_s), *this, kSliceEnd);
    runtime::pending<int> over = std::move(ends.first);
    co_await std::move(over);
    require_life(life);
  }
  collect(reply.news);
  std::sort(reply.news.begin(), reply.news.end(),
            [](const SampleNews& a, const SampleNews& b) { return a.attempt < b.attempt; });
  reply.samples_free = slots() - static_cast<std::int64_t>(attempts_.size());
  reply.tokens_free = engine_->free_tokens() / shared_.plan.chunk_tokens();
  reply.version = version_;
  reply.steps = engine_->statistics().steps - steps;
  if (shared_.trace.whole)
    shared_.trace.kv.push_back({.replica = index_,
                                .at = now(),
                                .tokens = engine_->used_tokens(),
                                .running = engine_->running(),
                                .waiting = engine_->waiting()});
  co_return reply;
}

// ---- all replicas --------------------------------------------------------------------------

result<std::unique_ptr<SimStreaming>> SimStreaming::create(Simulation& simulation,
                                                           const SimJob& job,
                                                           const SamplePlan& plan,
                                                           const DecodeCost& cost, PhaseLog& phases,
                                                           RunTrace& trace) {
  std::unique_ptr<SimStreaming> made(new SimStreaming(simulation, job, plan, phases, trace));
  for (int i = 0; i < job.rollout.replicas; ++i) {
    TROUPE_TRY(auto replica, StreamReplica::create(made->shared_, cost, i));
    made->replicas_.push_back(std::move(replica));
  }
  return made;
}

std::vector<actors::ReplicaInfo> SimStreaming::replicas() {
  std::vector<actors::ReplicaInfo> all;
  for (const auto& one : replicas_)
    if (one->alive()) all.push_back(one->info());
  return all;
}

task<AdvanceReply> SimStreaming::advance(RankId replica, AdvanceRequest request) {
  return replicas_[static_cast<std::size_t>(replica.value)]->advance(std::move(request));
}

task<void> SimStreaming::revive(RankId replica) {
  return replicas_[static_cast<std::size_t>(replica.value)]->revive();
}

void SimStreaming::pause() {
  for (const auto& one : replicas_) one->pause();
}

void SimStreaming::land(WeightVersion version) {
  for (const auto& one : replicas_) one->land(version);
  nudge();
}

void SimStreaming::flush_phases() {
  for (const auto& one : replicas_) one->flush_phase();
}

void SimStreaming::nudge() {
  if (shared_.simulation.pending(nudge_)) return;
  nudge_ = shared_.simulation.after(kLookEvery, *this, 0);
}

void SimStreaming::on_event(Simulation&, const Event&) {
  for (const auto& one : replicas_) one->end_slice();
}

std::vector<ReplicaStatistics> SimStreaming::statistics() const {
  std::vector<ReplicaStatistics> all;
  for (const auto& one : replicas_) all.push_back(one->statistics());
  return all;
}

}  // namespace troupe::sim
