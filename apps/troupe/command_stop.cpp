#include "apps/troupe/cluster_command.hpp"
#include "apps/troupe/cluster_json.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe::apps {

using runtime::JobEntry;
using runtime::NodeEntry;
using runtime::Page;
using runtime::PageRequest;
using runtime::StopAnswer;
using runtime::StopRequest;

namespace {

struct StopOptions {
  ClusterOptions cluster;
  std::string job;
  std::string node;
  bool all = false;
  bool force = false;
  bool no_wait = false;
  std::string reason = "troupe stop";
};

/// Whether job and node of the request are over.
result<bool> over(HeadClient& head, const StopOptions& options) {
  PageRequest request;
  request.job = options.job;
  if (!options.job.empty()) {
    TROUPE_TRY(const auto jobs, (head.list<Page<JobEntry>>("head.list_jobs", request, 1)));
    for (const JobEntry& job : jobs.entries) {
      if (job.state == "running" || job.state == "away" || job.ranks > 0) return false;
    }
    return true;
  }
  TROUPE_TRY(const auto node,
             (head.ask<NodeEntry>("head.find_node", runtime::NodeQuery{options.node})));
  return node.state == "left" || node.state == "lost";
}

result<void> wait_over(HeadClient& head, const StopOptions& options) {
  const std::string what = options.job.empty() ? "node " + options.node : "job " + options.job;
  for (;;) {
    const auto done = over(head, options);
    if (!done && options.all) return {};
    if (!done) return fail(done.error());
    if (*done) return {};
    if (head.deadline().passed())
      return fail(ErrorCode::kDeadline, "{} was told to stop and has not in {} s", what,
                  options.cluster.timeout_s);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

result<StopAnswer> stop(const StopOptions& options) {
  TROUPE_TRY(const auto head, HeadClient::connect(options.cluster));
  const StopRequest wanted{.job = options.job,
                           .node = options.node,
                           .all = options.all,
                           .force = options.force,
                           .reason = options.reason};
  TROUPE_TRY(auto answer, (head->ask<StopAnswer>("head.stop", wanted)));
  if (options.no_wait) return answer;
  if (!options.all) {
    TROUPE_TRY_VOID(wait_over(*head, options));
    return answer;
  }
  while (!head->channel()->failure()) {
    if (head->deadline().passed())
      return fail(ErrorCode::kDeadline, "the head was told to stop and has not in {} s",
                  options.cluster.timeout_s);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return answer;
}

}  // namespace

Command add_stop(CLI::App& app) {
  CLI::App* command = app.add_subcommand("stop", "stop a job, a node, or everything");
  const auto options = std::make_shared<StopOptions>();
  auto* job = command->add_option("job", options->job, "the job: it saves what it must and ends");
  auto* node = command->add_option("--node", options->node, "the agent of that node and its ranks");
  auto* all = command->add_flag("--all", options->all, "jobs, nodes and the head");
  job->excludes(node)->excludes(all);
  node->excludes(all);
  command->add_flag("--force", options->force,
                    "end the ranks of the job now, whatever its controller does");
  command->add_flag("--no-wait", options->no_wait, "return when they have been told");
  command->add_option("--reason", options->reason, "for the logs")->capture_default_str();
  options->cluster.timeout_s = 60;
  add_cluster_options(*command, options->cluster, true);
  return [options]() -> int {
    if (options->job.empty() && options->node.empty() && !options->all) {
      return exit_usage(Error{.code = ErrorCode::kConfig,
                              .message = "stop: name a job, or give --node NAME or --all",
                              .origin = {},
                              .causes = {}});
    }
    const auto answer = stop(*options);
    if (!answer) return exit_with(answer.error());
    if (options->cluster.json) {
      print_json({{"jobs", answer->jobs}, {"nodes", answer->nodes}, {"head", answer->head}});
      return kExitDone;
    }
    const char* how = options->no_wait ? "told to stop" : "stopped";
    for (const std::string& name : answer->jobs) fmt::print("job {} {}\n", name, how);
    for (const std::string& name : answer->nodes) fmt::print("node {} {}\n", name, how);
    if (answer->head) fmt::print("head {}\n", how);
    return kExitDone;
  };
}

}  // namespace troupe::apps
