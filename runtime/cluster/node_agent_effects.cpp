// What NodeAgent does about its core's decisions, and how it talks to the head.

#include "runtime/base/log.hpp"
#include "runtime/cluster/node_agent_impl.hpp"
#include "runtime/task/when_done.hpp"

#include <unistd.h>

#include <utility>

namespace troupe::runtime {
namespace {

constexpr Duration kHeadAnswersWithin = std::chrono::seconds(5);
constexpr Duration kRegisterAgainAfter = std::chrono::milliseconds(500);

RankExit exit_of(const DeathReport& report) {
  return RankExit{.job = report.job,
                  .group = report.group,
                  .rank = report.rank,
                  .cause = report.to_error(),
                  .expected = report.expected()};
}

RankLaunch launch_of(const RankStart& start) {
  RankLaunch launch;
  launch.job = start.job;
  launch.group = start.group;
  launch.rank = start.rank;
  launch.reservation = start.reservation;
  launch.bundle = start.bundle;
  launch.controller = start.controller;
  launch.command = start.command;
  launch.environment = start.environment;
  return launch;
}

}  // namespace

void NodeAgent::Impl::perform_locked(AgentCore::Effects effects, Hooks& hooks) {
  for (std::size_t i = 0; i < effects.size(); ++i) {
    // Copied out: performing may add effects, which moves the vector.
    AgentCore::Effect effect = std::move(effects[i]);
    if (auto* start = std::get_if<AgentCore::StartProcess>(&effect)) {
      perform(std::move(*start), effects);
    } else if (const auto* stop = std::get_if<AgentCore::StopProcess>(&effect)) {
      perform(*stop);
    } else if (auto* answer = std::get_if<AgentCore::AnswerStart>(&effect)) {
      perform(std::move(*answer));
    } else if (const auto* exit = std::get_if<AgentCore::TellExit>(&effect)) {
      perform(*exit);
    } else if (const auto* look = std::get_if<AgentCore::LookAtStart>(&effect)) {
      const auto found = processes_.find(look->serial);
      if (found != processes_.end())
        core_.seen(look->serial, is_stopped(found->second.pid), steady_now(), effects);
    } else if (const auto* stuck = std::get_if<AgentCore::LookAtStuck>(&effect)) {
      perform(*stuck);
    } else if (const auto* over = std::get_if<AgentCore::JobOver>(&effect)) {
      if (ranks_ != nullptr) ranks_->drop_log(over->job);
      if (options_.job_over)
        hooks.emplace_back([this, job = over->job] { options_.job_over(job); });
    }
  }
}

void NodeAgent::Impl::perform(AgentCore::StartProcess effect, AgentCore::Effects& more) {
  const Serial serial = effect.serial;
  RankProcesses::Events events;
  // Not weak: the table's thread is joined in `close`.
  events.on_started = [this, serial](int pid) {
    step([&](AgentCore::Effects& effects, Hooks&) {
      processes_[serial].pid = pid;
      core_.started(serial, pid, steady_now(), effects);
    });
  };
  events.on_exit = [this, serial](const DeathReport& report) { process_over(serial, report); };
  const RankLaunch launch = launch_of(effect.start);
  auto key = ranks_->start(launch, effect.place, std::move(events));
  if (key) {
    processes_[serial].key = *key;
    return;
  }
  DeathReport report;
  report.job = launch.job;
  report.group = launch.group;
  report.rank = launch.rank;
  report.node = options_.name;
  report.exit.kind = ProcessExit::Kind::kNotStarted;
  report.exit.start_error = key.error().message;
  core_.exited(serial, report, steady_now(), more);
}

void NodeAgent::Impl::perform(const AgentCore::StopProcess& effect) {
  const auto found = processes_.find(effect.serial);
  if (found == processes_.end() || ranks_ == nullptr) return;
  const Process& process = found->second;
  if (!effect.asked && effect.grace <= Duration::zero() && process.pid != 0) {
    for (std::string& line : describe_threads(process.pid))
      ranks_->add_detail(process.key, std::move(line));
  }
  ranks_->stop(process.key, effect.grace, effect.reason, effect.asked);
}

void NodeAgent::Impl::perform(AgentCore::AnswerStart effect) {
  const auto found = processes_.find(effect.serial);
  if (found == processes_.end()) return;
  if (effect.outcome) {
    found->second.answer.reply(encode_value(*effect.outcome));
  } else {
    found->second.answer.reply(fail(std::move(effect.outcome).error()));
    processes_.erase(found);
  }
}

void NodeAgent::Impl::perform(const AgentCore::TellExit& effect) {
  const auto channel = channels_.find(effect.controller);
  if (channel == channels_.end()) return;
  auto bytes = encode_value(effect.exit);
  const auto told = bytes ? channel->second->notify(kRankExit, std::move(*bytes))
                          : result<void>(fail(std::move(bytes).error()));
  if (!told)
    log::warn("node {}: exit of {} rank {} was not told: {}", options_.name, effect.exit.group,
              effect.exit.rank.value, told.error().to_string());
}

void NodeAgent::Impl::perform(const AgentCore::LookAtStuck& effect) {
  const auto found = processes_.find(effect.serial);
  if (found == processes_.end() || ranks_ == nullptr) return;
  const Process& process = found->second;
  LogBatch batch{.node = options_.name, .lines = {}, .lines_dropped = 0};
  const auto say = [&](const std::string& text) {
    batch.lines.push_back(LogLine{.group = process.group, .rank = process.rank, .text = text});
    ranks_->add_detail(process.key, text);
  };
  say("stuck: " + effect.what);
  for (const std::string& line : describe_threads(process.pid)) say(line);
  log::warn("node {}: {}", options_.name, effect.what);
  (void)forward_log(process.job, batch);
}

void NodeAgent::Impl::process_over(Serial serial, const DeathReport& report) {
  step([&](AgentCore::Effects& effects, Hooks& hooks) {
    // First, so that a rank's tickets are skipped before its job's lanes go.
    if (options_.rank_over) hooks.emplace_back([&] { options_.rank_over(exit_of(report)); });
    core_.exited(serial, report, steady_now(), effects);
  });
  const std::lock_guard lock(mutex_);
  processes_.erase(serial);
}

bool NodeAgent::Impl::forward_log(const std::string& job, const LogBatch& batch) {
  Ref<Channel> channel;
  {
    const std::lock_guard lock(log_mutex_);
    const auto found = log_channels_.find(job);
    if (found == log_channels_.end()) return false;
    channel = found->second;
  }
  if (channel->bytes_queued() > options_.log_backlog_max) return false;
  auto bytes = encode_value(batch);
  if (!bytes) {
    log::warn("node {}: log of job {}: {}", options_.name, job, bytes.error().to_string());
    return true;  // it would never fit
  }
  return channel->notify(kLogLines, std::move(*bytes)).has_value();
}

void NodeAgent::Impl::register_with_head(const Ref<Channel>& channel) {
  NodeRegister about{.name = options_.name,
                     .address = address_,
                     .pid = ::getpid(),
                     .version = options_.version,
                     .inventory = options_.inventory,
                     .state = {}};
  {
    const std::lock_guard lock(mutex_);
    about.state = core_.state(steady_now());
    about.state.version = ++reports_;
    reported_version_ = core_.version();
    reported_at_ = steady_now();
  }
  auto bytes = encode_value(about);
  if (!bytes) return channel->close(std::move(bytes).error());
  when_done<std::vector<std::byte>>(
      channel->request(kNodeRegister, std::move(*bytes), Deadline::in(kHeadAnswersWithin)),
      [weak = weak_from_this(), channel](const result<std::vector<std::byte>>& answer) {
        if (const auto agent = weak.lock()) agent->registered(channel, answer);
      });
}

void NodeAgent::Impl::registered(const Ref<Channel>& channel,
                                 const result<std::vector<std::byte>>& answer) {
  auto welcome =
      answer ? decode_value<NodeRegistered>(*answer) : result<NodeRegistered>(fail(answer.error()));
  if (!welcome) {
    log::warn("node {}: head {} refuses it: {}", options_.name, options_.head,
              welcome.error().to_string());
    // Closed, it dials again; a little later, since an earlier instance may have to be found dead.
    system_.timer().add(steady_now() + kRegisterAgainAfter,
                        [channel, error = welcome.error()] { channel->close(error); });
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (closing_ || channel->failure()) return;
    head_ = channel;
    schedule_locked();
  }
  log::info("node {}: registered with the head at {}", options_.name, options_.head);
  if (options_.head_up) options_.head_up(channel, *welcome);
}

void NodeAgent::Impl::head_lost(const Error& cause) {
  bool was_registered = false;
  {
    const std::lock_guard lock(mutex_);
    was_registered = static_cast<bool>(std::exchange(head_, nullptr));
  }
  if (!was_registered) return;
  log::warn("node {}: the head is away, ranks go on: {}", options_.name, cause.to_string());
  if (options_.head_down) options_.head_down(cause);
}

void NodeAgent::Impl::report_locked() {
  NodeState state = core_.state(steady_now());
  state.version = ++reports_;
  reported_version_ = core_.version();
  reported_at_ = steady_now();
  auto bytes = encode_value(state);
  const auto sent = bytes ? head_->notify(kNodeState, std::move(*bytes))
                          : result<void>(fail(std::move(bytes).error()));
  if (!sent) log::debug("node {}: report: {}", options_.name, sent.error().to_string());
}

}  // namespace troupe::runtime
