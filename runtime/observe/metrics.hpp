#pragma once

// Named measurements that know how they are joined, so nothing is guessed when the parts of a
// batch, or the ranks of a group, come together.
//
// A `Metrics` is a value: a rank fills one, it travels in a `Batch`, the controller merges them.
// **Threads:** a value type; one writer at a time.
// **Invariants:** a name has one reduction for its whole life; merging is associative, and all
// reductions but kLast are commutative (sums up to floating-point rounding).
// **Cost:** O(log names) an addition; a histogram holds at most kHistogramBucketsMax buckets.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::runtime {

enum class Reduction : std::uint8_t {
  kMean,  ///< weighted by the weights given to `add`
  kSum,   ///< sum of value × weight
  kMin,
  kMax,
  kLast,       ///< the latest added; in a merge the other side's
  kHistogram,  ///< distribution; its value is the weighted mean
};

/// Name as printed and stored, e.g. `mean`.
std::string_view reduction_name(Reduction reduction);

/// Weighted counts in buckets of 5 % relative width, plus exact extremes.
struct Histogram {
  std::map<std::int32_t, double> buckets;  ///< bucket key -> weight; sign and log-scale index
  double non_finite_weight = 0;            ///< NaN and infinities are counted here only

  void add(double value, double weight);
  void merge(const Histogram& other);
  /// Value below which a share `q` in [0, 1] of the finite weight lies, within 2.5 %.
  std::optional<double> quantile(double q) const;
  bool operator==(const Histogram&) const = default;
};

/// Distinct buckets that finite doubles can fall into: both signs, and zero.
inline constexpr std::int32_t kHistogramBucketsMax = 60'001;

/// One metric's accumulated state.
struct MetricEntry {
  Reduction reduction = Reduction::kMean;
  double weight = 0;        ///< total weight added
  double weighted_sum = 0;  ///< Σ value × weight, of the finite values for a histogram
  double min = 0;           ///< smallest value; meaningless before the first addition
  double max = 0;           ///< largest value; NaN if a NaN was added
  double last = 0;          ///< latest value
  std::int64_t count = 0;   ///< additions
  Histogram histogram{};    ///< filled for kHistogram only

  /// The reduced number; empty when there is none (a mean of weight zero, no addition).
  std::optional<double> value() const;
  /// Same state; NaN equals NaN, so that a batch with one equals its own copy.
  bool operator==(const MetricEntry& other) const;
};

class Metrics {
 public:
  using Entries = std::map<std::string, MetricEntry, std::less<>>;

  /// Adds one measurement. `weight` is finite and ≥ 0: the number of rows or tokens that the value
  /// stands for. A name used before with another reduction is a programmer error (CHECK).
  void add(std::string_view name, double value, Reduction reduction, double weight = 1);

  /// Joins `other` into this by each metric's reduction. On a conflict of reductions nothing is
  /// changed and the kConflict error names the metric and both reductions.
  result<void> merge(const Metrics& other);

  /// Reduced value, or empty when the name is unknown or has no value yet.
  std::optional<double> value(std::string_view name) const;
  const MetricEntry* find(std::string_view name) const;

  /// Puts a decoded entry; replaces an entry of that name. For codecs.
  void put(std::string name, MetricEntry entry);

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  void clear() { entries_.clear(); }
  /// Iteration is in name order.
  Entries::const_iterator begin() const { return entries_.begin(); }
  Entries::const_iterator end() const { return entries_.end(); }

  bool operator==(const Metrics&) const = default;

 private:
  Entries entries_;
};

}  // namespace troupe::runtime
