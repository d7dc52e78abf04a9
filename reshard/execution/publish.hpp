#pragma once

// The coordinator of a publication, for the controller.
//
//   auto outcome = publish({.id = {…}, .receive_within = 2min}, members);
//
// Drives `CoordinatorCore` with the members' calls: begin on all, receive on the targets, then
// commit on all, or abort on all with the first cause. One attempt per epoch; a caller that wants
// another takes a new epoch.
// Ownership: members are the caller's and outlive the call.
// **Threads:** `publish` blocks its thread; calls of members run side by side.
// **Invariants:** it returns when the times of its steps are over. An error before the commit was
// decided means that every target serves the old version; after it, the message names who has not
// answered.

#include "reshard/execution/coordinator_core.hpp"
#include "reshard/execution/messages.hpp"
#include "runtime/task/pending.hpp"

#include <vector>

namespace troupe::reshard {

/// How the coordinator reaches one member: an actor call, a pipe, or the object itself.
class MemberLink {
 public:
  virtual ~MemberLink() = default;
  virtual Member member() const = 0;
  /// Ends by `deadline`; an error means that the member could not be reached, or is dead.
  virtual runtime::pending<Reply> call(const Command& command, Deadline deadline) = 0;
};

struct PublishOptions {
  PublicationId id;
  Checks checks;
  /// Of each of the three steps.
  Duration begin_within = std::chrono::seconds(10);
  Duration receive_within = std::chrono::minutes(5);
  Duration commit_within = std::chrono::seconds(30);
  bool sources_send = false;  ///< kReceive goes to sources too: members of NCCL need it
};

/// Blocks until the publication is over. The outcome tells what each target received.
result<PublicationOutcome> publish(const PublishOptions& options,
                                   const std::vector<MemberLink*>& members);

}  // namespace troupe::reshard
