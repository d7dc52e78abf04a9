// A controller and its ranks, for tests of the commands: `cluster_controller JOB BUNDLES GPUS
// SECONDS` gets a pool of BUNDLES bundles of GPUS devices each, runs two groups of processes on it
// that take turns on each device, says in lines what it sees, and waits until it is told to stop or
// SECONDS are over.

#include "placement/cluster_client.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cluster/agent_lanes.hpp"
#include "runtime/cluster/rank_host.hpp"
#include "runtime/group/cluster_job.hpp"
#include "runtime/group/worker_group.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace troupe::runtime;
using namespace troupe::placement;

namespace {

class Player {
 public:
  explicit Player(WorkerContext& context) : context_(context) {}
  std::string where() {
    return context_.group() + " " + std::to_string(context_.rank().value) + " " +
           std::to_string(::getpid());
  }
  /// Holds the device for a while.
  int play(int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return milliseconds;
  }
  static constexpr auto methods() {
    return std::tuple{
        method<&Player::where>("where", args(), returns(all)),
        method<&Player::play>("play", args(broadcast), returns(reduce(kSum))).phase("play")};
  }

 private:
  WorkerContext& context_;
};

RankPrograms programs() {
  RankPrograms programs;
  programs.add<Player>("player");
  programs.set_agent_parts([](Ref<Channel> agent, const RankRecord& record) -> result<AgentParts> {
    const auto lanes = make_agent_lanes(std::move(agent), record);
    if (!lanes) return AgentParts{};
    TROUPE_TRY_VOID(lanes->add(
        {.key = {"", "props"}, .bytes = mebibytes(64), .eviction = Eviction::kDrop}, {}));
    lanes->declare("play", {"props"});
    AgentParts parts;
    parts.lanes = lanes;
    parts.services.emplace_back("memory.", lanes->service());
    return parts;
  });
  return programs;
}

std::string own_path() {
  std::string path(4096, '\0');
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return path;
}

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

result<WorkerGroup<Player>> make_group(ClusterJob& job, ClusterPool& pool, const std::string& name,
                                       int ranks) {
  GroupOptions options;
  options.name = name;
  options.mesh = Mesh::data_parallel(ranks);
  options.collectives = false;
  options.lanes = pool.lanes();
  options.create_deadline = std::chrono::seconds(20);
  RemoteProgram program;
  program.name = "player";
  program.reservation = pool.name();
  return WorkerGroup<Player>::create(job, std::move(options), std::move(program));
}

result<void> play(ClusterJob& job, ClusterPool& pool, ClusterClient& client) {
  const int ranks = static_cast<int>(pool.size());
  TROUPE_TRY(auto alpha, make_group(job, pool, "alpha", ranks));
  TROUPE_TRY(auto beta, make_group(job, pool, "beta", ranks));
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  for (auto* group : {&alpha, &beta}) {
    TROUPE_TRY(const auto places, group->call<&Player::where>().wait(deadline));
    for (const std::string& place : places) say("rank " + place);
  }
  std::vector<pending<int>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(alpha.call<&Player::play>(5));
    calls.push_back(beta.call<&Player::play>(5));
  }
  for (auto& call : calls) TROUPE_TRY_VOID(call.wait(deadline).map([](int) {}));
  Trace trace;
  client.record_turns(trace, deadline);
  for (const TraceSpan& span : trace.spans()) say("turn " + span.place.process + ": " + span.name);
  return {};
}

result<int> run(const std::string& job_name, int bundles, int gpus, double seconds_to_run) {
  TROUPE_TRY(auto access, resolve_access({}));
  ActorSystem system;
  std::atomic<bool> stop{false};
  ClusterClientOptions options;
  options.access = access;
  options.job = job_name;
  options.command = "cluster_controller";
  options.on_stop = [&stop](const std::string& reason) {
    say("stop " + reason);
    stop = true;
  };
  options.on_lost = [](const Error& cause) { say("lost " + cause.to_string()); };
  TROUPE_TRY(const auto client, ClusterClient::open(system, options));
  say("in session");
  GroupWish wish;
  wish.request.name = job_name + "-pool";
  for (int i = 0; i < bundles; ++i) {
    Bundle bundle;
    bundle.resources.gpu = Amount::whole(gpus);
    wish.request.bundles.push_back(bundle);
  }
  const Deadline placed_by = Deadline::in(
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds_to_run)));
  TROUPE_TRY(const auto pool, client->create_pool(wish, placed_by));
  for (const BundlePlacement& place : pool->placements()) say("placed " + to_string(place));
  pool->watch([](const GroupChange& change) {
    say("change " + std::string(change_kind_name(change.kind)));
  });
  ClusterJobOptions job_options;
  job_options.job = job_name;
  job_options.listen_host = client->listen_host();
  job_options.command = {own_path()};
  job_options.exchange = false;
  TROUPE_TRY(const auto job,
             ClusterJob::open(system, &client->hub(), client->launcher(), job_options));
  TROUPE_TRY(auto held, make_group(*job, *pool, "held", bundles));
  if (gpus > 0) TROUPE_TRY_VOID(play(*job, *pool, *client));
  say("ready");
  while (!stop && !placed_by.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const RankPrograms own = programs();
  if (const auto code = maybe_run_rank(own)) return *code;
  if (count != 5) return 2;
  const auto code = run(words[1], std::stoi(words[2]), std::stoi(words[3]), std::stod(words[4]));
  if (code) return *code;
  std::fprintf(stderr, "cluster_controller: %s\n", code.error().to_string().c_str());
  return 1;
}
