#include "runtime/cluster/agent_core.hpp"

#include <algorithm>
#include <utility>

namespace troupe::runtime {
namespace {

std::string rank_name(const std::string& group, RankId rank) {
  return fmt::format("{} rank {}", group, rank.value);
}

}  // namespace

AgentCore::AgentCore(std::string node, std::uint64_t instance, AgentPolicy policy)
    : node_(std::move(node)), instance_(instance), policy_(policy) {}

result<ControllerWelcome> AgentCore::hello(const JobHello& hello, Connection controller,
                                           TimePoint now, Effects& effects) {
  if (draining_) return fail(ErrorCode::kAborted, "node {} is draining: {}", node_, *draining_);
  auto found = jobs_.find(hello.job);
  if (found != jobs_.end() && found->second.instance != hello.instance) {
    // Its predecessor's ranks have to go first; that one cannot come back under this name.
    if (found->second.controller)
      return fail(ErrorCode::kAlreadyExists, "job {}: another controller of that name is connected",
                  hello.job);
    if (found->second.ranks > 0)
      return fail(ErrorCode::kConflict, "job {}: {} ranks of an earlier controller are being ended",
                  hello.job, found->second.ranks);
    jobs_.erase(found);
    found = jobs_.end();
  }
  if (found == jobs_.end()) {
    if (jobs_.size() >= policy_.jobs_max)
      return fail(ErrorCode::kResourceExhausted, "node {}: {} jobs, at most {}", node_,
                  jobs_.size(), policy_.jobs_max);
    found = jobs_.emplace(hello.job, Job()).first;
    found->second.instance = hello.instance;
  }
  Job& job = found->second;
  if (job.ending)
    return fail(ErrorCode::kAborted, "job {}: its ranks on node {} are being ended", hello.job,
                node_);
  job.controller = controller;
  ++version_;
  ControllerWelcome welcome{.node = node_, .instance = instance_, .ranks = {}, .told = {}};
  for (const auto& [at, exit] : job.told)
    if (now - at <= policy_.told_kept) welcome.told.push_back(exit);
  for (RankExit& exit : std::exchange(job.exits, {})) tell(job, std::move(exit), now, effects);
  for (const auto& [serial, rank] : ranks_) {
    if (rank.start.job == hello.job) welcome.ranks.push_back(state_of(rank, now));
  }
  return welcome;
}

result<AgentCore::Job*> AgentCore::job_of(const std::string& name, Connection from) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end() || found->second.controller != from)
    return fail(ErrorCode::kInvalidArgument, "job {}: this connection is not its controller's",
                name);
  return &found->second;
}

result<void> AgentCore::end_job(const std::string& name, std::optional<Connection> from,
                                Duration grace, const std::string& reason, Effects& effects) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end())
    return fail(ErrorCode::kNotFound, "job {}: not known to node {}", name, node_);
  if (from) TROUPE_TRY_VOID(job_of(name, *from));
  stop_job(name, grace, reason, true, effects);
  forget_job_if_over(name, effects);
  return {};
}

void AgentCore::stop_job(const std::string& name, Duration grace, const std::string& reason,
                         bool asked, Effects& effects) {
  Job& job = jobs_.at(name);
  job.ending = true;
  ++version_;
  for (auto& [serial, rank] : ranks_) {
    if (rank.start.job == name) stop_rank(serial, rank, grace, reason, asked, effects);
  }
}

void AgentCore::forget_job_if_over(const std::string& name, Effects& effects) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end() || !found->second.ending || found->second.ranks > 0) return;
  jobs_.erase(found);
  ++version_;
  effects.emplace_back(JobOver{.job = name});
}

