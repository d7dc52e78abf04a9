#pragma once

// An environment that is somebody else's program, run in a sandbox.
//
// The program reads one JSON object a line and writes one for each, in order, flushing each:
//
//     {"id": 0, "turn": 1, "data_source": "my/shop", "prompt": "…", "ground_truth": "…",
//      "extra_info": {…}, "prompt_id": 7, "sample_index": 2, "state": null, "response": "…"}
//     {"text": "no such item", "state": {"basket": []}}      or    {"done": true, "score": 0.5}
//
// `state` is any JSON value; it comes back in the sample's next turn, to this process or another:
// what a process keeps to itself is lost whenever the sandbox replaces it. In the first turn it is
// null, and the program begins the episode.
// **Ownership:** the environment owns the pool; copies share it.
// **Threads:** may be called from many threads at once.
// **Invariants:** what is no such line, or one of the sandbox's failures, fails that sample's turn
// only (kAborted, named by its reason); failures of the sandbox itself are errors.

#include "actors/environment/environment.hpp"
#include "actors/sandbox/sandbox_pool.hpp"

namespace troupe::actors {

/// Opens the pool. Errors of `SandboxPool::open`.
result<EnvironmentTurns> make_command_environment(SandboxOptions options);

/// The same around a pool that the caller owns and that outlives the environment.
EnvironmentTurns command_environment_on(SandboxPool& pool);

}  // namespace troupe::actors
