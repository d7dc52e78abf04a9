#include "runtime/cluster/directory.hpp"

#include "runtime/group/rank_launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::runtime {
namespace {

result<void> check_page(const PageRequest& request) {
  if (request.limit >= 1 && request.limit <= kPageMax) return {};
  return fail(ErrorCode::kInvalidArgument, "page: limit {} is not in 1..{}", request.limit,
              kPageMax);
}

std::int32_t running(const NodeState& state) {
  return static_cast<std::int32_t>(
      std::count_if(state.ranks.begin(), state.ranks.end(),
                    [](const RankState& rank) { return rank.phase != RankPhase::kEnded; }));
}

}  // namespace

std::string_view DirectoryCore::node_state_name(State state) {
  switch (state) {
    case State::kUp:
      return "up";
    case State::kAway:
      return "away";
    case State::kDraining:
      return "draining";
    case State::kLost:
      return "lost";
    case State::kLeft:
      return "left";
  }
  return "?";
}

std::string_view DirectoryCore::job_state_name(State state) {
  if (state == State::kUp) return "running";
  return state == State::kLeft ? "ended" : node_state_name(state);
}

void DirectoryCore::Presence::go(State to, std::string why, TimePoint when) {
  state = to;
  cause = std::move(why);
  since = when;
  connection = {};
}

void DirectoryCore::forget() {
  const auto forget_in = [kept = options_.gone_kept](auto& entries) {
    for (;;) {
      std::size_t gone = 0;
      auto oldest = entries.end();
      for (auto at = entries.begin(); at != entries.end(); ++at) {
        if (!at->second.gone()) continue;
        ++gone;
        if (oldest == entries.end() || at->second.since < oldest->second.since) oldest = at;
      }
      if (gone <= kept) return;
      entries.erase(oldest);
    }
  };
  forget_in(nodes_);
  forget_in(jobs_);
}

result<std::vector<DirectoryEffect>> DirectoryCore::step(const DirectoryEvent& event,
                                                         TimePoint now) {
  return std::visit([&](const auto& one) { return on(one, now); }, event);
}

result<DirectoryCore::Effects> DirectoryCore::on(const NodeArrived& event, TimePoint now) {
  const NodeRegister& about = event.node;
  TROUPE_TRY_VOID(check_job_name("node", about.name));
  const auto known = nodes_.find(about.name);
  const bool same = known != nodes_.end() && known->second.instance() == about.state.instance;
  Effects effects;
  if (known == nodes_.end()) {
    if (nodes_.size() >= options_.nodes_max) {
      return fail(ErrorCode::kResourceExhausted, "node {}: the head knows {} nodes, limit {}",
                  about.name, nodes_.size(), options_.nodes_max);
    }
  } else if (!same && known->second.live()) {
    return fail(ErrorCode::kAlreadyExists,
                "node {}: another instance of that name is up at {} (pid {} on {})", about.name,
                known->second.about.address, known->second.about.pid,
                known->second.about.inventory.host);
  } else if (!same && known->second.state == State::kAway) {
    // The old process is gone for good: its successor is here.
    effects.push_back(NodeDown{
        about.name, known->second.instance(),
        make_error(ErrorCode::kRankDead, "node {}: a new instance replaces it; {}", about.name,
                   known->second.cause),
        false});
  }
  Node& node = nodes_[about.name];
  node_of_.erase(node.connection);
  const bool draining = about.state.draining || (same && node.draining);
  if (!same || !node.live()) node.since = now;
  node.about = about;
  node.state = draining ? State::kDraining : State::kUp;
  node.draining = draining;
  node.connection = event.connection;
  node.heard = now;
  node.cause.clear();
  node_of_[event.connection] = about.name;
  effects.push_back(NodeUp{about.name, about.state.instance, event.connection, same});
  if (draining) effects.push_back(NodeDraining{about.name});
  return effects;
}

