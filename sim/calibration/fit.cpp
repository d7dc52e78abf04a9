#include "sim/calibration/fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

namespace troupe::sim {
namespace {

/// Half of the range, in units of the range.
constexpr double kPriorWidth = 0.5;

double place_of(const ConstantInfo& info, double value) {
  if (info.low > 0) return std::log(value / info.low) / std::log(info.high / info.low);
  return (value - info.low) / (info.high - info.low);
}

double value_at(const ConstantInfo& info, double place) {
  const double value = info.low > 0 ? info.low * std::pow(info.high / info.low, place)
                                    : info.low + place * (info.high - info.low);
  return std::clamp(value, info.low, info.high);
}

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

/// Inverse of a symmetric positive definite matrix, by Gauss-Jordan; a few rows.
Matrix inverse(Matrix a) {
  const std::size_t n = a.size();
  Matrix out(n, Vector(n, 0));
  for (std::size_t i = 0; i < n; ++i) out[i][i] = 1;
  for (std::size_t column = 0; column < n; ++column) {
    const double pivot = a[column][column];
    for (std::size_t j = 0; j < n; ++j) {
      a[column][j] /= pivot;
      out[column][j] /= pivot;
    }
    for (std::size_t row = 0; row < n; ++row) {
      if (row == column) continue;
      const double factor = a[row][column];
      for (std::size_t j = 0; j < n; ++j) {
        a[row][j] -= factor * a[column][j];
        out[row][j] -= factor * out[column][j];
      }
    }
  }
  return out;
}

class Fit {
 public:
  Fit(std::span<const Observation> observations, std::span<const Constant> constants,
      const Constants& start, const FitOptions& options)
      : observations_(observations), constants_(constants), start_(start), options_(options) {
    for (const Constant constant : constants)
      prior_.push_back(place_of(info_of(constant), start[constant]));
  }

  result<FittedConstants> run() {
    Vector place = prior_;
    TROUPE_TRY(const Vector first, predict(place));
    Vector predicted = first;
    double loss = loss_of(place, predicted);
    double damping = 1e-3;
    int round = 0;
    for (; round < options_.rounds_max; ++round) {
      TROUPE_TRY(const Matrix slopes, slopes_at(place, predicted));
      bool better = false;
      double gained = 0;
      for (int attempt = 0; attempt < 8 && !better; ++attempt) {
        const Vector next = step(place, predicted, slopes, damping);
        TROUPE_TRY(Vector there, predict(next));
        const double reached = loss_of(next, there);
        better = reached < loss;
        damping = better ? damping / 4 : damping * 6;
        if (!better) continue;
        gained = loss - reached;
        place = next;
        predicted = std::move(there);
        loss = reached;
      }
      if (!better || gained < 1e-10 * (1 + loss)) break;
    }
    TROUPE_TRY(const Matrix slopes, slopes_at(place, predicted));
    return result_of(place, first, predicted, slopes, round);
  }

 private:
  result<Constants> constants_at(const Vector& place) const {
    Constants constants = start_;
    for (std::size_t i = 0; i < constants_.size(); ++i) {
      TROUPE_TRY_VOID(constants.set(constants_[i], value_at(info_of(constants_[i]), place[i])));
    }
    return constants;
  }

  /// ln of what the models say.
  result<Vector> predict(const Vector& place) const {
    TROUPE_TRY(const Constants constants, constants_at(place));
    Vector logs;
    for (const Observation& observation : observations_) {
      result<double> seconds = observation.predict(constants);
      if (!seconds)
        return fail(Error(seconds.error()).wrap(seconds.error().code, observation.name));
      if (!(*seconds > 0) || !std::isfinite(*seconds))
        return fail(ErrorCode::kInvalidArgument, "{}: predicted {} s, wanted a positive number",
                    observation.name, *seconds);
      logs.push_back(std::log(*seconds));
    }
    return logs;
  }

  double loss_of(const Vector& place, const Vector& predicted) const {
    double sum = 0;
    for (std::size_t i = 0; i < observations_.size(); ++i) sum += std::pow(off(i, predicted), 2);
    for (std::size_t i = 0; i < place.size(); ++i)
      sum += std::pow((place[i] - prior_[i]) / kPriorWidth, 2);
    return sum;
  }
  /// How far an observation is off, in units of its noise.
  double off(std::size_t i, const Vector& predicted) const {
    return (predicted[i] - std::log(observations_[i].measured_s)) / observations_[i].noise;
  }

  /// [observations, constants]: change of `off` with a constant's place.
  result<Matrix> slopes_at(const Vector& place, const Vector& predicted) const {
    Matrix slopes(observations_.size(), Vector(place.size(), 0));
    for (std::size_t k = 0; k < place.size(); ++k) {
      Vector moved = place;
      const double by = place[k] + options_.step <= 1 ? options_.step : -options_.step;
      moved[k] += by;
      TROUPE_TRY(const Vector there, predict(moved));
      for (std::size_t i = 0; i < observations_.size(); ++i)
        slopes[i][k] = (there[i] - predicted[i]) / by / observations_[i].noise;
    }
    return slopes;
  }

