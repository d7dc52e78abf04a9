#pragma once

// The three worlds in which the same group tests run: ranks as threads of this process, rank
// servers on threads behind in-memory channels, and real child processes with Gloo between them.
//
// **Threads:** a world belongs to its test.

#include "runtime/cluster/process_launcher.hpp"
#include "runtime/comm/rendezvous_store.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/group/cluster_job.hpp"
#include "runtime/group/rank_programs.hpp"
#include "runtime/group/rank_server.hpp"
#include "runtime/link/link_hub.hpp"
#include "tests/runtime/rank_host/actor.hpp"

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime::testing {

/// The programs that rank processes of these tests can be.
const RankPrograms& test_programs();

/// Runs rank servers on threads of this process, over channel pairs.
class ThreadLauncher final : public RankLauncher {
 public:
  explicit ThreadLauncher(RankPrograms programs) : programs_(std::move(programs)) {}
  ~ThreadLauncher() override;
  void set_job(ClusterJob& job) { job_ = &job; }
  /// What ranks launched from now on take their turns from.
  void set_lanes(std::shared_ptr<RankLanes> lanes) { lanes_ = std::move(lanes); }
  pending<void> launch(const RankLaunch& launch, std::function<void(Error)> on_exit) override;
  void stop(const std::string& group, RankId rank) override;

 private:
  struct Running {
    std::shared_ptr<RankServer> server;
    Ref<Channel> channel;
  };
  RankPrograms programs_;
  ClusterJob* job_ = nullptr;
  std::shared_ptr<RankLanes> lanes_;
  std::mutex mutex_;  // guards what follows
  std::map<std::pair<std::string, int>, Running> running_;
  std::vector<std::thread> threads_;
};

/// What else a child of a test binary can be, by the value of TROUPE_TEST_ROLE; set it in a static
/// initialiser of a test. Returns the exit code.
extern int (*test_role)(const std::string& role);

enum class Kind { kThreads, kServers, kProcesses };
std::string_view kind_name(Kind kind);

struct WorldOptions {
  bool exchange = true;
  std::map<std::string, std::string> environment = {};
  std::string token = {};
  LinkOptions link = {};
};

class World {
 public:
  explicit World(Kind kind, WorldOptions options = {});
  ~World();

  result<WorkerGroup<Actor>> create(GroupOptions options, const ActorSpec& spec = {});
  result<WorkerGroup<Actor>> create(int ranks, const ActorSpec& spec = {});
  /// A path of which nothing exists yet.
  std::string door();
  static void open(const std::string& path);
  /// Waits until `ranks` are inside of the door.
  static bool inside(const std::string& path, int ranks);

  Kind kind() const { return kind_; }
  ActorSystem& system() { return *system_; }
  ClusterJob& job() { return *job_; }
  LinkHub& hub() { return *hub_; }
  ProcessLauncher& processes() { return *processes_; }
  ThreadLauncher& servers() { return *servers_; }

 private:
  const Kind kind_;
  std::filesystem::path folder_;
  int doors_ = 0;
  std::unique_ptr<ActorSystem> system_;
  std::unique_ptr<LinkHub> hub_;
  std::unique_ptr<ProcessLauncher> processes_;
  std::unique_ptr<ThreadLauncher> servers_;
  std::unique_ptr<ClusterJob> job_;
};

/// True once `condition` holds; false after 20 s.
template <class Condition>
bool becomes_true(Condition condition) {
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace troupe::runtime::testing
