#pragma once

// A rank process: dials its controller, constructs its worker, serves calls until the channel ends.
//
//   int main() {
//     RankPrograms programs;
//     programs.add<PolicyWorker>("policy", [](WorkerContext& context, std::span<const std::byte>) {
//       return std::make_unique<PolicyWorker>(context);
//     });
//     return run_rank(programs);
//   }
//
// The I/O thread of the link answers status, heartbeat, abort and plan at once; the engine thread
// runs the worker's methods, as in a group whose ranks are threads of one process.
// Ownership: `programs` and what its hooks make outlive `run_rank`.
// **Threads:** `run_rank` blocks the calling thread, which should be `main`'s.
// **Invariants:** the process ends when its controller's channel does, whatever the engine is
// doing: by returning, or by `_exit` when the engine is stuck. A failed CHECK or foreign exception
// in a method is reported, then ends the process with kRankDeathCode.

#include "runtime/group/rank_programs.hpp"

#include <optional>

namespace troupe::runtime {

/// Exit codes of a rank process besides 0.
inline constexpr int kRankConfigCode = 64;      ///< its record or the refusal of its controller
inline constexpr int kRankDeathCode = 70;       ///< a CHECK or foreign exception in its worker
inline constexpr int kRankControllerCode = 75;  ///< its controller is gone

/// Runs this process as the rank that `TROUPE_RANK` describes. Returns the exit code; what went
/// wrong is the last line on stderr.
int run_rank(const RankPrograms& programs);

/// For apps that embed the library: runs the rank and returns its code when `TROUPE_RANK` is set.
/// Call it first in `main`, before threads and devices.
std::optional<int> maybe_run_rank(const RankPrograms& programs);

}  // namespace troupe::runtime
