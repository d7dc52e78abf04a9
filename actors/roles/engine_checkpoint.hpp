#pragma once

// A role's state in a checkpoint: tensors `<role>/weights/…`, `<role>/adam_m/…`, `<role>/adam_v/…`
// and the JSON state `<role>`.
//
// **Threads:** the controller's. Blocks it while it reads, writes or pulls.
// **Invariants:** save then load continues with the same bits, on any number of ranks.

#include "actors/roles/train_worker.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/task/failure.hpp"
#include "runtime/task/task.hpp"

#include <string>

namespace troupe::actors {

/// Pulls the part and writes it; the JSON goes with part 0.
result<void> write_state(runtime::CheckpointWriter& writer, const std::string& role,
                         std::int64_t part, const EngineState& state);
/// The role's whole state, in memory of its own.
result<EngineState> read_state(const runtime::Checkpoint& checkpoint, const std::string& role);

/// W: PolicyWorker or CriticWorker. Throws `Failure`.
template <class W>
runtime::task<void> save_role(runtime::WorkerGroup<W>& group, std::string role,
                              runtime::CheckpointWriter& writer) {
  std::int64_t parts = 1;
  for (std::int64_t part = 0; part < parts; ++part) {
    const EngineState state = co_await group.template call<&W::state>(part);
    runtime::value_or_throw(write_state(writer, role, part, state));
    parts = state.parts;
  }
}

template <class W>
runtime::task<void> load_role(runtime::WorkerGroup<W>& group, std::string role,
                              const runtime::Checkpoint& checkpoint) {
  EngineState state = runtime::value_or_throw(read_state(checkpoint, role));
  co_await group.template call<&W::load_state>(std::move(state));
}

}  // namespace troupe::actors
