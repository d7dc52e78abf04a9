#pragma once

// The source side of publications: a trainer rank whose weights others read where they lie.
//
//   PublicationSource source(plan, rank, buffers, port, options);
//   Reply reply = source.handle(command);                   // from the coordinator
//   TROUPE_TRY(auto update, source.start_update(deadline)); // before the optimizer writes
//
// Between begin and commit or abort the weights are frozen: `start_update` waits for the end of the
// lease and of every read that is under way, or fails. The lease ends by itself when the
// coordinator is silent for longer than the command allowed. Ownership: `buffers` are the caller's,
// one per buffer of the rank's source layout, at stable addresses. The port outlives this.
// **Threads:** `handle` and `start_update` from any; the holder of an update writes, nobody else.
// **Invariants:** nobody reads while an update is held; nobody updates while somebody may read.

#include "reshard/execution/messages.hpp"
#include "reshard/execution/publication_plan.hpp"
#include "reshard/execution/weight_port.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace troupe::reshard {

struct SourceOptions {
  /// Keeps a copy of the weights of the last committed version, so that later ones can be
  /// published as deltas: as much memory again.
  bool keep_base = false;
};

/// Held while the weights change.
class UpdateLease {
 public:
  virtual ~UpdateLease() = default;
};

class PublicationSource {
 public:
  PublicationSource(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank,
                    std::vector<std::span<const std::byte>> buffers, WeightPort& port,
                    const SourceOptions& options = {});
  ~PublicationSource();
  PublicationSource(const PublicationSource&) = delete;
  PublicationSource& operator=(const PublicationSource&) = delete;

  /// Carries out a command; never blocks for long. The reply says what became of it.
  Reply handle(const Command& command);
  /// kConflict naming the version that is being published when the deadline comes first; a deadline
  /// in the past only tries.
  result<std::unique_ptr<UpdateLease>> start_update(Deadline deadline);
  bool frozen() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::reshard
