#pragma once

// The actors of a worker group: one shell per rank, and a watch over them. CAF stays in the .cpp.
//
// Ownership: owned by the group's core; the actors hold the core until `stop`.
// **Threads:** any.
// **Invariants:** shells never block, so they answer while their engine is busy or stuck. A shell
// that ends unasked, or does not answer the watch in time, means that its rank is dead.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/group/call.hpp"
#include "runtime/group/group_options.hpp"
#include "runtime/group/rank.hpp"

#include <memory>
#include <vector>

namespace troupe::runtime {

class GroupCore;

class GroupActors {
 public:
  GroupActors(ActorSystem& system, const Ref<GroupCore>& core, const std::vector<Ref<Rank>>& ranks);
  ~GroupActors();
  GroupActors(const GroupActors&) = delete;
  GroupActors& operator=(const GroupActors&) = delete;

  /// Sends the call to every shell, which puts it into its engine's queue.
  void submit(const Ref<Call>& call);
  result<std::vector<RankStatus>> status(Deadline deadline);
  void kill(RankId rank, Error cause);
  void abort(RankId rank, Error cause);
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::runtime