result<DirectoryCore::Effects> DirectoryCore::on(const NodeSnapshot& event, TimePoint now) {
  const auto name = node_of_.find(event.connection);
  if (name == node_of_.end())
    return fail(ErrorCode::kNotFound, "node snapshot: that connection has not registered");
  Node& node = nodes_.at(name->second);
  if (event.state.instance != node.instance() || event.state.version < node.about.state.version) {
    return fail(ErrorCode::kConflict,
                "node {}: snapshot {} of instance {} after snapshot {} of instance {}",
                name->second, event.state.version, event.state.instance, node.about.state.version,
                node.instance());
  }
  node.about.state = event.state;
  node.heard = now;
  if (!event.state.draining || node.draining) return Effects{};
  node.draining = true;
  node.state = State::kDraining;
  node.since = now;
  return Effects{NodeDraining{name->second}};
}

result<DirectoryCore::Effects> DirectoryCore::on(const NodeParted& event, TimePoint now) {
  const auto found = node_of_.find(event.connection);
  if (found == node_of_.end())
    return fail(ErrorCode::kNotFound, "node farewell: that connection has not registered");
  const std::string name = found->second;
  node_of_.erase(found);
  Node& node = nodes_.at(name);
  node.go(State::kLeft, fmt::format("node {} left: {}", name, event.reason), now);
  Effects effects{
      NodeDown{name, node.instance(), make_error(ErrorCode::kCancelled, "{}", node.cause), true}};
  forget();
  return effects;
}

result<DirectoryCore::Effects> DirectoryCore::on(const NodeDrainWanted& event, TimePoint now) {
  const auto found = nodes_.find(event.name);
  if (found == nodes_.end())
    return fail(ErrorCode::kNotFound, "node {}: no node of that name", event.name);
  Node& node = found->second;
  if (node.gone()) {
    return fail(ErrorCode::kConflict, "node {}: it is {}", event.name, node_state_name(node.state));
  }
  if (std::exchange(node.draining, true)) return Effects{};
  if (node.state == State::kUp) {
    node.state = State::kDraining;
    node.since = now;
  }
  return Effects{NodeDraining{event.name}};
}

result<DirectoryCore::Effects> DirectoryCore::on(const JobArrived& event, TimePoint now) {
  const JobAnnouncement& about = event.job;
  TROUPE_TRY_VOID(check_job_name("job", about.name));
  const auto known = jobs_.find(about.name);
  const bool same = known != jobs_.end() && known->second.about.epoch == about.epoch;
  Effects effects;
  if (known == jobs_.end()) {
    if (jobs_.size() >= options_.jobs_max) {
      return fail(ErrorCode::kResourceExhausted, "job {}: the head knows {} jobs, limit {}",
                  about.name, jobs_.size(), options_.jobs_max);
    }
  } else if (!same && known->second.live()) {
    return fail(ErrorCode::kAlreadyExists, "job {}: its controller is up (pid {} on {})",
                about.name, known->second.about.pid, known->second.about.host);
  } else if (!same && known->second.state == State::kAway) {
    effects.push_back(JobDown{
        about.name, known->second.about.epoch,
        make_error(ErrorCode::kRankDead, "job {}: a new controller replaces it; {}", about.name,
                   known->second.cause),
        false});
  } else if (same && known->second.gone()) {
    // What it had was released when it was lost: it must start again as a new instance.
    return fail(ErrorCode::kConflict, "job {}: this controller was {} {:.1f} s ago: {}", about.name,
                job_state_name(known->second.state), seconds(now - known->second.since),
                known->second.cause);
  }
  Job& job = jobs_[about.name];
  job_of_.erase(job.connection);
  if (!same || !job.live()) job.since = now;
  job.about = about;
  job.state = State::kUp;
  job.connection = event.connection;
  job.cause.clear();
  job_of_[event.connection] = about.name;
  effects.push_back(JobUp{about.name, about.epoch, event.connection, same});
  return effects;
}

