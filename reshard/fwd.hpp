#pragma once

// Forward declarations of the reshard layer's public types.
// **Threads:** declarations only.

namespace troupe::reshard {
struct Box;
struct LocalModel;
struct ModelShape;
struct Op;
struct Plan;
struct PlanOptions;
struct RankLayout;
struct Roster;
struct Segment;
struct TensorInfo;
}  // namespace troupe::reshard
