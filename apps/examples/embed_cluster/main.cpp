// Embeds a cluster: asks the head for two devices, starts this very program on them as two ranks,
// and calls them. `run` beside it starts a head and a node first; against a cluster that is up:
//
//   TROUPE_ADDRESS=head:7611 TROUPE_TOKEN_FILE=token example_embed_cluster

#include "placement/cluster_client.hpp"
#include "runtime/cluster/rank_host.hpp"
#include "runtime/group/cluster_job.hpp"
#include "runtime/group/worker_group.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::runtime;
using namespace troupe::placement;
using namespace std::chrono_literals;

class Adder {
 public:
  explicit Adder(WorkerContext& context) : context_(context) {}

  /// The sum of the squares of this rank's share.
  double add_squares(const std::vector<double>& numbers) {
    double sum = 0;
    for (const double number : numbers) sum += number * number;
    return sum;
  }
  std::string where() {
    return "rank " + std::to_string(context_.rank().value) + " of " +
           std::to_string(context_.size()) + " is process " + std::to_string(::getpid());
  }

  static constexpr auto methods() {
    return std::tuple{
        method<&Adder::add_squares>("add_squares", args(scatter), returns(reduce(kSum))),
        method<&Adder::where>("where", args(), returns(all))};
  }

 private:
  WorkerContext& context_;
};

/// Two bundles of one device; rank i runs on bundle i.
GroupWish two_devices(const std::string& name) {
  GroupWish wish;
  wish.request.name = name;
  for (int i = 0; i < 2; ++i) {
    Bundle bundle;
    bundle.resources.gpu = Amount::whole(1);
    wish.request.bundles.push_back(bundle);
  }
  return wish;
}

result<void> run() {
  ActorSystem system;
  ClusterClientOptions cluster;
  TROUPE_TRY(cluster.access, resolve_access({}));  // from TROUPE_ADDRESS and the like
  cluster.job = "adder-" + std::to_string(::getpid());
  TROUPE_TRY(const auto client, ClusterClient::open(system, cluster));
  TROUPE_TRY(const auto pool,
             client->create_pool(two_devices(cluster.job + "-pool"), Deadline::in(20s)));
  for (const BundlePlacement& place : pool->placements()) std::puts(to_string(place).c_str());

  ClusterJobOptions processes;
  processes.job = cluster.job;
  processes.listen_host = client->listen_host();
  processes.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  processes.exchange = false;  // no columns: whole values travel in the calls
  TROUPE_TRY(const auto job,
             ClusterJob::open(system, &client->hub(), client->launcher(), processes));
  GroupOptions options;
  options.name = "adders";
  options.mesh = Mesh::data_parallel(2);
  options.lanes = pool->lanes();
  options.collectives = false;  // its ranks do not talk to one another
  RemoteProgram program;
  program.name = "adder";
  program.reservation = pool->name();
  TROUPE_TRY(auto adders, WorkerGroup<Adder>::create(*job, options, program));

  const std::vector<double> numbers{1, 2, 3, 4, 5};
  auto sum = adders.call<&Adder::add_squares>(numbers);  // both calls are under way
  auto places = adders.call<&Adder::where>();
  TROUPE_TRY(const auto lines, places.wait(Deadline::in(20s)));
  for (const std::string& line : lines) std::puts(line.c_str());
  TROUPE_TRY(const double squares, sum.wait(Deadline::in(20s)));
  std::printf("sum of squares: %.0f\n", squares);
  return {};
}

int main() {
  RankPrograms programs;
  programs.add<Adder>("adder");
  // Started by an agent, this process is a rank.
  if (const auto code = maybe_run_rank(programs)) return *code;
  const auto outcome = run();
  if (!outcome) std::fprintf(stderr, "%s\n", outcome.error().to_string().c_str());
  return outcome ? 0 : 1;
}
