#pragma once

// Forward declarations of the placement core's public types.
// **Threads:** declarations only.

namespace troupe::placement {
struct Amount;
struct Resources;
struct NodeSpec;
struct Bundle;
struct GroupRequest;
struct BundlePlacement;
class Cluster;
class Scheduler;
}  // namespace troupe::placement
