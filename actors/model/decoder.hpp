#pragma once

// The decoder of the Llama, Qwen2, Qwen3 and SmolLM2 families, for training, in f32 on the CPU.
//
// Takes packed sequences (no padding anywhere): tokens laid end to end and where each sequence
// begins. Attention is causal inside a sequence and blind between them, but for its prefix;
// positions restart. A rank of a parallel engine holds a `DecoderPart`: some of the layers, boxes
// of the tensors.
// **Ownership:** owns weights and gradients (FlatParameters) and the rotary table. Tensors it
// returns keep their autograd graph alive; the decoder must outlive backward.
// **Threads:** one thread at a time. **Invariants:** a token's hidden state depends only on the
// tokens of its sequence up to it; other packing changes it by GEMM rounding only (~1e-6).
// **Cost:** one multiply-add per weight and token forward, two more backward; see bench/train.

#include "actors/model/decoder_layer.hpp"
#include "actors/model/decoder_part.hpp"
#include "actors/model/flat_parameters.hpp"
#include "actors/model/model_config.hpp"
#include "actors/model/token_log_prob.hpp"
#include "actors/model/token_log_prob_cut.hpp"
#include "runtime/base/result.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troupe::actors {

struct DecoderOptions {
  bool trainable = true;    ///< weights require gradients
  bool value_head = false;  ///< a critic: `value_head.weight` [1, H] instead of the lm head
  bool recompute = false;   ///< activation recompute, see decoder_layer_recomputed
  DecoderPart part = {};    ///< what of the model this is
  const ParameterShards* shards = nullptr;  ///< how its parameters are cut; outlives the decoder
};

/// One micro-batch.
struct DecoderInput {
  std::span<const std::int32_t> tokens;   ///< [T] in [0, V)
  std::span<const std::int64_t> offsets;  ///< [S+1]
  std::span<const std::int64_t> rows;     ///< [R] token positions whose hidden state is wanted
  /// [S], or empty: the sequence that each goes on from, see AttentionInputs.
  std::span<const std::int64_t> prefixes = {};
};

class Decoder {
 public:
  /// Copies its part of `weights`, which are whole, by canonical name; more names than needed are
  /// fine. A missing `value_head.weight` starts at zero. Errors: kNotFound, kInvalidArgument naming
  /// the tensor.
  static result<std::unique_ptr<Decoder>> create(const ModelConfig& config,
                                                 std::span<const NamedTensor> weights,
                                                 const DecoderOptions& options);

  /// Hidden states after the final norm, [R, H], of the rows asked for. For a decoder that has all
  /// layers in one run.
  at::Tensor hidden(const DecoderInput& input);
  /// Run number `index` of the part: x [T, H], what the run before gave, or undefined for the run
  /// that begins with the embedding → [T, H], or hidden states [R, H] of the model's last run.
  at::Tensor run(std::size_t index, const DecoderInput& input, const at::Tensor& x);
  /// hidden [R, H] → logits [R, V]; for tests and few rows. CHECKs that this is no critic and that
  /// the head is whole.
  at::Tensor logits(const at::Tensor& hidden);
  /// hidden [R, H], targets [R] i64. `processed`, if any: log-probs are of the distribution that it
  /// makes (processed_log_prob); entropies stay those of the whole one.
  TokenLogProb log_probs(const at::Tensor& hidden, const at::Tensor& targets,
                         const TokenLogProbOptions& options,
                         const SamplingTransform* processed = nullptr);
  /// hidden [R, H] → values [R]. CHECKs that this is a critic.
  at::Tensor values(const at::Tensor& hidden);

  /// Copies its part of whole weights in by name; all or nothing.
  result<void> set_weights(std::span<const NamedTensor> weights);

  FlatParameters& parameters() { return parameters_; }
  const FlatParameters& parameters() const { return parameters_; }
  const ModelConfig& config() const { return config_; }
  const DecoderOptions& options() const { return options_; }

 private:
  Decoder(const ModelConfig& config, const DecoderOptions& options);
  at::Tensor embed(const DecoderInput& input);  // [T, H]
  IndexRange vocabulary() const;                // rows of the embedding and head that are here

  ModelConfig config_;
  DecoderOptions options_;
  PartUnits units_;
  FlatParameters parameters_;
  LayerContext context_;  // fixed after construction; autograd nodes point to it
  std::vector<double> frequencies_;
  RotaryTable rotary_;
};

}  // namespace troupe::actors
