#pragma once

// Forward declarations of the runtime layer's public types.
// **Threads:** declarations only.

namespace troupe {
struct Error;
class Clock;
struct Deadline;
class Rng;
}  // namespace troupe

namespace troupe::runtime {
class Batch;
class Collective;
class Column;
class Mesh;
}  // namespace troupe::runtime
