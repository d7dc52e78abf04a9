#include "actors/algorithm/partition.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace troupe::actors {
namespace {

constexpr std::int64_t kPadding = -1;  ///< stands for no item where parts must be equal

/// Items that belong together, with their sum.
struct Part {
  std::int64_t sum = 0;
  std::int64_t lowest = 0;  ///< smallest item; makes every order unique
  std::vector<std::int64_t> items;
};

bool heavier(const Part& a, const Part& b) {
  return std::tie(a.sum, a.lowest) > std::tie(b.sum, b.lowest);
}

/// At most k parts, heaviest first; those missing up to k are empty.
struct State {
  std::vector<Part> parts;
  std::int64_t spread = 0;  ///< heaviest minus lightest of the k

  void settle(std::size_t k) {
    std::sort(parts.begin(), parts.end(), heavier);
    spread = parts.front().sum - (parts.size() < k ? 0 : parts.back().sum);
  }
};

/// Heap order: the largest spread on top; ties by the heavier top part.
bool is_closer(const State& a, const State& b) {
  if (a.spread != b.spread) return a.spread < b.spread;
  return heavier(b.parts.front(), a.parts.front());
}

/// Items ascending by weight; ties by index.
std::vector<std::int64_t> ascending(std::span<const std::int64_t> weights) {
  std::vector<std::int64_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return weights[static_cast<std::size_t>(a)] < weights[static_cast<std::size_t>(b)];
  });
  return order;
}

/// One state per item, or per k consecutive items of the sorted order where parts must be equal.
std::vector<State> first_states(std::span<const std::int64_t> weights, std::size_t k,
                                PartSizes sizes) {
  std::vector<std::int64_t> order = ascending(weights);
  if (sizes == PartSizes::kEqual) {
    // Fewer than k weightless items: all fall into the first state, one to a part.
    order.insert(order.begin(), (k - order.size() % k) % k, kPadding);
  }
  const std::size_t step = sizes == PartSizes::kEqual ? k : 1;
  std::vector<State> states;
  for (std::size_t i = 0; i < order.size(); i += step) {
    State state;
    for (std::size_t j = i; j < i + step; ++j) {
      const std::int64_t item = order[j];
      const std::int64_t weight = item == kPadding ? 0 : weights[static_cast<std::size_t>(item)];
      state.parts.push_back({.sum = weight, .lowest = item, .items = {item}});
    }
    state.settle(k);
    states.push_back(std::move(state));
  }
  return states;
}

void join(Part& part, Part& other) {
  part.sum += other.sum;
  part.lowest = std::min(part.lowest, other.lowest);
  if (part.items.size() < other.items.size()) part.items.swap(other.items);
  part.items.insert(part.items.end(), other.items.begin(), other.items.end());
}

/// Joins part i of `state` with part k-1-i of `other`, so that differences cancel.
void merge_opposite(State& state, State& other, std::size_t k) {
  const std::size_t own = state.parts.size();
  for (std::size_t j = 0; j < other.parts.size(); ++j) {
    const std::size_t i = k - 1 - j;
    if (i < own)
      join(state.parts[i], other.parts[j]);
    else
      state.parts.push_back(std::move(other.parts[j]));
  }
  state.settle(k);
}

Partition to_partition(State state, std::size_t k) {
  Partition partition(k);
  for (std::size_t i = 0; i < state.parts.size(); ++i) {
    partition[i] = std::move(state.parts[i].items);
    std::erase(partition[i], kPadding);
    std::sort(partition[i].begin(), partition[i].end());
  }
  return partition;
}

result<void> check_weights(std::span<const std::int64_t> weights) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 0)
      return fail(ErrorCode::kInvalidArgument, "weights: item {} is {}, wanted 0 or more", i,
                  weights[i]);
    if (weights[i] > std::numeric_limits<std::int64_t>::max() - sum)
      return fail(ErrorCode::kInvalidArgument, "weights: the sum of {} items overflows", i + 1);
    sum += weights[i];
  }
  return {};
}

}  // namespace

std::int64_t sequence_work(std::int64_t tokens) { return 24576 * tokens + tokens * tokens; }

result<Partition> karmarkar_karp(std::span<const std::int64_t> weights, std::int64_t parts,
                                 PartSizes sizes) {
  if (parts < 1)
    return fail(ErrorCode::kInvalidArgument, "partition: {} parts, wanted 1 or more", parts);
  TROUPE_TRY_VOID(check_weights(weights));
  const auto k = static_cast<std::size_t>(parts);
  if (weights.empty()) return Partition(k);
  std::vector<State> heap = first_states(weights, k, sizes);
  std::make_heap(heap.begin(), heap.end(), is_closer);
  while (heap.size() > 1) {
    std::pop_heap(heap.begin(), heap.end(), is_closer);
    State first = std::move(heap.back());
    heap.pop_back();
    std::pop_heap(heap.begin(), heap.end(), is_closer);
    merge_opposite(first, heap.back(), k);
    heap.back() = std::move(first);
    std::push_heap(heap.begin(), heap.end(), is_closer);
  }
  return to_partition(std::move(heap.front()), k);
}

result<Partition> balance_ranks(std::span<const std::int64_t> lengths, std::int64_t ranks) {
  TROUPE_TRY(const std::vector<std::int64_t> work, sequence_works(lengths));
  return karmarkar_karp(work, ranks, PartSizes::kEqual);
}

result<std::vector<std::int64_t>> sequence_works(std::span<const std::int64_t> lengths) {
  constexpr std::int64_t kLengthMax = 1'000'000'000;  // its work still fits in 64 bits
  std::vector<std::int64_t> work;
  work.reserve(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > kLengthMax)
      return fail(ErrorCode::kInvalidArgument, "sequence {}: length {}, wanted 0 to {}", i,
                  lengths[i], kLengthMax);
    work.push_back(sequence_work(lengths[i]));
  }
  return work;
}

}  // namespace troupe::actors
