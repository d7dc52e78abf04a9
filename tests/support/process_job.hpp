#pragma once

// A cluster job whose rank processes are children that run this test binary.
// **Threads:** one.

#include "actors/roles/group_world.hpp"
#include "actors/roles/role_programs.hpp"
#include "runtime/cluster/process_launcher.hpp"
#include "runtime/cluster/rank_host.hpp"
#include "runtime/group/cluster_job.hpp"
#include "tests/support/world_steps.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>

namespace troupe::testing {

/// The whole `main` of a test binary that is its own rank process, with the roles over rule `odd`.
inline int run_as_rank_or_tests(int count, char** words) {
  runtime::RankPrograms programs;
  actors::add_role_programs(programs,
                            {.losses = actors::default_policy_losses(), .rewards = odd_rewards()});
  if (const auto code = runtime::maybe_run_rank(programs)) return *code;
  ::testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}

class ProcessJob {
 public:
  /// Call within ASSERT_NO_FATAL_FAILURE, or last in `SetUp`.
  void open(runtime::ActorSystem& system) {
    runtime::LinkOptions link;
    link.self = {runtime::PeerRole::kController, "test"};
    auto hub = runtime::LinkHub::open(system, link);
    ASSERT_TRUE(hub.has_value()) << hub.error().to_string();
    hub_ = std::move(*hub);
    auto launcher = runtime::ProcessLauncher::open();
    ASSERT_TRUE(launcher.has_value()) << launcher.error().to_string();
    launcher_ = std::move(*launcher);
    runtime::ClusterJobOptions options;
    options.command = {"/proc/self/exe"};
    options.environment["OMP_NUM_THREADS"] = "1";
    auto opened = runtime::ClusterJob::open(system, hub_.get(), *launcher_, options);
    ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
    job_ = std::move(*opened);
  }

  result<std::unique_ptr<actors::GroupWorld>> world(const actors::WorldOptions& options) {
    actors::ClusterPool pool;
    pool.job = job_.get();
    return actors::GroupWorld::create(actors::make_cluster_place(pool, options), options);
  }

  /// Sends a signal to the process of a rank; false when there is none.
  bool signal(const std::string& group, int rank, int number) const {
    const int pid = launcher_->pid_of(group, RankId{rank});
    return pid > 0 && ::kill(pid, number) == 0;
  }

 private:
  std::unique_ptr<runtime::LinkHub> hub_;
  std::unique_ptr<runtime::ProcessLauncher> launcher_;
  std::unique_ptr<runtime::ClusterJob> job_;
};

}  // namespace troupe::testing