result<DirectoryCore::Effects> DirectoryCore::on(const JobParted& event, TimePoint now) {
  const auto found = job_of_.find(event.connection);
  if (found == job_of_.end())
    return fail(ErrorCode::kNotFound, "job farewell: that connection has not announced a job");
  const std::string name = found->second;
  job_of_.erase(found);
  Job& job = jobs_.at(name);
  job.go(State::kLeft, fmt::format("job {} ended: {}", name, event.reason), now);
  Effects effects{
      JobDown{name, job.about.epoch, make_error(ErrorCode::kCancelled, "{}", job.cause), true}};
  forget();
  return effects;
}

result<DirectoryCore::Effects> DirectoryCore::on(const ConnectionDown& event, TimePoint now) {
  Effects effects;
  // A silent peer has used up its time already: the next tick, which is due now, declares it lost.
  const TimePoint closed = event.silent ? now - options_.away_for : now;
  if (const auto found = node_of_.find(event.connection); found != node_of_.end()) {
    nodes_.at(found->second).go(State::kAway, event.cause, closed);
    node_of_.erase(found);
  }
  if (const auto found = job_of_.find(event.connection); found != job_of_.end()) {
    jobs_.at(found->second).go(State::kAway, event.cause, closed);
    job_of_.erase(found);
  }
  return event.silent ? on(DirectoryTick{}, now) : result<Effects>(effects);
}

result<DirectoryCore::Effects> DirectoryCore::on(const DirectoryTick& /*event*/, TimePoint now) {
  Effects effects;
  const auto due = [&](const auto& entry) {
    return entry.state == State::kAway && now - entry.since >= options_.away_for;
  };
  for (auto& [name, node] : nodes_) {
    if (!due(node)) continue;
    node.go(State::kLost, std::move(node.cause), now);
    effects.push_back(NodeDown{
        name, node.instance(),
        make_error(ErrorCode::kRankDead, "node {} is lost: {}", name, node.cause),
        false});
  }
  for (auto& [name, job] : jobs_) {
    if (!due(job)) continue;
    job.go(State::kLost, std::move(job.cause), now);
    effects.push_back(
        JobDown{name, job.about.epoch,
                make_error(ErrorCode::kRankDead, "the controller of job {} is lost: {}", name,
                           job.cause),
                false});
  }
  if (!effects.empty()) forget();
  return effects;
}

std::optional<TimePoint> DirectoryCore::next_due() const {
  std::optional<TimePoint> due;
  const auto look = [&](const auto& entry) {
    if (entry.state != State::kAway) return;
    const TimePoint at = entry.since + options_.away_for;
    due = due ? std::min(*due, at) : at;
  };
  for (const auto& [name, node] : nodes_) look(node);
  for (const auto& [name, job] : jobs_) look(job);
  return due;
}

HeadStatus DirectoryCore::status() const {
  HeadStatus status;
  for (const auto& [name, node] : nodes_) {
    if (node.state == State::kUp) ++status.nodes_up;
    if (node.state == State::kAway) ++status.nodes_away;
    if (node.state == State::kDraining) ++status.nodes_draining;
    if (node.state == State::kLost) ++status.nodes_lost;
    if (node.gone()) continue;
    if (node.live())
      status.devices_up += static_cast<std::int32_t>(node.about.inventory.devices.size());
    status.ranks_running += running(node.about.state);
    for (const RankState& rank : node.about.state.ranks) status.ranks_stuck += rank.stuck ? 1 : 0;
  }
  for (const auto& [name, job] : jobs_) status.jobs_running += job.gone() ? 0 : 1;
  return status;
}

NodeEntry DirectoryCore::entry_of(const std::string& name, const Node& node, TimePoint now) {
  const HostInventory& inventory = node.about.inventory;
  return {.name = name,
          .state = std::string(node_state_name(node.state)),
          .since_s = seconds(now - node.since),
          .heard_s = seconds(now - node.heard),
          .cause = node.cause,
          .address = node.about.address,
          .host = inventory.host,
          .pid = node.about.pid,
          .instance = node.instance(),
          .version = node.about.version,
          .cpus = inventory.cpus,
          .memory_bytes = inventory.memory_bytes,
          .devices = static_cast<std::int32_t>(inventory.devices.size()),
          .device_model = inventory.devices.empty() ? "" : inventory.devices.front().model,
          .rack = inventory.rack,
          .ranks = node.gone() ? 0 : running(node.about.state)};
}

