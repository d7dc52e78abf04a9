#include "actors/model/tensor_parallel_kernels.hpp"

#include "actors/model/simd.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

constexpr std::int64_t kLanes = simd::kLanes;
constexpr std::int64_t kSumBlock = 512;

struct BlockSums {
  float sum;
  float dot;
};

/// Σ e^d and Σ e^d·d of at most kSumBlock logits, eight partial sums in a fixed order.
TROUPE_INLINE BlockSums block_sums(std::int64_t count, const float* z, float largest, float scale) {
  float sums[kLanes] = {};
  float dots[kLanes] = {};
  for (std::int64_t i = 0; i < count; i += kLanes)
    for (std::int64_t k = 0; k < std::min(kLanes, count - i); ++k) {
      const float d = (z[i + k] - largest) * scale;
      const float e = simd::exp(d);
      sums[k] += e;
      dots[k] += e * d;
    }
  BlockSums out{};
  for (const float sum : sums) out.sum += sum;
  for (const float dot : dots) out.dot += dot;
  return out;
}

}  // namespace

TROUPE_SIMD_VERSIONS
void logit_parts(RowShape shape, const float* logits, const std::int64_t* targets,
                 float inverse_temperature, LogitPart* parts) {
  const auto scale = static_cast<double>(inverse_temperature);
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* z = logits + r * shape.width;
    float largest = z[0];
    for (std::int64_t i = 1; i < shape.width; ++i) largest = z[i] > largest ? z[i] : largest;
    LogitPart part{.largest = static_cast<double>(largest) * scale};
    for (std::int64_t begin = 0; begin < shape.width; begin += kSumBlock) {
      const BlockSums block = block_sums(std::min(kSumBlock, shape.width - begin), z + begin,
                                         largest, inverse_temperature);
      part.sum += static_cast<double>(block.sum);
      part.dot += static_cast<double>(block.dot);
    }
    if (targets[r] >= 0) part.target = static_cast<double>(z[targets[r]]) * scale;
    parts[r] = part;
  }
}

void merge_log_prob_rows(std::span<const LogitPart> parts, std::int64_t rows,
                         const LogProbRows& out) {
  const auto count = static_cast<std::size_t>(rows);
  const std::size_t ranks = count == 0 ? 0 : parts.size() / count;
  for (std::size_t row = 0; row < count; ++row) {
    double largest = parts[row].largest;
    for (std::size_t k = 1; k < ranks; ++k)
      largest = std::max(largest, parts[k * count + row].largest);
    double sum = 0;
    double dot = 0;
    double target = 0;
    for (std::size_t k = 0; k < ranks; ++k) {
      const LogitPart& part = parts[k * count + row];
      const double shift = part.largest - largest;
      const double weight = std::exp(shift);
      sum += weight * part.sum;
      dot += weight * (part.dot + shift * part.sum);
      target += part.target;
    }
    const double log_sum = std::log(sum);
    out.log_prob[row] = static_cast<float>(target - largest - log_sum);
    out.entropy[row] = static_cast<float>(log_sum - dot / sum);
    out.log_sum_exp[row] = static_cast<float>(largest + log_sum);
  }
}

}  // namespace troupe::actors