result<AgentCore::Serial> AgentCore::start(const RankStart& start, const RankPlace& place,
                                           Connection from, TimePoint now, Effects& effects) {
  const std::string name = rank_name(start.group, start.rank);
  if (draining_)
    return fail(ErrorCode::kAborted, "{}: node {} is draining: {}", name, node_, *draining_);
  TROUPE_TRY(Job* const job, job_of(start.job, from));
  if (job->ending)
    return fail(ErrorCode::kAborted, "{}: job {} is being ended on node {}", name, start.job,
                node_);
  if (start.rank.value < 0 || start.group.empty() || start.command.empty())
    return fail(ErrorCode::kInvalidArgument, "{}: wanted a group, a rank ≥ 0 and a command", name);
  for (const auto& [serial, rank] : ranks_) {
    if (rank.start.job == start.job && rank.start.group == start.group &&
        rank.start.rank == start.rank)
      return fail(ErrorCode::kAlreadyExists, "{}: it runs already on node {}, pid {}", name, node_,
                  rank.pid);
  }
  if (ranks_.size() >= policy_.ranks_max)
    return fail(ErrorCode::kResourceExhausted, "{}: node {} runs {} ranks, at most {}", name, node_,
                ranks_.size(), policy_.ranks_max);
  const Serial serial = ++last_serial_;
  Rank rank;
  rank.start = start;
  rank.place = place;
  rank.started_at = now;
  rank.progress_at = now;
  ranks_.emplace(serial, std::move(rank));
  ++job->ranks;
  ++version_;
  effects.emplace_back(StartProcess{.serial = serial, .start = start, .place = place});
  return serial;
}

result<void> AgentCore::stop(const RankStop& stop, Connection from, Effects& effects) {
  TROUPE_TRY_VOID(job_of(stop.job, from));
  for (auto& [serial, rank] : ranks_) {
    if (rank.start.job != stop.job || rank.start.group != stop.group ||
        rank.start.rank != stop.rank)
      continue;
    stop_rank(serial, rank, stop.grace, stop.reason, true, effects);
    return {};
  }
  return {};  // ended meanwhile; its exit was told
}

void AgentCore::stop_rank(Serial serial, Rank& rank, Duration grace, const std::string& reason,
                          bool asked, Effects& effects) {
  if (rank.phase == RankPhase::kStopping && grace > Duration::zero()) return;
  rank.phase = RankPhase::kStopping;
  ++version_;
  effects.emplace_back(
      StopProcess{.serial = serial, .grace = grace, .reason = reason, .asked = asked});
}

void AgentCore::started(Serial serial, int pid, TimePoint now, Effects& effects) {
  const auto found = ranks_.find(serial);
  if (found == ranks_.end()) return;
  Rank& rank = found->second;
  rank.pid = pid;
  rank.started_at = now;
  rank.progress_at = now;
  if (rank.phase == RankPhase::kStarting) rank.phase = RankPhase::kRunning;
  if (policy_.rank_connects_within > Duration::zero()) rank.look_at = now + policy_.look_every;
  rank.answered = true;
  ++version_;
  effects.emplace_back(AnswerStart{
      .serial = serial,
      .outcome =
          RankStarted{.pid = pid, .cores = rank.place.cores, .devices = rank.place.visible}});
}

void AgentCore::exited(Serial serial, const DeathReport& report, TimePoint now, Effects& effects) {
  const auto found = ranks_.find(serial);
  if (found == ranks_.end()) return;
  Rank rank = std::move(found->second);
  ranks_.erase(found);
  ++version_;
  RankState ended = state_of(rank, now);
  ended.phase = RankPhase::kEnded;
  ended.ending = report.first_line();
  ended_.push_back(std::move(ended));
  while (ended_.size() > policy_.ended_kept) ended_.pop_front();

  Job& job = jobs_.at(rank.start.job);
  --job.ranks;
  if (!rank.answered) {
    // It never ran, so the answer to its start is all that there is to say.
    effects.emplace_back(AnswerStart{.serial = serial, .outcome = fail(report.to_error())});
  } else {
    RankExit exit{.job = rank.start.job,
                  .group = rank.start.group,
                  .rank = rank.start.rank,
                  .cause = report.to_error(),
                  .expected = report.expected()};
    if (job.controller) {
      tell(job, std::move(exit), now, effects);
    } else {
      if (job.exits.size() >= policy_.exits_kept) job.exits.pop_front();
      job.exits.push_back(std::move(exit));
    }
  }
  forget_job_if_over(rank.start.job, effects);
}

