#pragma once

// Named means kept as (sum, weight), so that parts of a mini-batch, on any rank and in any order,
// add up to the figure of the whole.
//
// **Threads:** a value type.
// **Invariants:** a mean with weight 0 does not exist: `mean` is then empty, never NaN.

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::actors {

/// A mean in the making; the mean is sum / weight.
struct WeightedSum {
  double sum = 0;
  double weight = 0;
  bool deferred = false;  ///< still to be divided by the counts of the mini-batch
  bool operator==(const WeightedSum&) const = default;
};

class WeightedSums {
 public:
  /// Adds to `name`, which starts at (0, 0).
  void add(std::string_view name, double sum, double weight);
  /// The same for an aggregate of a mini-batch whose counts are not known: until `settle`, `weight`
  /// is the part's tokens. Mixes with no `add` under the same name.
  void add_deferred(std::string_view name, double sum, double weight);
  /// Makes the deferred entries what they would have been: sums times `scale`, weights divided by
  /// the `tokens` of the mini-batch (0 where it has none).
  void settle(double scale, double tokens);
  /// Adds every entry of `other`.
  void merge(const WeightedSums& other);
  /// sum / weight; empty when unknown or without weight.
  std::optional<double> mean(std::string_view name) const;
  /// The raw sum, 0 when unknown; for counts.
  double sum(std::string_view name) const;
  /// In name order.
  const std::map<std::string, WeightedSum, std::less<>>& entries() const { return entries_; }
  bool operator==(const WeightedSums&) const = default;

 private:
  std::map<std::string, WeightedSum, std::less<>> entries_;
};

}  // namespace troupe::actors
