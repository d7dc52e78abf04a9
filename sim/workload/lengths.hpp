#pragma once

// How long prompts and answers are: distributions whose draws are keyed by prompt and sample.
//
// Answers of one group are correlated (Seer, arXiv 2511.14617, figure 4): a share `group_share` of
// the variance belongs to the prompt, the rest to the sample. Through normal scores that holds for
// every distribution: z = √share·z_group + √(1−share)·z_sample, length = quantile(Φ(z)). Lengths
// may drift over training steps by a factor.
// **Threads:** immutable once made.
// **Invariants:** a draw is a pure function of (seed, step, prompt, sample); lengths lie in
// [1, max]; what is above max counts as max, as a cut answer does.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe::sim {

struct LogNormalLength {
  double median = 1000;
  double sigma = 0.8;  ///< of ln length
};
struct WeibullLength {
  double scale = 1000;
  double shape = 1.2;
};
/// With `overlong_share`, an answer is as long as allowed; else log-normal.
struct MixtureLength {
  LogNormalLength answer{};
  double overlong_share = 0.1;
};
/// Quantiles at (i + ½)/n of a sorted sample; between them linear.
struct EmpiricalLength {
  std::vector<double> sorted{};
};
struct FixedLength {
  std::int64_t tokens = 1024;
};
using LengthShape =
    std::variant<LogNormalLength, WeibullLength, MixtureLength, EmpiricalLength, FixedLength>;

struct LengthOptions {
  LengthShape shape = LogNormalLength{};
  std::int64_t tokens_max = 4096;
  double group_share = 0.5;      ///< of the variance, that a group has in common; 0 to 1
  double drift_per_step = 0;     ///< ln of the factor by which lengths grow each step
  double drift_factor_max = 10;  ///< bound on the drift, either way

  /// kInvalidArgument naming field and value.
  result<void> check() const;
};

class LengthModel {
 public:
  static result<LengthModel> create(const LengthOptions& options);

  /// Tokens of sample `sample` of the prompt `prompt` at training step `step`.
  std::int64_t draw(std::uint64_t seed, std::int64_t step, std::uint64_t prompt,
                    std::uint32_t sample) const;
  /// Length whose distribution function is p in (0, 1), before drift and the bound.
  double quantile(double p) const;
  /// Mean tokens with the bound and without drift, by quadrature.
  double mean() const;
  const LengthOptions& options() const { return options_; }

 private:
  explicit LengthModel(const LengthOptions& options) : options_(options) {}
  LengthOptions options_;
};

/// The log-normal with this σ, bound and (bounded) mean; kInvalidArgument when there is none.
result<LogNormalLength> log_normal_with_mean(double mean, double sigma, std::int64_t tokens_max);

/// One length a line, or the first column of a CSV; kNotFound, kCorrupt naming file and line.
result<EmpiricalLength> read_lengths(const std::string& file);
result<EmpiricalLength> parse_lengths(std::string_view text, const std::string& source);

}  // namespace troupe::sim
