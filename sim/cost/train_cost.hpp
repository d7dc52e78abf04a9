#pragma once

// What a trained or frozen role costs on its devices: time of forward passes and updates with its
// parts, and bytes on the fullest device with theirs.
//
// Time (reference simulator.md §2.1-2.3): matrices 2·N FLOPs a token forward, twice that backward,
// once more when all is recomputed; attention by Σs², its backward 2.5 times its forward kernel
// (FlashAttention, 2307.08691 §4.1). The head is not recomputed. What
// lies between matrices is written and read once: 68·H bytes a token and layer, routed experts'
// copies of a token beside it, logits in f32, at the rate of the memory. Pipelines idle for
// (p−1)/(v·m+p−1) of the time when their stages are equal, else for (Σ stages − slowest)/v; the
// head is the last stage's, and all wait for the slowest. Micro-batches hold whole sequences.
// Routed experts take as long as those of the busiest rank. Tensor parallelism sums 2 messages of
// tokens·H a layer and direction (a recomputed forward is one), experts exchange theirs and
// multiply less well, ranks that share out a sequence exchange heads for tokens, FSDP gathers
// weights twice and scatters gradients once per micro-batch (what compute does not hide), the
// others reduce gradients once per optimizer step: experts' over the ranks that hold the same ones.
// An optimizer step ends with the rank that has most work. Memory (§2.4): weights, gradients, Adam
// moments and masters by their sharding; activations of the micro-batches in flight (Korthikanti et
// al. 2205.05198: 34·tokens·H a layer with attention recomputed, 2 with everything); logits in f32,
// twice.
// **Threads:** pure after construction. Seconds and bytes.
// **Invariants:** more devices of one kind never hold more bytes each; parts add up to the whole.

#include "sim/cost/collective_cost.hpp"
#include "sim/cost/constants.hpp"
#include "sim/cost/device_spec.hpp"
#include "sim/cost/model_spec.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::sim {

enum class TrainSharding : std::uint8_t { kNone, kZero1, kFsdp };
/// Scores are always made again by the backward kernel; `kAttention` and `kNone` differ in what the
/// user wrote only.
enum class Recompute : std::uint8_t { kNone, kAttention, kAll };
/// How a rank's sequences become micro-batches: into as few as hold them, of about the same tokens;
/// filled one after the other, while the rank that has most of them works on (all of a step wait);
/// or filled, and padded to the bound, as pipelines with fixed shapes want it.
enum class MicroBatches : std::uint8_t { kEven, kFilled, kPadded };

struct TrainLayout {
  int tp = 1;
  int pp = 1;
  int dp = 1;
  int cp = 1;              ///< ranks of dp that share out each sequence
  int ep = 1;              ///< ranks of a stage that share out the experts
  int virtual_stages = 1;  ///< v of the interleaved schedule
  /// Layers of the first and the last stage; 0: all stages have about the same number.
  int first_stage_layers = 0;
  int last_stage_layers = 0;
  TrainSharding sharding = TrainSharding::kZero1;
  Recompute recompute = Recompute::kAttention;
  double weight_bytes = 2;
  double gradient_bytes = 4;
  double optimizer_bytes = 12;               ///< a parameter; 0: frozen
  std::int64_t micro_batch_tokens = 16'384;  ///< most tokens of one pass on one dp rank
  bool balanced = true;  ///< sequences go to ranks by their length; else one by one, in order
  MicroBatches micro_batches = MicroBatches::kEven;
  bool offload_optimizer = false;  ///< its bytes live in host memory
  bool offload_idle = false;       ///< weights and moments go to host memory while others work
  bool offload_pinned = true;      ///< moments go to pinned host memory; weights always do

  int devices() const { return tp * pp * dp; }
};

/// Sequences of one pass over all devices of the role.
struct TrainWork {
  double tokens = 0;   ///< Σ s
  double squares = 0;  ///< Σ s²
  std::int64_t sequences = 0;
  std::int64_t optimizer_steps = 1;
  double unevenness = 1;  ///< work of the rank that has most over that of all on average
  /// Micro-batches of all ranks and steps together; 0: as many as sequences of the mean length
  /// fill.
  double micro_batches = 0;
};

/// Micro-batches of at most `room` tokens that whole sequences fill: the longest first, each into
/// the fullest that holds it. One that is longer than `room` counts for itself. O(n log n).
double packed_micro_batches(std::vector<double> tokens, double room);

/// Seconds, by cause; stages of a pipeline on average.
struct TrainTime {
  double compute = 0;
  double memory = 0;      ///< activations written and read between matrices
  double stage_wait = 0;  ///< of stages for the one that has most work
  double bubble = 0;
  double pipeline = 0;         ///< activations and their gradients from stage to stage
  double tensor_parallel = 0;  ///< and what ranks of one sequence exchange
  double experts = 0;
  double data_parallel = 0;  ///< gradients, gathered weights that compute does not hide
  double optimizer = 0;
  double offload = 0;  ///< weights and moments that come from the host, and go back
  double host = 0;
  double total() const {
    return compute + memory + stage_wait + bubble + pipeline + tensor_parallel + experts +
           data_parallel + optimizer + offload + host;
  }
};

/// Bytes on the fullest device, by what they hold.
struct TrainMemory {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;
  double logits = 0;
  double total() const { return weights + gradients + optimizer + activations + logits; }
};

class TrainCost {
 public:
  /// kInvalidArgument when the layout does not divide the model, with the nearest that does.
  static result<TrainCost> create(const ModelSpec& model, const DeviceSpec& device,
                                  const TrainLayout& layout, const Constants& constants);

  /// A forward pass: log-probs, values.
  TrainTime forward(const TrainWork& work) const;
  /// Forward, backward and optimizer steps.
  TrainTime update(const TrainWork& work) const;
  /// Of a role that is trained, or only run forward (`frozen`).
  TrainMemory memory(bool frozen) const;
  const TrainLayout& layout() const { return layout_; }

 private:
  TrainCost(const ModelSpec& model, const DeviceSpec& device, const TrainLayout& layout,
            const Constants& constants);
  /// Seconds of one dp rank's layers, all stages in a row, and of the head.
  struct Parts {
    double layers = 0;
    double head = 0;
  };
  TrainTime passes(const TrainWork& work, bool backward) const;
  Parts flop_time(double tokens, double squares, bool backward) const;
  Parts activation_time(double tokens, bool backward) const;
  double slowest_stage(double layers_s, double head_s) const;
  double micro_batches(double tokens, double sequences) const;
  double gradients_s() const;
  double expert_parameters() const;

  ModelSpec model_;
  ModelSize size_;
  DeviceSpec device_;
  TrainLayout layout_;
  Constants constants_;
  Fabric fabric_;
};

}  // namespace troupe::sim
