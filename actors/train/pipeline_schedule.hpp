#pragma once

// The order in which a pipeline stage works: one forward, one backward (1F1B), also interleaved.
//
// The layers are cut into `stages · virtual_stages` *runs*; run r lies on stage r mod stages. Each
// micro-batch goes forward through all runs and then backward through them. A stage first does some
// forwards alone (warm-up), then one forward and one backward in turn, then the backwards that are
// left (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC'21,
// §2.2), which bounds the micro-batches whose activations it holds.
// Pure. **Threads:** pure functions.
// **Invariants:** every stage, running its steps in order and waiting for what a step needs, gets
// to the end, even if a mailbox holds one activation (and another one gradient) and a send waits
// for it to be read. Messages are read in the order in which they were sent. With more than one
// virtual stage that holds for whole groups of `stages` micro-batches (Megatron's order); a last
// group that is not full is the full one with the missing micro-batches left out, on all stages
// alike.

#include <cstdint>
#include <vector>

namespace troupe::actors {

struct PipelineShape {
  int stages = 1;
  int virtual_stages = 1;
  bool operator==(const PipelineShape&) const = default;
  int runs() const { return stages * virtual_stages; }
};

struct PipelineStep {
  bool forward = true;
  int run = 0;  ///< of all runs
  std::int64_t micro_batch = 0;
  bool operator==(const PipelineStep&) const = default;
};

/// Steps of `stage`, forward and backward of each of its runs and micro-batches once.
std::vector<PipelineStep> training_steps(const PipelineShape& shape, int stage,
                                         std::int64_t micro_batches);
/// The forward steps alone, for passes without gradients.
std::vector<PipelineStep> forward_steps(const PipelineShape& shape, int stage,
                                        std::int64_t micro_batches);
/// Most (run, micro-batch) pairs that have gone forward and not yet backward at one time:
/// stages − stage with one virtual stage, 2·(stages − stage − 1) + (V − 1)·stages + 1 with V.
std::int64_t in_flight_max(const PipelineShape& shape, int stage);

}  // namespace troupe::actors
