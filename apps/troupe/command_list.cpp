#include "apps/troupe/cluster_command.hpp"
#include "apps/troupe/cluster_json.hpp"
#include "runtime/base/units.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

namespace troupe::apps {

using nlohmann::json;
using runtime::JobEntry;
using runtime::NodeEntry;
using runtime::Page;
using runtime::PageRequest;
using runtime::RankEntry;

namespace {

struct ListOptions {
  ClusterOptions cluster;
  std::string what;
  std::string job;
  std::string state;
  std::int32_t limit = 100;
};

/// Says on standard error that there is more than what was printed.
void print_more(std::size_t shown, std::uint64_t total, const char* what) {
  if (shown >= total) return;
  fmt::print(stderr, "{} of {} {}; --limit shows more\n", shown, total, what);
}

template <class Entry, class Fields, class Row>
int print_page(const ListOptions& options, const Page<Entry>& page, std::vector<std::string> heads,
               const Fields& fields, const Row& row) {
  if (options.cluster.json) {
    json entries = json::array();
    for (const Entry& entry : page.entries) entries.push_back(fields(entry));
    print_json({{options.what, entries}, {"total", page.total}});
    return kExitDone;
  }
  Table table(std::move(heads));
  for (const Entry& entry : page.entries) table.add(row(entry));
  fmt::print("{}", table.to_text());
  print_more(page.entries.size(), page.total, options.what.c_str());
  return kExitDone;
}

result<int> list_nodes(const ListOptions& options, HeadClient& head, const PageRequest& request) {
  TROUPE_TRY(const auto page,
             (head.list<Page<NodeEntry>>("head.list_nodes", request, options.limit)));
  TROUPE_TRY(const auto groups, fetch_groups(head, std::numeric_limits<std::size_t>::max()));
  const auto held = devices_held(groups);
  const auto free = [&](const NodeEntry& node) {
    const auto found = held.find(node.name);
    return std::max(0.0, node.devices - (found == held.end() ? 0.0 : found->second));
  };
  return print_page(
      options, page,
      {"NODE", "STATE", "SINCE", "DEVICES", "FREE", "CPUS", "MEMORY", "RANKS", "ADDRESS", "CAUSE"},
      [&](const NodeEntry& node) { return to_json(node, free(node)); },
      [&](const NodeEntry& node) {
        return std::vector<std::string>{node.name,
                                        node.state,
                                        age_text(node.since_s),
                                        std::to_string(node.devices),
                                        fmt::format("{}", free(node)),
                                        fmt::format("{}", node.cpus),
                                        troupe::to_string(Bytes{node.memory_bytes}),
                                        std::to_string(node.ranks),
                                        node.address,
                                        node.cause};
      });
}

result<int> list_jobs(const ListOptions& options, HeadClient& head, const PageRequest& request) {
  TROUPE_TRY(const auto page,
             (head.list<Page<JobEntry>>("head.list_jobs", request, options.limit)));
  return print_page(
      options, page, {"JOB", "STATE", "SINCE", "RANKS", "HOST", "PID", "COMMAND", "CAUSE"},
      [](const JobEntry& job) { return to_json(job); },
      [](const JobEntry& job) {
        return std::vector<std::string>{job.job.name,          job.state,
                                        age_text(job.since_s), std::to_string(job.ranks),
                                        job.job.host,          std::to_string(job.job.pid),
                                        job.job.command,       job.cause};
      });
}

result<int> list_ranks(const ListOptions& options, HeadClient& head, const PageRequest& request) {
  TROUPE_TRY(const auto page,
             (head.list<Page<RankEntry>>("head.list_ranks", request, options.limit)));
  return print_page(
      options, page,
      {"JOB", "GROUP", "RANK", "NODE", "STATE", "AGE", "PID", "DEVICES", "DOING", "QUIET"},
      [](const RankEntry& rank) { return to_json(rank); },
      [](const RankEntry& entry) {
        const runtime::RankState& rank = entry.rank;
        return std::vector<std::string>{rank.job,
                                        rank.group,
                                        std::to_string(rank.rank.value),
                                        entry.node,
                                        rank_state(rank),
                                        age_text(seconds(rank.age)),
                                        std::to_string(rank.pid),
                                        fmt::format("{}", fmt::join(rank.devices, ",")),
                                        rank.doing.empty() ? rank.ending : rank.doing,
                                        age_text(seconds(rank.quiet))};
      });
}

result<int> list_groups(const ListOptions& options, HeadClient& head) {
  // The head does not filter groups: the limit is for what is left of all of them.
  const auto limit = static_cast<std::size_t>(options.limit);
  const bool filters = !options.job.empty() || !options.state.empty();
  TROUPE_TRY(auto groups,
             fetch_groups(head, filters ? std::numeric_limits<std::size_t>::max() : limit));
  std::erase_if(groups, [&](const placement::GroupView& group) {
    const bool other_job = !options.job.empty() && group.owner.name != options.job;
    return other_job ||
           (!options.state.empty() && options.state != placement::group_status_name(group.status));
  });
  Page<placement::GroupView> page;
  page.total = groups.size();
  if (groups.size() > limit) groups.resize(limit);
  page.entries = std::move(groups);
  return print_page(
      options, page, {"ID", "GROUP", "OWNER", "STATUS", "BUNDLES", "AGE", "NODES", "WHY"},
      [](const placement::GroupView& group) { return to_json(group); },
      [](const placement::GroupView& group) {
        std::vector<std::string> nodes;
        for (const auto& place : group.placements) {
          if (nodes.empty() || nodes.back() != place.node_name) nodes.push_back(place.node_name);
        }
        return std::vector<std::string>{std::to_string(group.id.value),
                                        group.name,
                                        group.owner.name,
                                        std::string(placement::group_status_name(group.status)),
                                        std::to_string(group.bundles),
                                        age_text(seconds(group.age)),
                                        fmt::format("{}", fmt::join(nodes, ",")),
                                        group.why};
      });
}

result<int> run_list(const ListOptions& options) {
  TROUPE_TRY(const auto head, HeadClient::connect(options.cluster));
  PageRequest request;
  request.job = options.job;
  request.state = options.state;
  if (options.what == "nodes") return list_nodes(options, *head, request);
  if (options.what == "jobs") return list_jobs(options, *head, request);
  if (options.what == "ranks") return list_ranks(options, *head, request);
  return list_groups(options, *head);
}

}  // namespace

Command add_list(CLI::App& app) {
  CLI::App* command = app.add_subcommand("list", "nodes, placement groups, jobs or ranks");
  const auto options = std::make_shared<ListOptions>();
  command->add_option("what", options->what, "nodes, groups, jobs or ranks")
      ->required()
      ->check(CLI::IsMember({"nodes", "groups", "jobs", "ranks"}));
  command->add_option("--job", options->job, "only of this job");
  command->add_option("--in-state", options->state, "only those in this state");
  command->add_option("--limit", options->limit, "most entries")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  add_cluster_options(*command, options->cluster, true);
  return [options]() -> int {
    const auto code = run_list(*options);
    return code ? *code : exit_with(code.error());
  };
}

}  // namespace troupe::apps
