#pragma once

// `ClusterRun`: the devices of one training run on a cluster, from the `cluster.*` keys.
//
// A session with the head, a pool of `trainer.nnodes` × `trainer.n_gpus_per_node` bundles, and the
// job whose rank processes run on them.
// **Ownership:** owns all three; `system` outlives it, and it outlives the places it makes and the
// worlds on them. Destroying it ends the ranks and gives the devices up.
// **Threads:** controller's thread; callbacks run on the link's I/O thread and must not block.

#include "actors/roles/world_place.hpp"
#include "runtime/config/config.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/observe/trace.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::apps {

/// `cause`, of a cluster that cannot hold the run, with the keys that the run's devices come from.
Error explain_devices(const runtime::Config& config, Error cause);

struct ClusterRunOptions {
  std::string name;                       ///< of the run, for people; made unique by the process id
  std::vector<std::string> rank_command;  ///< what rank processes run
  std::function<void(const std::string& reason)> on_stop;  ///< `troupe stop JOB`
};

class ClusterRun {
 public:
  /// Waits for the head, then for devices, as long as `cluster.wait_s` says. kConfig names the key
  /// that is wrong; other errors are the head's: why it refuses, or why the run still waits.
  static result<std::unique_ptr<ClusterRun>> open(runtime::ActorSystem& system,
                                                  const runtime::Config& config,
                                                  ClusterRunOptions options);
  ~ClusterRun();
  ClusterRun(const ClusterRun&) = delete;
  ClusterRun& operator=(const ClusterRun&) = delete;

  std::unique_ptr<actors::WorldPlace> place(const actors::WorldOptions& options);
  /// Turns on the devices since the last time, as spans. Waits a few seconds at most.
  void record_turns(runtime::Trace& trace);
  /// One line a bundle: where it lies.
  std::string describe() const;

 private:
  struct Parts;
  explicit ClusterRun(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace troupe::apps