  Matrix information(const Matrix& slopes) const {
    const std::size_t n = constants_.size();
    Matrix a(n, Vector(n, 0));
    for (std::size_t k = 0; k < n; ++k) {
      for (std::size_t l = 0; l < n; ++l)
        for (const Vector& row : slopes) a[k][l] += row[k] * row[l];
      a[k][k] += 1 / (kPriorWidth * kPriorWidth);
    }
    return a;
  }

  Vector step(const Vector& place, const Vector& predicted, const Matrix& slopes,
              double damping) const {
    Matrix a = information(slopes);
    for (std::size_t k = 0; k < a.size(); ++k) a[k][k] *= 1 + damping;
    const Matrix solved = inverse(std::move(a));
    Vector down(place.size(), 0);
    for (std::size_t k = 0; k < place.size(); ++k) {
      down[k] = -(place[k] - prior_[k]) / (kPriorWidth * kPriorWidth);
      for (std::size_t i = 0; i < slopes.size(); ++i) down[k] -= slopes[i][k] * off(i, predicted);
    }
    Vector next = place;
    for (std::size_t k = 0; k < place.size(); ++k) {
      for (std::size_t l = 0; l < place.size(); ++l) next[k] += solved[k][l] * down[l];
      next[k] = std::clamp(next[k], 0.0, 1.0);
    }
    return next;
  }

  result<FittedConstants> result_of(const Vector& place, const Vector& first,
                                    const Vector& predicted, const Matrix& slopes,
                                    int rounds) const {
    FittedConstants fitted;
    TROUPE_TRY(fitted.constants, constants_at(place));
    fitted.rounds = rounds;
    const Matrix spread = inverse(information(slopes));
    for (std::size_t k = 0; k < place.size(); ++k) {
      const double width = std::sqrt(spread[k][k]);
      fitted.fitted.push_back({.constant = constants_[k],
                               .prior = start_[constants_[k]],
                               .value = fitted.constants[constants_[k]],
                               .width = width,
                               .identified = width <= kPriorWidth / 2,
                               .at_bound = place[k] <= 0 || place[k] >= 1});
    }
    for (std::size_t i = 0; i < observations_.size(); ++i)
      fitted.residuals.push_back({.name = observations_[i].name,
                                  .measured_s = observations_[i].measured_s,
                                  .before_s = std::exp(first[i]),
                                  .predicted_s = std::exp(predicted[i])});
    return fitted;
  }

  std::span<const Observation> observations_;
  std::span<const Constant> constants_;
  const Constants start_;
  const FitOptions options_;
  Vector prior_;
};

result<void> check(std::span<const Observation> observations, std::span<const Constant> constants,
                   const FitOptions& options) {
  if (observations.empty() || constants.empty() || constants.size() > options.constants_max)
    return fail(ErrorCode::kInvalidArgument,
                "fit: {} observations, {} constants; wanted at least 1, and 1 to {}",
                observations.size(), constants.size(), options.constants_max);
  if (std::set<Constant>(constants.begin(), constants.end()).size() != constants.size())
    return fail(ErrorCode::kInvalidArgument, "fit: a constant is named twice");
  for (const Observation& one : observations) {
    if (!(one.measured_s > 0) || !std::isfinite(one.measured_s) || !(one.noise > 0))
      return fail(ErrorCode::kInvalidArgument,
                  "fit: {} measured {} s with noise {}, wanted positive numbers", one.name,
                  one.measured_s, one.noise);
  }
  return {};
}

}  // namespace

double FitResidual::error() const { return predicted_s / measured_s - 1; }

double FittedConstants::median_error() const {
  std::vector<double> errors;
  for (const FitResidual& one : residuals) errors.push_back(std::abs(one.error()));
  if (errors.empty()) return 0;
  std::sort(errors.begin(), errors.end());
  const std::size_t half = errors.size() / 2;
  return errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2;
}

double FittedConstants::worst_error() const {
  double worst = 0;
  for (const FitResidual& one : residuals) worst = std::max(worst, std::abs(one.error()));
  return worst;
}

std::string FittedConstants::to_text() const {
  std::string text =
      fmt::format("{:<24} {:>12} {:>12} {:>8}\n", "constant", "before", "fitted", "width");
  for (const FittedConstant& one : fitted) {
    fmt::format_to(std::back_inserter(text), "{:<24} {:>12.4g} {:>12.4g} {:>7.0f}%{}{}\n",
                   info_of(one.constant).name, one.prior, one.value, 100 * one.width,
                   one.identified ? "" : "  not identified", one.at_bound ? "  at its bound" : "");
  }
  fmt::format_to(std::back_inserter(text), "\n{:<24} {:>12} {:>12} {:>12} {:>8}\n", "time",
                 "measured s", "before s", "fitted s", "error");
  for (const FitResidual& one : residuals)
    fmt::format_to(std::back_inserter(text), "{:<24} {:>12.4g} {:>12.4g} {:>12.4g} {:>+7.1f}%\n",
                   one.name, one.measured_s, one.before_s, one.predicted_s, 100 * one.error());
  return text;
}

result<FittedConstants> fit(std::span<const Observation> observations,
                            std::span<const Constant> constants, const Constants& start,
                            const FitOptions& options) {
  TROUPE_TRY_VOID(check(observations, constants, options));
  return Fit(observations, constants, start, options).run();
}

}  // namespace troupe::sim
