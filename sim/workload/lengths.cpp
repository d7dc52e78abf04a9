#include "sim/workload/lengths.hpp"

#include "sim/engine/random.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

namespace troupe::sim {
namespace {

struct Quantile {
  double p;
  double tokens_max;
  double operator()(const LogNormalLength& shape) const {
    return shape.median * std::exp(shape.sigma * normal_quantile(p));
  }
  double operator()(const WeibullLength& shape) const {
    return shape.scale * std::pow(-std::log1p(-p), 1 / shape.shape);
  }
  double operator()(const MixtureLength& shape) const {
    const double answers = 1 - shape.overlong_share;
    if (p >= answers) return tokens_max;
    return Quantile{p / answers, tokens_max}(shape.answer);
  }
  double operator()(const EmpiricalLength& shape) const {
    const auto n = static_cast<double>(shape.sorted.size());
    const double place = std::clamp(p * n - 0.5, 0.0, n - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, shape.sorted.size() - 1);
    const double rest = place - static_cast<double>(below);
    return shape.sorted[below] * (1 - rest) + shape.sorted[above] * rest;
  }
  double operator()(const FixedLength& shape) const { return static_cast<double>(shape.tokens); }
};

struct Check {
  result<void> refuse(const char* field, double value, const char* wanted) const {
    return fail(ErrorCode::kInvalidArgument, "lengths: {} is {}, wanted {}", field, value, wanted);
  }
  result<void> operator()(const LogNormalLength& shape) const {
    if (!(shape.median > 0)) return refuse("median", shape.median, "a positive number");
    if (!(shape.sigma >= 0 && shape.sigma < 10)) return refuse("sigma", shape.sigma, "0 to 10");
    return {};
  }
  result<void> operator()(const WeibullLength& shape) const {
    if (!(shape.scale > 0)) return refuse("scale", shape.scale, "a positive number");
    if (!(shape.shape > 0)) return refuse("shape", shape.shape, "a positive number");
    return {};
  }
  result<void> operator()(const MixtureLength& shape) const {
    if (!(shape.overlong_share >= 0 && shape.overlong_share < 1))
      return refuse("overlong_share", shape.overlong_share, "0 to below 1");
    return (*this)(shape.answer);
  }
  result<void> operator()(const EmpiricalLength& shape) const {
    if (shape.sorted.empty()) return refuse("number of lengths", 0, "at least 1");
    if (!std::is_sorted(shape.sorted.begin(), shape.sorted.end()) || !(shape.sorted.front() > 0))
      return refuse("least length", shape.sorted.front(), "a positive number, lengths rising");
    return {};
  }
  result<void> operator()(const FixedLength& shape) const {
    if (shape.tokens < 1) return refuse("tokens", static_cast<double>(shape.tokens), "at least 1");
    return {};
  }
};

}  // namespace

result<void> LengthOptions::check() const {
  const Check checks;
  if (tokens_max < 1)
    return checks.refuse("tokens_max", static_cast<double>(tokens_max), "at least 1");
  if (!(group_share >= 0 && group_share <= 1))
    return checks.refuse("group_share", group_share, "0 to 1");
  if (!std::isfinite(drift_per_step))
    return checks.refuse("drift_per_step", drift_per_step, "a number");
  if (!(drift_factor_max >= 1))
    return checks.refuse("drift_factor_max", drift_factor_max, "at least 1");
  return std::visit(checks, shape);
}

result<LengthModel> LengthModel::create(const LengthOptions& options) {
  TROUPE_TRY_VOID(options.check());
  return LengthModel(options);
}

double LengthModel::quantile(double p) const {
  return std::visit(Quantile{p, static_cast<double>(options_.tokens_max)}, options_.shape);
}

std::int64_t LengthModel::draw(std::uint64_t seed, std::int64_t step, std::uint64_t prompt,
                               std::uint32_t sample) const {
  // A prompt that comes again in a later step has the same group effect, and new samples.
  const double group = normal({seed, prompt, Purpose::kGroupLength, 0});
  const double own = normal(
      {seed, prompt, Purpose::kSampleLength, (static_cast<std::uint64_t>(step) << 32) | sample});
  const double z =
      std::sqrt(options_.group_share) * group + std::sqrt(1 - options_.group_share) * own;
  const double p = std::clamp(normal_cdf(z), 1e-15, 1 - 1e-15);
  const double drift = std::clamp(std::exp(options_.drift_per_step * static_cast<double>(step)),
                                  1 / options_.drift_factor_max, options_.drift_factor_max);
  const double tokens = std::round(quantile(p) * drift);
  return static_cast<std::int64_t>(
      std::clamp(tokens, 1.0, static_cast<double>(options_.tokens_max)));
}

double LengthModel::mean() const {
  const int points = 20'000;
  double sum = 0;
  for (int i = 0; i < points; ++i)
    sum += std::clamp(quantile((i + 0.5) / points), 1.0, static_cast<double>(options_.tokens_max));
  return sum / points;
}

result<LogNormalLength> log_normal_with_mean(double mean, double sigma, std::int64_t tokens_max) {
  const auto most = static_cast<double>(tokens_max);
  if (!(mean > 1 && mean < most) || !(sigma > 0))
    return fail(ErrorCode::kInvalidArgument,
                "lengths: no log-normal with mean {}, sigma {} and at most {} tokens", mean, sigma,
                tokens_max);
  double low = 1e-3;
  double high = most * 1e6;
  for (int i = 0; i < 200; ++i) {
    const double median = std::sqrt(low * high);
    // Mean of min(X, most): its parts below and above the bound.
    const double z = std::log(most / median) / sigma;
    const double below = median * std::exp(sigma * sigma / 2) * normal_cdf(z - sigma);
    (below + most * normal_cdf(-z) < mean ? low : high) = median;
  }
  return LogNormalLength{.median = low, .sigma = sigma};
}

result<EmpiricalLength> parse_lengths(std::string_view text, const std::string& source) {
  EmpiricalLength lengths;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    const std::string word = line.substr(begin, line.find_first_of(", \t\r", begin) - begin);
    double value = 0;
    const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (failed != std::errc() || end != word.data() + word.size() || !(value >= 1) ||
        !std::isfinite(value)) {
      if (number == 1) continue;  // a heading
      return fail(ErrorCode::kCorrupt, "{}:{}: {} is no length, wanted a number from 1", source,
                  number, word);
    }
    lengths.sorted.push_back(value);
  }
  if (lengths.sorted.empty()) return fail(ErrorCode::kCorrupt, "{}: no lengths in it", source);
  std::sort(lengths.sorted.begin(), lengths.sorted.end());
  return lengths;
}

result<EmpiricalLength> read_lengths(const std::string& file) {
  std::ifstream in(file);
  if (!in) return fail(ErrorCode::kNotFound, "{}: cannot read the file of lengths", file);
  std::ostringstream text;
  text << in.rdbuf();
  return parse_lengths(text.str(), file);
}

}  // namespace troupe::sim
