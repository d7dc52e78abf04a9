#include "actors/model/rope.hpp"

#include <cmath>
#include <numbers>

namespace troupe::actors {
namespace {

double llama3_frequency(double frequency, const RopeConfig& rope) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < rope.original_positions / rope.high_freq_factor) return frequency;
  if (wavelength > rope.original_positions / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (rope.original_positions / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rope_inverse_frequencies(const ModelConfig& config) {
  const std::int64_t half = config.head_dim / 2;
  std::vector<double> frequencies(static_cast<std::size_t>(half));
  for (std::int64_t i = 0; i < half; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    const double frequency = std::pow(config.rope.theta, -exponent);
    double& scaled = frequencies[static_cast<std::size_t>(i)];
    switch (config.rope.kind) {
      case RopeKind::kDefault:
        scaled = frequency;
        break;
      case RopeKind::kLinear:
        scaled = frequency / config.rope.factor;
        break;
      case RopeKind::kLlama3:
        scaled = llama3_frequency(frequency, config.rope);
        break;
    }
  }
  return frequencies;
}

std::vector<std::int64_t> half_split_permutation(std::int64_t head_dim) {
  std::vector<std::int64_t> old_row(static_cast<std::size_t>(head_dim));
  for (std::int64_t i = 0; i < head_dim / 2; ++i)
    for (std::int64_t p = 0; p < 2; ++p)
      old_row[static_cast<std::size_t>(p * head_dim / 2 + i)] = 2 * i + p;
  return old_row;
}

}  // namespace troupe::actors
