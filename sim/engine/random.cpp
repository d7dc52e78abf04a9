#include "sim/engine/random.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <array>
#include <cmath>
#include <numbers>

namespace troupe::sim {
namespace {

/// Coefficients of a ratio of polynomials, constant term first.
struct Ratio {
  std::array<double, 8> top;
  std::array<double, 8> bottom;
  double at(double x) const {
    double upper = 0;
    double lower = 0;
    for (std::size_t i = top.size(); i-- > 0;) {
      upper = upper * x + top[i];
      lower = lower * x + bottom[i];
    }
    return upper / lower;
  }
};

// Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied
// Statistics 37 (1988), PPND16: one ratio for the middle, two for the tails.
constexpr Ratio kMiddle{{3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                         1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                         3.3430575583588128105e4, 2.5090809287301226727e3},
                        {1.0, 4.2313330701600911252e1, 6.8718700749205790830e2,
                         5.3941960214247511077e3, 2.1213794301586595867e4, 3.9307895800092710610e4,
                         2.8729085735721942674e4, 5.2264952788528545610e3}};
constexpr Ratio kTail{
    {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
     3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4},
    {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
     1.05075007164441684324e-9}};
constexpr Ratio kFarTail{
    {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7},
    {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15}};

}  // namespace

double uniform(const DrawKey& key) {
  const std::uint64_t stream =
      mix_seed(mix_seed(key.seed, key.entity), static_cast<std::uint64_t>(key.purpose));
  const PhiloxBlock block = philox(
      {static_cast<std::uint32_t>(key.index), static_cast<std::uint32_t>(key.index >> 32), 0, 0},
      stream);
  const std::uint64_t bits = (static_cast<std::uint64_t>(block[0]) << 21) ^ (block[1] >> 11);
  return (static_cast<double>(bits & ((std::uint64_t{1} << 53) - 1)) + 0.5) * 0x1p-53;
}

double normal(const DrawKey& key) { return normal_quantile(uniform(key)); }
double exponential(const DrawKey& key) { return -std::log(uniform(key)); }

double normal_quantile(double p) {
  TROUPE_CHECK(p > 0 && p < 1, "normal quantile of {}, wanted a number in (0, 1)", p);
  const double centred = p - 0.5;
  if (std::abs(centred) <= 0.425) return centred * kMiddle.at(0.180625 - centred * centred);
  const double r = std::sqrt(-std::log(centred < 0 ? p : 1 - p));
  const double far = r <= 5 ? kTail.at(r - 1.6) : kFarTail.at(r - 5);
  return centred < 0 ? -far : far;
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

}  // namespace troupe::sim