result<Page<NodeEntry>> DirectoryCore::nodes(const PageRequest& request, TimePoint now) const {
  TROUPE_TRY_VOID(check_page(request));
  Page<NodeEntry> page;
  for (const auto& [name, node] : nodes_) {
    if (!request.state.empty() && request.state != node_state_name(node.state)) continue;
    page.add(name, request, [&] { return entry_of(name, node, now); });
  }
  return page;
}

result<Page<JobEntry>> DirectoryCore::jobs(const PageRequest& request, TimePoint now) const {
  TROUPE_TRY_VOID(check_page(request));
  std::map<std::string, std::int32_t> ranks;
  for (const auto& [name, node] : nodes_) {
    for (const RankState& rank : node.about.state.ranks) {
      if (!node.gone() && rank.phase != RankPhase::kEnded) ++ranks[rank.job];
    }
  }
  Page<JobEntry> page;
  for (const auto& [name, job] : jobs_) {
    if (!request.state.empty() && request.state != job_state_name(job.state)) continue;
    if (!request.job.empty() && request.job != name) continue;
    page.add(name, request, [&] {
      return JobEntry{.job = job.about,
                      .state = std::string(job_state_name(job.state)),
                      .since_s = seconds(now - job.since),
                      .cause = job.cause,
                      .ranks = ranks[name]};
    });
  }
  return page;
}

result<Page<RankEntry>> DirectoryCore::ranks(const PageRequest& request, TimePoint now) const {
  TROUPE_TRY_VOID(check_page(request));
  // Keyed so that pages are in order of job, group and rank, with nodes and earlier lives apart.
  std::map<std::string, std::pair<const std::string*, const RankState*>> ordered;
  std::map<std::string, Duration> ages;
  for (const auto& [name, node] : nodes_) {
    if (node.gone()) continue;
    for (const RankState& rank : node.about.state.ranks) {
      if (!request.job.empty() && request.job != rank.job) continue;
      const std::string_view state = rank.stuck ? "stuck" : rank_phase_name(rank.phase);
      if (!request.state.empty() && request.state != state) continue;
      ordered[fmt::format("{}/{}/{:06}/{}/{:010}", rank.job, rank.group, rank.rank.value, name,
                          rank.pid)] = {&name, &rank};
    }
    ages[name] = now - node.heard;
  }
  Page<RankEntry> page;
  for (const auto& [key, place] : ordered) {
    page.add(key, request, [&, &at = place] {
      RankEntry entry{.node = *at.first, .rank = *at.second};
      entry.rank.age += ages[*at.first];
      entry.rank.quiet += ages[*at.first];
      return entry;
    });
  }
  return page;
}

result<NodeEntry> DirectoryCore::find_node(const std::string& name, TimePoint now) const {
  const auto found = nodes_.find(name);
  if (found == nodes_.end())
    return fail(ErrorCode::kNotFound, "node {}: no node of that name", name);
  return entry_of(name, found->second, now);
}

const NodeRegister* DirectoryCore::registration(const std::string& name) const {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? nullptr : &found->second.about;
}

const JobAnnouncement* DirectoryCore::announcement(const std::string& name) const {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : &found->second.about;
}

std::map<std::string, ConnectionId> DirectoryCore::node_connections() const {
  std::map<std::string, ConnectionId> connections;
  for (const auto& [connection, name] : node_of_) connections[name] = connection;
  return connections;
}

std::map<std::string, ConnectionId> DirectoryCore::job_connections() const {
  std::map<std::string, ConnectionId> connections;
  for (const auto& [connection, name] : job_of_) connections[name] = connection;
  return connections;
}

}  // namespace troupe::runtime
