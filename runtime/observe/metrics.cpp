#include "runtime/observe/metrics.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr double kBucketRatio = 1.05;
/// Bucket keys of positive values are their log-scale index moved up by this, so that all are > 0
/// (the smallest double is 1.05^-15258); those of negative values are the same, negated.
constexpr std::int32_t kBucketShift = 15'300;

std::int32_t bucket_key(double value) {
  if (value == 0) return 0;
  const double index = std::floor(std::log(std::abs(value)) / std::log(kBucketRatio));
  const auto key = static_cast<std::int32_t>(index) + kBucketShift;
  return value > 0 ? key : -key;
}

/// Geometric middle of a bucket: at most 2.5 % from everything in it.
double bucket_middle(std::int32_t key) {
  if (key == 0) return 0;
  const double index = std::abs(key) - kBucketShift + 0.5;
  const double middle = std::exp(index * std::log(kBucketRatio));
  return std::copysign(std::min(middle, std::numeric_limits<double>::max()), key);
}

double smaller(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return b < a ? b : a;
}

double larger(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return b > a ? b : a;
}

bool same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

std::string_view reduction_name(Reduction reduction) {
  constexpr std::array<std::string_view, 6> kNames{"mean", "sum",  "min",
                                                   "max",  "last", "histogram"};
  return kNames[static_cast<std::size_t>(reduction)];
}

void Histogram::add(double value, double weight) {
  if (std::isfinite(value))
    buckets[bucket_key(value)] += weight;
  else
    non_finite_weight += weight;
}

void Histogram::merge(const Histogram& other) {
  for (const auto& [key, weight] : other.buckets) buckets[key] += weight;
  non_finite_weight += other.non_finite_weight;
}

std::optional<double> Histogram::quantile(double q) const {
  double total = 0;
  for (const auto& [key, weight] : buckets) total += weight;
  if (!(total > 0)) return std::nullopt;
  const double wanted = std::min(1.0, std::max(0.0, q)) * total;
  double below = 0;
  std::int32_t last = 0;
  for (const auto& [key, weight] : buckets) {
    if (weight > 0) last = key;
    below += weight;
    if (below >= wanted && weight > 0) return bucket_middle(key);
  }
  return bucket_middle(last);
}

std::optional<double> MetricEntry::value() const {
  if (count == 0) return std::nullopt;
  switch (reduction) {
    case Reduction::kSum:
      return weighted_sum;
    case Reduction::kMin:
      return min;
    case Reduction::kMax:
      return max;
    case Reduction::kLast:
      return last;
    case Reduction::kMean:
    case Reduction::kHistogram:
      break;
  }
  const double counted =
      reduction == Reduction::kHistogram ? weight - histogram.non_finite_weight : weight;
  if (!(counted > 0)) return std::nullopt;
  return weighted_sum / counted;
}

bool MetricEntry::operator==(const MetricEntry& other) const {
  return reduction == other.reduction && same_number(weight, other.weight) &&
         same_number(weighted_sum, other.weighted_sum) && same_number(min, other.min) &&
         same_number(max, other.max) && same_number(last, other.last) && count == other.count &&
         histogram == other.histogram;
}

void Metrics::add(std::string_view name, double value, Reduction reduction, double weight) {
  TROUPE_CHECK(std::isfinite(weight) && weight >= 0, "metric {}: weight {}, wanted finite and ≥ 0",
               name, weight);
  auto place = entries_.find(name);
  if (place == entries_.end()) {
    place = entries_.emplace(std::string(name), MetricEntry{}).first;
    place->second.reduction = reduction;
  }
  MetricEntry& entry = place->second;
  TROUPE_CHECK(entry.reduction == reduction, "metric {}: added as {}, before as {}", name,
               reduction_name(reduction), reduction_name(entry.reduction));
  const bool counts = reduction != Reduction::kHistogram || std::isfinite(value);
  entry.weight += weight;
  // A weight of zero stands for nothing, so not even a NaN of it may count.
  if (counts && weight > 0) entry.weighted_sum += value * weight;
  entry.min = entry.count == 0 ? value : smaller(entry.min, value);
  entry.max = entry.count == 0 ? value : larger(entry.max, value);
  entry.last = value;
  ++entry.count;
  if (reduction == Reduction::kHistogram && weight > 0) entry.histogram.add(value, weight);
}

result<void> Metrics::merge(const Metrics& other) {
  for (const auto& [name, entry] : other.entries_) {
    const auto place = entries_.find(name);
    if (place != entries_.end() && place->second.reduction != entry.reduction)
      return fail(ErrorCode::kConflict, "metric {}: reduction {} against {}", name,
                  reduction_name(place->second.reduction), reduction_name(entry.reduction));
  }
  for (const auto& [name, entry] : other.entries_) {
    const auto [place, added] = entries_.emplace(name, entry);
    if (added || entry.count == 0) continue;
    MetricEntry& mine = place->second;
    mine.weight += entry.weight;
    mine.weighted_sum += entry.weighted_sum;
    mine.min = mine.count == 0 ? entry.min : smaller(mine.min, entry.min);
    mine.max = mine.count == 0 ? entry.max : larger(mine.max, entry.max);
    mine.last = entry.last;
    mine.count += entry.count;
    mine.histogram.merge(entry.histogram);
  }
  return {};
}

std::optional<double> Metrics::value(std::string_view name) const {
  const MetricEntry* entry = find(name);
  return entry == nullptr ? std::nullopt : entry->value();
}

const MetricEntry* Metrics::find(std::string_view name) const {
  const auto place = entries_.find(name);
  return place == entries_.end() ? nullptr : &place->second;
}

void Metrics::put(std::string name, MetricEntry entry) {
  entries_.insert_or_assign(std::move(name), std::move(entry));
}

}  // namespace troupe::runtime
