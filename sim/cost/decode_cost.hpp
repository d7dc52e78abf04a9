#pragma once

// What one rollout engine's steps take: decode of a running batch, prefill, and the KV pool.
//
// A decode step of b sequences with Σc cached tokens (reference simulator.md §2.2):
//   L·[max(W/(η_b·B), 2·N·b/(η_f·F)) + k + 2·all-reduce(2·b·H bytes)] + head + c0 + c1·b
//     + kv bytes·Σc/(η_kv·B)
// k: what a layer's kernels take beside their bytes, twice where there are experts.
// Linear and attention kernels run one after the other, so their times add. With captured graphs b
// is padded to the next captured size for the linear part.
// Between changes of membership Σc grows by b a step, so k steps have a closed form.
// **Threads:** pure after construction. Seconds and bytes.
// **Invariants:** `steps_s(b, Σc, k)` = Σ step_s(b, Σc + i·b) for i < k, to rounding.

#include "sim/cost/collective_cost.hpp"
#include "sim/cost/constants.hpp"
#include "sim/cost/device_spec.hpp"
#include "sim/cost/model_spec.hpp"
#include "sim/cost/step_profile.hpp"

#include <cstdint>
#include <vector>

namespace troupe::sim {

/// Tokens of KV that are allocated at a time.
inline constexpr std::int64_t kKvBlockTokens = 16;

/// How one engine is cut, and how it runs.
struct EngineLayout {
  int tp = 1;
  double weight_bytes = 2;    ///< of one parameter
  double kv_bytes = 2;        ///< of one KV element
  double memory_share = 0;    ///< of HBM that the engine may take; 0: the constant
  double reserved_bytes = 0;  ///< of that, which others on the device keep while it works
  bool sleeps = false;        ///< gives its weights away while others work on its devices
  /// Batch sizes whose graphs are captured, rising; larger batches run as they are. Empty: none.
  std::vector<int> captured = {1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96, 128, 160, 192, 224, 256};
  StepProfile profile{};  ///< measured steps, instead of the model's; empty: none
};

class DecodeCost {
 public:
  /// kInvalidArgument when the layout does not fit the model, with the nearest that does.
  static result<DecodeCost> create(const ModelSpec& model, const DeviceSpec& device,
                                   const EngineLayout& layout, const Constants& constants);

  /// The part of a step that depends on the number of sequences only; none: nothing.
  double fixed_s(std::int64_t sequences) const;
  /// What each cached token adds to a step.
  double cached_token_s() const { return cached_token_s_; }
  double step_s(std::int64_t sequences, double cached) const {
    return fixed_s(sequences) + cached_token_s_ * cached;
  }
  /// `steps` decode steps in a row, each of which makes every sequence longer by a token.
  double steps_s(std::int64_t sequences, double cached, std::int64_t steps) const;
  /// Prefill of prompts with `tokens` = Σ p and `squares` = Σ p².
  double prefill_s(double tokens, double squares) const;

  /// Tokens that the KV pool holds, in whole blocks; kResourceExhausted with the least tensor
  /// parallelism that fits when the weights leave no room.
  result<std::int64_t> kv_tokens() const;
  /// Bytes of KV cache that one token takes on one device.
  double kv_token_bytes() const { return kv_token_bytes_; }
  /// Bytes of the weights on one device.
  double weight_bytes() const { return weight_bytes_; }

 private:
  DecodeCost(const ModelSpec& model, const DeviceSpec& device, const EngineLayout& layout,
             const Constants& constants);
  double layer_s(double tokens) const;
  std::int64_t padded(std::int64_t sequences) const;

  ModelSpec model_;
  ModelSize size_;
  DeviceSpec device_;
  EngineLayout layout_;
  Constants constants_;
  Fabric fabric_;
  double flops_ = 0;         ///< of one device, that large matrices reach
  double read_rate_ = 0;     ///< bytes/s, weights
  double weight_bytes_ = 0;  ///< on one device
  double kv_token_bytes_ = 0;
  double cached_token_s_ = 0;
};

}  // namespace troupe::sim
