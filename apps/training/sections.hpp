#pragma once

// Sections of a training configuration and what its numbers may be at most.
//
// **Threads:** constants.

namespace troupe::apps {

inline constexpr const char* kActor = "actor_rollout_ref.actor";
inline constexpr const char* kReference = "actor_rollout_ref.ref";
inline constexpr const char* kCritic = "critic";
inline constexpr const char* kRollout = "actor_rollout_ref.rollout";

/// The most that an `int` of the loops holds.
inline constexpr double kMostInt = 2147483647;

}  // namespace troupe::apps
