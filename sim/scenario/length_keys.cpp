#include "sim/scenario/length_keys.hpp"

#include <optional>

namespace troupe::sim {

using runtime::Config;

namespace {

/// A number without which the shape says nothing.
result<double> number(const Config& config, const std::string& section, const char* name) {
  const std::string key = section + "." + name;
  const auto value = config.get_optional<double>(key);
  if (value) return *value;
  return config.refuse(key, "is missing; {}.shape = {} needs it", section,
                       config.get<std::string>(section + ".shape"));
}

result<LengthShape> shape_of(const Config& config, const std::string& section,
                             std::int64_t tokens_max) {
  const auto shape = config.get<std::string>(section + ".shape");
  if (shape == "fixed")
    return FixedLength{config.get_optional<std::int64_t>(section + ".tokens").value_or(tokens_max)};
  if (shape == "weibull") {
    WeibullLength weibull;
    TROUPE_TRY(weibull.scale, number(config, section, "scale"));
    TROUPE_TRY(weibull.shape, number(config, section, "weibull_shape"));
    return weibull;
  }
  if (shape == "empirical") {
    const auto file = config.get<std::string>(section + ".file");
    if (file.empty()) return config.refuse(section + ".file", "is missing; lengths come from it");
    auto lengths = read_lengths(file);
    if (!lengths) return config.refuse(section + ".file", "{}", lengths.error().message);
    return *std::move(lengths);
  }
  LogNormalLength answer;
  TROUPE_TRY(answer.median, number(config, section, "median"));
  TROUPE_TRY(answer.sigma, number(config, section, "sigma"));
  if (shape == "lognormal") return answer;
  return MixtureLength{.answer = answer,
                       .overlong_share = config.get<double>(section + ".overlong_share")};
}

}  // namespace

result<LengthOptions> length_options(const Config& config, const std::string& section,
                                     std::int64_t tokens_max, const std::string& bound) {
  if (config.get<std::string>(section + ".shape").empty())
    return config.refuse(section + ".shape",
                         "is missing, and decides what a step takes; write fixed, lognormal, "
                         "weibull, mixture or empirical");
  const auto fixed = config.get_optional<std::int64_t>(section + ".tokens");
  if (fixed && *fixed > tokens_max)
    return config.refuse(section + ".tokens", "is more than {} = {}; the nearest possible is {}",
                         bound, tokens_max, tokens_max);
  LengthOptions options;
  TROUPE_TRY(options.shape, shape_of(config, section, tokens_max));
  options.tokens_max = tokens_max;
  options.group_share = config.get<double>(section + ".group_share");
  options.drift_per_step = config.get<double>(section + ".drift_per_step");
  options.drift_factor_max = config.get<double>(section + ".drift_factor_max");
  if (auto fits = options.check(); !fits)
    return config.refuse(section + ".shape", "{}", fits.error().message);
  return options;
}

}  // namespace troupe::sim