void AgentCore::tell(Job& job, RankExit exit, TimePoint now, Effects& effects) {
  while (!job.told.empty() && (job.told.size() >= policy_.told_kept_max ||
                               now - job.told.front().first > policy_.told_kept))
    job.told.pop_front();
  job.told.emplace_back(now, exit);
  effects.emplace_back(TellExit{.controller = *job.controller, .exit = std::move(exit)});
}

void AgentCore::seen(Serial serial, bool stopped, TimePoint now, Effects& effects) {
  const auto found = ranks_.find(serial);
  if (found == ranks_.end()) return;
  Rank& rank = found->second;
  if (rank.connected_once || rank.phase != RankPhase::kRunning) return;
  rank.stopped_since = stopped ? std::min(rank.stopped_since, now) : TimePoint::max();
  if (!stopped || now - rank.stopped_since < policy_.stopped_start_after) return;
  stop_rank(
      serial, rank, Duration::zero(),
      fmt::format("it has been in a stop (SIGSTOP) for {:.1f} s and has not dialled its agent",
                  seconds(now - rank.stopped_since)),
      false, effects);
}

result<void> AgentCore::rank_up(const std::string& name, Connection connection, TimePoint now) {
  for (auto& [serial, rank] : ranks_) {
    const RankStart& start = rank.start;
    if (name != fmt::format("{}/{}/{}", start.job, start.group, start.rank.value)) continue;
    if (rank.connection)
      return fail(ErrorCode::kAlreadyExists, "{}: it is connected already", name);
    rank.connection = connection;
    rank.connected_once = true;
    rank.look_at = TimePoint::max();
    rank.progress_at = now;
    ++version_;
    return {};
  }
  return fail(ErrorCode::kNotFound, "{}: node {} runs no such rank", name, node_);
}

void AgentCore::progress(Connection connection, const RankProgress& progress, TimePoint now) {
  for (auto& [serial, rank] : ranks_) {
    if (rank.connection != connection) continue;
    if (rank.steps != progress.steps || rank.doing != progress.doing) {
      rank.progress_at = now;
      rank.stuck = false;
      ++version_;
    }
    rank.steps = progress.steps;
    rank.doing = progress.doing.substr(0, kDoingBytesMax);
    return;
  }
}

void AgentCore::down(Connection connection, const Error& cause, bool silent, TimePoint now,
                     Effects& effects) {
  for (auto& [serial, rank] : ranks_) {
    if (rank.connection != connection) continue;
    rank.connection.reset();
    // A connection that closed is mostly a process that ends: its own words are the better report.
    rank.lost_at = silent ? now : now + policy_.lost_rank_grace;
    rank.lost_why = cause.message;
    ++version_;
    tick(now, effects);
    return;
  }
  for (auto& [name, job] : jobs_) {
    if (job.controller != connection) continue;
    job.controller.reset();
    // Silence has lasted as long as makes a peer dead already.
    job.away_since = now;
    job.away_until = silent ? now : now + policy_.controller_grace;
    job.away_why = cause.message;
    ++version_;
    const bool told_lately = !job.told.empty() && now - job.told.back().first <= policy_.told_kept;
    if (job.ranks == 0 && !told_lately) job.away_until = now;
    tick(now, effects);
    return;
  }
}

void AgentCore::revoke(const std::string& reservation, std::optional<int> bundle,
                       const std::string& reason, Effects& effects) {
  for (auto& [serial, rank] : ranks_) {
    if (rank.start.reservation != reservation || (bundle && rank.start.bundle != *bundle)) continue;
    stop_rank(serial, rank, Duration::zero(), reason, false, effects);
  }
}

void AgentCore::drain(Duration grace, const std::string& reason, Effects& effects) {
  if (!draining_) draining_ = reason;
  ++version_;
  for (auto& [serial, rank] : ranks_)
    stop_rank(serial, rank, grace, fmt::format("node {} is draining: {}", node_, reason), false,
              effects);
}

TimePoint AgentCore::stuck_at(const Rank& rank) const {
  if (rank.doing.empty() || rank.stuck || rank.phase != RankPhase::kRunning)
    return TimePoint::max();
  return rank.progress_at + policy_.stuck_after;
}

