#pragma once

// What a role's rank keeps on its device, told to the device's ledger.
//
// **Ownership:** borrows ledger and engine; entries are removed by the destructor, so declare it
// after the engine.
// **Threads:** callbacks run on the engine thread of the role whose phase begins; the lane keeps
// the owner idle meanwhile.

#include "actors/train/train_engine.hpp"
#include "runtime/device/memory_book.hpp"

#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

class MemoryEntries {
 public:
  /// `memory` may be null: then nothing is told.
  MemoryEntries(runtime::MemoryBook* memory, std::string role)
      : memory_(memory), role_(std::move(role)) {}
  MemoryEntries(const MemoryEntries&) = delete;
  MemoryEntries& operator=(const MemoryEntries&) = delete;
  ~MemoryEntries();

  /// kResourceExhausted with the ledger's table when it does not fit.
  result<void> add(const std::string& what, Bytes bytes, runtime::Eviction eviction,
                   runtime::Residency residency, runtime::MemoryActions actions = {});

  /// The owner has thrown away the contents of an entry that it added; the next phase that needs it
  /// loads it. Nothing when there is no such entry.
  result<void> dropped(const std::string& what);

  /// `weights`, and for a trainable engine `gradients` (dropped when others need room) and
  /// `optimizer`.
  result<void> add_engine(TrainEngine& engine);

 private:
  struct Kept {
    runtime::MemoryEntry entry;
    runtime::MemoryActions actions;
  };
  result<void> enter(Kept kept);

  runtime::MemoryBook* memory_;
  std::string role_;
  std::vector<Kept> kept_;
};

/// Most bytes that one micro-batch saves for its backward pass: an estimate from the shapes, per
/// token and layer 16 H-wide, 3 q/k/v-wide and 5 F-wide activations, or H alone with recompute, and
/// the logits of one chunk. The ledger reserves it as scratch of a training phase.
Bytes activation_estimate(const ModelConfig& model, const TrainEngineOptions& options);

}  // namespace troupe::actors
