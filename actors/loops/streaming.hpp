#pragma once

// Rollout as a stream: engines that are advanced slice by slice, and samples that may leave and
// enter between slices.
//
// A replica is one rollout engine (its tensor-parallel ranks together). It generates only inside
// `advance`: a call hands it new samples and stops, lets it run some engine steps, and answers with
// what each sample got. Everything else that concerns the replica, publications above all, comes
// between two slices; that is what makes a weight update in flight possible, and engines stamp each
// token with the version that made it.
//
// Samples travel as trajectories, so an attempt that starts is the same thing whether the sample is
// new, was interrupted, moved from another replica, or lost its replica.
// **Threads:** value types; roles are called on the controller's thread.
// **Invariants:** every attempt that was started is answered by exactly one piece of news with
// `ended`, unless the replica is lost; the pieces of an attempt follow each other without gaps.

#include "actors/pacing/rollout_dispatcher.hpp"
#include "actors/pacing/trajectory.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/observe/metrics.hpp"
#include "runtime/task/task.hpp"

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// A sample for a replica; it goes on from where its trajectory stands.
struct SampleStart {
  std::uint64_t attempt = 0;  ///< the controller's number, never used twice
  Trajectory trajectory{};
};

/// One slice of work.
struct AdvanceRequest {
  std::vector<SampleStart> starts{};
  /// Attempts to stop: answered by news with `ended`, `kInterrupted` and what they had. One that
  /// ended meanwhile was answered already; one that the replica does not know is ignored.
  std::vector<std::uint64_t> stops{};
  std::int64_t steps_max = 64;  ///< engine steps of this call
  /// The slice ends behind the step in which so much time has passed, in which a sample ended, or
  /// at once when nothing runs.
  Duration slice = std::chrono::milliseconds(20);
};

/// What an attempt got since the last news of it.
struct SampleNews {
  std::uint64_t attempt = 0;
  std::int64_t from = 0;  ///< tokens of the trajectory (those it came with included) before `piece`
  SamplePrefix piece{};   ///< may be empty
  bool ended = false;     ///< it has left the replica
  AttemptOutcome outcome = AttemptOutcome::kInterrupted;  ///< when it ended
  StopReason reason = StopReason::kAborted;               ///< when it ended
  std::string text{};            ///< of the turn, when it finished and stop strings are set
  std::optional<Error> error{};  ///< when it failed
};

struct AdvanceReply {
  std::vector<SampleNews> news{};  ///< by attempt, rising
  std::int64_t samples_free = 0;   ///< samples the replica would take besides those it has
  std::int64_t tokens_free = 0;    ///< of KV, after what its samples may still need
  WeightVersion version{};         ///< serving at the end of the slice
  std::int64_t steps = 0;          ///< engine steps that were run
  runtime::Metrics metrics{};      ///< `rollout/*`, `simulated/*`: of this slice
};

/// One rollout engine.
struct ReplicaInfo {
  RankId replica{};
  std::int64_t samples_max = 0;  ///< that it runs at once
  std::int64_t tokens_max = 0;   ///< of KV
  bool lent = false;             ///< stands on the trainer's devices: used only while that waits
  bool operator==(const ReplicaInfo&) const = default;
};

/// A rollout role that can be advanced by slices.
template <class Role>
concept StreamingRole = requires(Role& role, RankId replica, AdvanceRequest request) {
  /// Those that are alive and have weights.
  { role.replicas() } -> std::same_as<std::vector<ReplicaInfo>>;
  /// Throws `Failure` when the replica is lost (kRankDead, kAborted, kDeadline, …): its samples go
  /// elsewhere, and it is not asked again before `revive`.
  { role.advance(replica, std::move(request)) } -> std::same_as<runtime::task<AdvanceReply>>;
  /// Makes a lost one anew, without weights: it is among `replicas` after the next publication.
  { role.revive(replica) } -> std::same_as<runtime::task<void>>;
};

/// For worlds whose rollout cannot be advanced.
struct NoStreaming {
  std::vector<ReplicaInfo> replicas() { return {}; }
  runtime::task<AdvanceReply> advance(RankId, AdvanceRequest) { co_return AdvanceReply{}; }
  runtime::task<void> revive(RankId) { co_return; }
};

/// `W::Streaming`, where a world has it.
template <class W>
struct StreamingOf {
  using type = NoStreaming;
};
template <class W>
requires StreamingRole<typename W::Streaming>
struct StreamingOf<W> {
  using type = typename W::Streaming;
};

/// A weights role that says which version rollout ranks serve, and can bring it to revived ones.
template <class Role>
concept VersionedWeightsRole = requires(Role& role) {
  { role.version() } -> std::convertible_to<WeightVersion>;
  { role.publish_present() } -> std::same_as<runtime::task<void>>;
};

/// A trained role (policy, critic) that learns from a step's groups part by part.
template <class Role>
concept AccumulatingRole = requires(Role& role, runtime::Batch part) {
  /// Adds the gradients of complete groups; no optimizer step. Same columns as `update`.
  { role.accumulate(std::move(part)) } -> std::same_as<runtime::task<runtime::Metrics>>;
  /// Divides by the true denominators of all parts, clips, and takes the optimizer step.
  { role.finish_step() } -> std::same_as<runtime::task<runtime::Metrics>>;
  /// Forgets the gradients of the parts so far, also of a step that broke: as before the step.
  { role.abandon_step() } -> std::same_as<runtime::task<void>>;
};

}  // namespace troupe::actors
