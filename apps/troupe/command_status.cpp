#include "apps/troupe/cluster_command.hpp"
#include "apps/troupe/cluster_json.hpp"
#include "runtime/base/units.hpp"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::apps {

using nlohmann::json;
using placement::GroupStatus;
using placement::GroupView;
using runtime::HeadStatus;
using runtime::JobEntry;
using runtime::LaneReport;
using runtime::NodeEntry;
using runtime::NodeQuery;
using runtime::Page;
using runtime::PageRequest;
using runtime::RankEntry;

namespace {

struct StatusOptions {
  ClusterOptions cluster;
  bool lanes = false;
  std::int32_t nodes_wanted = 0;
};

constexpr std::int32_t kNodesShown = 1000;
constexpr std::int32_t kProblemsShown = 50;
constexpr Duration kLookEvery = std::chrono::milliseconds(100);

/// All that one look at a cluster shows.
struct Picture {
  HeadStatus head;
  Page<NodeEntry> nodes;
  Page<JobEntry> jobs;
  std::vector<GroupView> groups;
  std::map<std::string, std::vector<LaneReport>> lanes;  ///< by node
  std::vector<std::string> problems;
};

std::size_t count(const std::vector<GroupView>& groups, GroupStatus status) {
  return static_cast<std::size_t>(
      std::count_if(groups.begin(), groups.end(),
                    [&](const GroupView& group) { return group.status == status; }));
}

result<void> find_problems(HeadClient& head, Picture& picture) {
  for (const NodeEntry& node : picture.nodes.entries) {
    if (node.state == "lost" || node.state == "away") {
      picture.problems.push_back(fmt::format("node {} is {} since {}: {}", node.name, node.state,
                                             age_text(node.since_s), node.cause));
    }
  }
  PageRequest stuck;
  stuck.state = "stuck";
  TROUPE_TRY(const auto ranks,
             (head.list<Page<RankEntry>>("head.list_ranks", stuck, kProblemsShown)));
  for (const RankEntry& entry : ranks.entries) {
    const runtime::RankState& rank = entry.rank;
    picture.problems.push_back(fmt::format("rank {}/{}/{} on {} is stuck for {} in {}", rank.job,
                                           rank.group, rank.rank.value, entry.node,
                                           age_text(seconds(rank.quiet)), rank.doing));
  }
  for (const GroupView& group : picture.groups) {
    if (group.status != GroupStatus::kInfeasible && group.status != GroupStatus::kRescheduling)
      continue;
    picture.problems.push_back(fmt::format("group {} ({}) is {}: {}", group.id.value, group.name,
                                           placement::group_status_name(group.status), group.why));
  }
  return {};
}

/// Waits until as many nodes are up as `--nodes` says.
result<void> wait_nodes(HeadClient& head, std::int32_t wanted) {
  for (;;) {
    TROUPE_TRY(const auto status, (head.ask<HeadStatus>("head.status", PageRequest{})));
    if (status.nodes_up >= wanted) return {};
    if (steady_now() + kLookEvery >= head.deadline().at)
      return fail(ErrorCode::kDeadline, "{} nodes are up, wanted {}", status.nodes_up, wanted);
    std::this_thread::sleep_for(kLookEvery);
  }
}

/// A head that is not there yet, or a cluster that is not complete, may be so in a moment.
result<std::unique_ptr<HeadClient>> connect(const StatusOptions& options) {
  for (const Deadline deadline = Deadline::in(to_duration(options.cluster.timeout_s));;) {
    auto head = HeadClient::connect(options.cluster);
    const bool again = !head && options.nodes_wanted > 0 && !deadline.passed() &&
                       (head.error().code == ErrorCode::kIo ||
                        head.error().root_cause().code == ErrorCode::kNotFound);
    if (!again) return head;
    std::this_thread::sleep_for(kLookEvery);
  }
}

result<Picture> look(const StatusOptions& options) {
  TROUPE_TRY(const auto head, connect(options));
  TROUPE_TRY_VOID(wait_nodes(*head, options.nodes_wanted));
  Picture picture;
  const PageRequest all;
  TROUPE_TRY(picture.head, (head->ask<HeadStatus>("head.status", all)));
  TROUPE_TRY(picture.nodes, (head->list<Page<NodeEntry>>("head.list_nodes", all, kNodesShown)));
  TROUPE_TRY(picture.jobs, (head->list<Page<JobEntry>>("head.list_jobs", all, kNodesShown)));
  TROUPE_TRY(picture.groups, fetch_groups(*head, std::numeric_limits<std::size_t>::max()));
  TROUPE_TRY_VOID(find_problems(*head, picture));
  for (const NodeEntry& node : picture.nodes.entries) {
    if (!options.lanes || (node.state != "up" && node.state != "draining")) continue;
    auto lanes = head->ask<std::vector<LaneReport>>("head.lanes", NodeQuery{node.name});
    if (lanes) {
      picture.lanes[node.name] = std::move(*lanes);
    } else {
      picture.problems.push_back(
          fmt::format("node {} does not show its lanes: {}", node.name, lanes.error().to_string()));
    }
  }
  return picture;
}

double devices_free(const Picture& picture) {
  const auto held = devices_held(picture.groups);
  double free = picture.head.devices_up;
  for (const NodeEntry& node : picture.nodes.entries) {
    const auto found = held.find(node.name);
    const bool live = node.state == "up" || node.state == "draining";
    if (live && found != held.end()) free -= found->second;
  }
  return std::max(0.0, free);
}

void print_as_json(const Picture& picture) {
  const HeadStatus& head = picture.head;
  json lanes = json::object();
  for (const auto& [node, reports] : picture.lanes) {
    lanes[node] = json::array();
    for (const LaneReport& lane : reports) lanes[node].push_back(to_json(lane));
  }
  json groups = json::object();
  for (const GroupStatus status :
       {GroupStatus::kPending, GroupStatus::kPrepared, GroupStatus::kActive,
        GroupStatus::kRescheduling, GroupStatus::kRemoving, GroupStatus::kInfeasible})
    groups[std::string(placement::group_status_name(status))] = count(picture.groups, status);
  print_json({{"healthy", picture.problems.empty()},
              {"problems", picture.problems},
              {"head", to_json(head)},
              {"nodes",
               {{"up", head.nodes_up},
                {"away", head.nodes_away},
                {"draining", head.nodes_draining},
                {"lost", head.nodes_lost}}},
              {"devices", {{"total", head.devices_up}, {"free", devices_free(picture)}}},
              {"jobs", {{"running", head.jobs_running}}},
              {"ranks", {{"running", head.ranks_running}, {"stuck", head.ranks_stuck}}},
              {"groups", groups},
              {"lanes", lanes}});
}

void print_lanes(const Picture& picture) {
  Table table({"NODE", "LANE", "HOLDER", "PHASE", "FOR", "TICKET", "WAITING", "MEMORY"});
  for (const auto& [node, lanes] : picture.lanes) {
    for (const LaneReport& lane : lanes) {
      table.add({node, lane.lane, lane.holder ? lane.holder->rank : "-",
                 lane.holder ? lane.holder->phase : "-",
                 age_text(lane.holder ? lane.holder->since_s : lane.next_since_s),
                 std::to_string(lane.next), std::to_string(lane.waiting.size()),
                 fmt::format("{} of {}", troupe::to_string(Bytes{lane.used_bytes}),
                             troupe::to_string(Bytes{lane.capacity_bytes}))});
      for (const auto& place : lane.waiting) {
        table.add({"", "", "  " + place.rank, place.phase, age_text(place.since_s),
                   std::to_string(place.number), "", ""});
      }
    }
  }
  if (table.size() > 0) fmt::print("\n{}", table.to_text());
}

void print_as_text(const Picture& picture) {
  const HeadStatus& head = picture.head;
  fmt::print("head     {}, process {}, up for {}\n", head.address, head.pid, age_text(head.up_s));
  fmt::print("nodes    {} up, {} draining, {} away, {} lost\n", head.nodes_up, head.nodes_draining,
             head.nodes_away, head.nodes_lost);
  fmt::print("devices  {}, {} free\n", head.devices_up, devices_free(picture));
  fmt::print("groups   {} active, {} waiting\n", count(picture.groups, GroupStatus::kActive),
             count(picture.groups, GroupStatus::kPending));
  fmt::print("jobs     {}, with {} ranks\n", head.jobs_running, head.ranks_running);
  const auto held = devices_held(picture.groups);
  Table nodes({"NODE", "STATE", "SINCE", "DEVICES", "FREE", "RANKS", "ADDRESS"});
  for (const NodeEntry& node : picture.nodes.entries) {
    const auto found = held.find(node.name);
    nodes.add({node.name, node.state, age_text(node.since_s), std::to_string(node.devices),
               fmt::format(
                   "{}", std::max(0.0, node.devices - (found == held.end() ? 0.0 : found->second))),
               std::to_string(node.ranks), node.address});
  }
  if (nodes.size() > 0) fmt::print("\n{}", nodes.to_text());
  Table jobs({"JOB", "STATE", "SINCE", "RANKS", "HOST"});
  for (const JobEntry& job : picture.jobs.entries) {
    if (job.state == "running" || job.state == "away")
      jobs.add({job.job.name, job.state, age_text(job.since_s), std::to_string(job.ranks),
                job.job.host});
  }
  if (jobs.size() > 0) fmt::print("\n{}", jobs.to_text());
  print_lanes(picture);
  if (!picture.problems.empty()) fmt::print("\n");
  for (const std::string& problem : picture.problems) fmt::print("{}\n", problem);
}

}  // namespace

Command add_status(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("status", "the cluster at a glance; exit code 3 when something is wrong");
  const auto options = std::make_shared<StatusOptions>();
  command->add_flag("--lanes", options->lanes,
                    "who holds each device, who waits for it, and what lies in its memory");
  command
      ->add_option("--nodes", options->nodes_wanted,
                   "wait, within the timeout, until so many nodes are up")
      ->check(CLI::Range(0, 1 << 20));
  add_cluster_options(*command, options->cluster, true);
  return [options]() -> int {
    const auto picture = look(*options);
    if (!picture) return exit_with(picture.error());
    if (options->cluster.json) {
      print_as_json(*picture);
    } else {
      print_as_text(*picture);
    }
    return picture->problems.empty() ? kExitDone : kExitUnhealthy;
  };
}

}  // namespace troupe::apps