TimePoint AgentCore::connect_by(const Rank& rank) const {
  if (rank.connected_once || rank.phase != RankPhase::kRunning ||
      policy_.rank_connects_within <= Duration::zero())
    return TimePoint::max();
  return rank.started_at + policy_.rank_connects_within;
}

void AgentCore::tick(TimePoint now, Effects& effects) {
  std::vector<std::string> lost;
  for (auto& [name, job] : jobs_) {
    if (!job.controller && !job.ending && now >= job.away_until) lost.push_back(name);
  }
  for (const std::string& name : lost) {
    const Job& job = jobs_.at(name);
    stop_job(name, Duration::zero(),
             fmt::format("its controller is gone for {:.1f} s: {}", seconds(now - job.away_since),
                         job.away_why),
             false, effects);
    forget_job_if_over(name, effects);
  }
  for (auto& [serial, rank] : ranks_) {
    if (now >= rank.lost_at) {
      rank.lost_at = TimePoint::max();
      stop_rank(serial, rank, Duration::zero(),
                fmt::format("its channel to the agent is down: {}", rank.lost_why), false, effects);
    }
    if (rank.phase != RankPhase::kRunning) rank.look_at = TimePoint::max();
    if (now >= rank.look_at) {
      rank.look_at = now + policy_.look_every;
      effects.emplace_back(LookAtStart{.serial = serial});
    }
    if (now >= connect_by(rank)) {
      stop_rank(serial, rank, Duration::zero(),
                fmt::format("it has not dialled its agent within {:.1f} s",
                            seconds(policy_.rank_connects_within)),
                false, effects);
    }
    if (now < stuck_at(rank)) continue;
    rank.stuck = true;
    ++version_;
    const std::string what = fmt::format("{} has been in {} for {:.0f} s without progress",
                                         rank_name(rank.start.group, rank.start.rank), rank.doing,
                                         seconds(now - rank.progress_at));
    effects.emplace_back(LookAtStuck{.serial = serial, .what = what});
    if (policy_.kill_stuck)
      stop_rank(serial, rank, Duration::zero(),
                fmt::format("it was in {} for {:.0f} s without progress", rank.doing,
                            seconds(now - rank.progress_at)),
                false, effects);
  }
}

TimePoint AgentCore::next_tick() const {
  TimePoint next = TimePoint::max();
  for (const auto& [name, job] : jobs_) {
    if (!job.controller && !job.ending) next = std::min(next, job.away_until);
  }
  for (const auto& [serial, rank] : ranks_)
    next = std::min({next, rank.lost_at, rank.look_at, connect_by(rank), stuck_at(rank)});
  return next;
}

RankState AgentCore::state_of(const Rank& rank, TimePoint now) const {
  RankState state;
  state.job = rank.start.job;
  state.group = rank.start.group;
  state.rank = rank.start.rank;
  state.pid = rank.pid;
  state.phase = rank.phase;
  state.age = now - rank.started_at;
  state.doing = rank.doing;
  state.quiet = now - rank.progress_at;
  state.stuck = rank.stuck;
  state.cores = rank.place.cores;
  state.devices = rank.place.visible;
  state.reservation = rank.start.reservation;
  return state;
}

NodeState AgentCore::state(TimePoint now) const {
  NodeState state;
  state.instance = instance_;
  state.version = version_;
  state.draining = draining_.has_value();
  for (const auto& [name, job] : jobs_) state.jobs.push_back(name);
  for (const auto& [serial, rank] : ranks_) state.ranks.push_back(state_of(rank, now));
  for (const RankState& ended : ended_) state.ranks.push_back(ended);
  return state;
}

std::string_view rank_phase_name(RankPhase phase) {
  switch (phase) {
    case RankPhase::kStarting:
      return "starting";
    case RankPhase::kRunning:
      return "running";
    case RankPhase::kStopping:
      return "stopping";
    case RankPhase::kEnded:
      return "ended";
  }
  return "unknown";
}

}  // namespace troupe::runtime
