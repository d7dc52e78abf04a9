#include "actors/algorithm/weighted_sums.hpp"

#include <utility>

namespace troupe::actors {

void WeightedSums::add(std::string_view name, double sum, double weight) {
  auto position = entries_.find(name);
  if (position == entries_.end())
    position = entries_.emplace(std::string(name), WeightedSum{}).first;
  position->second.sum += sum;
  position->second.weight += weight;
}

void WeightedSums::add_deferred(std::string_view name, double sum, double weight) {
  add(name, sum, weight);
  entries_.find(name)->second.deferred = true;
}

void WeightedSums::settle(double scale, double tokens) {
  for (auto& [name, entry] : entries_) {
    if (!std::exchange(entry.deferred, false)) continue;
    entry.sum *= scale;
    entry.weight = tokens > 0 ? entry.weight / tokens : 0;
  }
}

void WeightedSums::merge(const WeightedSums& other) {
  for (const auto& [name, entry] : other.entries_) {
    if (entry.deferred)
      add_deferred(name, entry.sum, entry.weight);
    else
      add(name, entry.sum, entry.weight);
  }
}

std::optional<double> WeightedSums::mean(std::string_view name) const {
  const auto position = entries_.find(name);
  if (position == entries_.end() || position->second.weight == 0) return std::nullopt;
  return position->second.sum / position->second.weight;
}

double WeightedSums::sum(std::string_view name) const {
  const auto position = entries_.find(name);
  return position == entries_.end() ? 0 : position->second.sum;
}

}  // namespace troupe::actors
