#pragma once

// Rotary position embedding: the inverse frequencies, with scaling. Torch-free, in double.
//
// **Threads:** pure functions.
// **Invariants:** weights are in Hugging Face's half-split layout: dimension i of a head turns with
// dimension i + D/2, by the angle position · frequency[i].

#include "actors/model/model_config.hpp"

#include <vector>

namespace troupe::actors {

/// Angles per position, [D/2]: theta^(-2i/D), then scaled as `config.rope.kind` says.
/// kLinear divides by the factor. kLlama3 keeps short waves, divides long ones and blends between
/// (Llama 3.1 model code: apply_scaling; with wavelength w = 2π/f and original length P: w < P/high
/// keeps f, w > P/low gives f/factor, else s = (P/w − low)/(high − low), (1−s)·f/factor + s·f).
std::vector<double> rope_inverse_frequencies(const ModelConfig& config);

/// Interleaved rows (Meta, llama2.c: pairs 2i, 2i+1) to half-split ones. `permutation[new] = old`
/// over the D rows of one head; apply it to the rows of q and k weights, biases and qk-norms.
std::vector<std::int64_t> half_split_permutation(std::int64_t head_dim);

}  // namespace troupe::actors
