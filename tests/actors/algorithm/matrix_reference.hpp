#pragma once

// The slow oracle: the batch as padded matrices [B][W] of double with a mask, and every formula
// written out plainly over them, from the papers, with no code shared with actors/algorithm.
//
// **Threads:** one test.

#include "tests/actors/algorithm/case.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace troupe::actors::test {

using Matrix = std::vector<std::vector<double>>;

struct MaskedMatrix {
  Matrix value;
  std::vector<std::vector<bool>> mask;
};

/// Unpacks a column; slots that are masked or beyond the sequence hold 1e30, so that a formula
/// that reads one is far off.
inline MaskedMatrix unpack(const Case& data, const std::vector<float>& column) {
  std::size_t width = 0;
  for (std::size_t s = 0; s < data.sequences(); ++s)
    width = std::max(width, static_cast<std::size_t>(data.offsets[s + 1] - data.offsets[s]));
  MaskedMatrix matrix{.value = Matrix(data.sequences(), std::vector<double>(width, 1e30)),
                      .mask = std::vector<std::vector<bool>>(data.sequences(),
                                                             std::vector<bool>(width, false))};
  for (std::size_t b = 0; b < data.sequences(); ++b) {
    const auto first = static_cast<std::size_t>(data.offsets[b]);
    const auto length = static_cast<std::size_t>(data.offsets[b + 1]) - first;
    for (std::size_t j = 0; j < length; ++j) {
      if (data.mask[first + j] == 0) continue;
      matrix.value[b][j] = column[first + j];
      matrix.mask[b][j] = true;
    }
  }
  return matrix;
}

/// Packs a matrix back: f64 [T], 0 where masked.
inline std::vector<double> repack(const Case& data, const Matrix& matrix) {
  std::vector<double> packed(data.tokens(), 0.0);
  for (std::size_t b = 0; b < data.sequences(); ++b) {
    const auto first = static_cast<std::size_t>(data.offsets[b]);
    for (std::size_t j = 0; first + j < static_cast<std::size_t>(data.offsets[b + 1]); ++j)
      if (data.mask[first + j] != 0) packed[first + j] = matrix[b][j];
  }
  return packed;
}

inline Matrix zeros_like(const MaskedMatrix& like) {
  return Matrix(like.value.size(),
                std::vector<double>(like.value.empty() ? 0 : like.value[0].size(), 0.0));
}

/// verl's agg_loss in matrix form.
inline double aggregate_matrix(const Matrix& loss, const std::vector<std::vector<bool>>& mask,
                               LossAggregation mode, double scale_factor = 7) {
  double tokens = 0;
  double sequences = 0;
  double total = 0;
  double of_means = 0;
  for (std::size_t b = 0; b < loss.size(); ++b) {
    double row = 0;
    double length = 0;
    for (std::size_t j = 0; j < loss[b].size(); ++j) {
      if (!mask[b][j]) continue;
      row += loss[b][j];
      length += 1;
    }
    if (length == 0) continue;
    tokens += length;
    sequences += 1;
    total += row;
    of_means += row / length;
  }
  if (tokens == 0) return 0;
  switch (mode) {
    case LossAggregation::kTokenMean: return total / tokens;
    case LossAggregation::kTokenSum: return total;
    case LossAggregation::kSeqMeanTokenSum: return total / sequences;
    case LossAggregation::kSeqMeanTokenSumNorm: return total / sequences / scale_factor;
    case LossAggregation::kSeqMeanTokenMean: return of_means / sequences;
  }
  return 0;
}

/// Masked rows' mean of a function of (row, column).
inline double row_mean(const std::vector<bool>& mask, const std::function<double(std::size_t)>& f) {
  double sum = 0;
  double count = 0;
  for (std::size_t j = 0; j < mask.size(); ++j)
    if (mask[j]) {
      sum += f(j);
      count += 1;
    }
  return count > 0 ? sum / count : 0;
}

}  // namespace troupe::actors::test
