// Micro-batches under a hard token budget: balanced when balance allows it, and always feasible.
#include "actors/algorithm/partition.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace troupe::actors {
namespace {

std::int64_t sum_of(std::span<const std::int64_t> values, std::span<const std::int64_t> items) {
  std::int64_t sum = 0;
  for (const std::int64_t item : items) sum += values[static_cast<std::size_t>(item)];
  return sum;
}

bool keeps_budget(const Partition& parts, std::span<const std::int64_t> lengths,
                  std::int64_t tokens_max) {
  return std::all_of(parts.begin(), parts.end(), [&](const std::vector<std::int64_t>& part) {
    return sum_of(lengths, part) <= tokens_max;
  });
}

/// Indices by falling length; ties by index.
std::vector<std::int64_t> longest_first(std::span<const std::int64_t> lengths) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
  });
  return order;
}

/// Longest first, each into the emptiest of `count` parts; whether that keeps the budget.
bool fill_emptiest(std::span<const std::int64_t> lengths, std::int64_t tokens_max,
                   std::int64_t count, Partition& parts) {
  parts.assign(static_cast<std::size_t>(count), {});
  std::vector<std::int64_t> sums(parts.size(), 0);
  for (const std::int64_t item : longest_first(lengths)) {
    const auto emptiest = std::min_element(sums.begin(), sums.end());
    *emptiest += lengths[static_cast<std::size_t>(item)];
    if (*emptiest > tokens_max) return false;
    parts[static_cast<std::size_t>(emptiest - sums.begin())].push_back(item);
  }
  return true;
}

/// Longest first, each into the fullest part that still has room, a new one if none has: at most
/// 11/9 of the fewest possible, and one (best-fit decreasing).
Partition fill_fullest(std::span<const std::int64_t> lengths, std::int64_t tokens_max) {
  Partition parts;
  std::vector<std::int64_t> sums;
  for (const std::int64_t item : longest_first(lengths)) {
    const std::int64_t length = lengths[static_cast<std::size_t>(item)];
    std::size_t best = parts.size();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool fits = sums[i] + length <= tokens_max;
      if (fits && (best == parts.size() || sums[i] > sums[best])) best = i;
    }
    if (best == parts.size()) {
      parts.emplace_back();
      sums.push_back(0);
    }
    parts[best].push_back(item);
    sums[best] += length;
  }
  return parts;
}

/// A plan of few parts, found without regard to work.
Partition tightest(std::span<const std::int64_t> lengths, std::int64_t tokens_max) {
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t least = std::max<std::int64_t>(1, (total + tokens_max - 1) / tokens_max);
  result<Partition> differenced = karmarkar_karp(lengths, least, PartSizes::kFree);
  if (differenced && keeps_budget(*differenced, lengths, tokens_max))
    return std::move(*differenced);
  Partition parts = fill_fullest(lengths, tokens_max);
  const auto fullest_count = static_cast<std::int64_t>(parts.size());
  Partition even;
  for (std::int64_t count = least; count < fullest_count; ++count)
    if (fill_emptiest(lengths, tokens_max, count, even)) return even;
  return parts;
}

/// Splits the part of most work that has two sequences, until there are `count`; then adds
/// empty ones.
void split_up(Partition& parts, std::span<const std::int64_t> work, std::size_t count) {
  while (parts.size() < count) {
    std::size_t heaviest = parts.size();
    std::int64_t heaviest_work = -1;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::int64_t part_work = sum_of(work, parts[i]);
      if (parts[i].size() > 1 && part_work > heaviest_work) {
        heaviest = i;
        heaviest_work = part_work;
      }
    }
    if (heaviest == parts.size()) {
      parts.resize(count);
      return;
    }
    std::vector<std::int64_t> lighter;
    std::vector<std::int64_t> sums(2, 0);
    std::vector<std::int64_t> kept;
    std::vector<std::int64_t> items = std::move(parts[heaviest]);
    std::stable_sort(items.begin(), items.end(), [&](std::int64_t a, std::int64_t b) {
      return work[static_cast<std::size_t>(a)] > work[static_cast<std::size_t>(b)];
    });
    for (const std::int64_t item : items) {
      // The second sequence opens the new part even when the first had no work.
      const bool to_kept = kept.empty() || (!lighter.empty() && sums[0] <= sums[1]);
      sums[to_kept ? 0 : 1] += work[static_cast<std::size_t>(item)];
      (to_kept ? kept : lighter).push_back(item);
    }
    parts[heaviest] = std::move(kept);
    parts.push_back(std::move(lighter));
  }
}

/// Ascending inside a part; parts by falling work, empty ones last.
void put_in_order(Partition& parts, std::span<const std::int64_t> work) {
  for (std::vector<std::int64_t>& part : parts) std::sort(part.begin(), part.end());
  std::stable_sort(parts.begin(), parts.end(), [&](const auto& a, const auto& b) {
    if (a.empty() != b.empty()) return b.empty();
    return sum_of(work, a) > sum_of(work, b);
  });
}

result<void> check_budget(std::span<const std::int64_t> lengths, std::int64_t tokens_max) {
  if (tokens_max < 1)
    return fail(ErrorCode::kConfig, "token budget: {}, wanted 1 or more", tokens_max);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] > tokens_max)
      return fail(ErrorCode::kInvalidArgument,
                  "sequence {}: {} tokens, more than the micro-batch budget of {}", i, lengths[i],
                  tokens_max);
  return {};
}

}  // namespace

result<std::int64_t> micro_batch_count(std::span<const std::int64_t> lengths,
                                       std::int64_t tokens_max) {
  TROUPE_TRY_VOID(check_budget(lengths, tokens_max));
  TROUPE_TRY_VOID(sequence_works(lengths));
  if (lengths.empty()) return 0;
  return static_cast<std::int64_t>(tightest(lengths, tokens_max).size());
}

result<Partition> plan_micro_batches(std::span<const std::int64_t> lengths, std::int64_t tokens_max,
                                     std::int64_t count) {
  TROUPE_TRY_VOID(check_budget(lengths, tokens_max));
  TROUPE_TRY(const std::vector<std::int64_t> work, sequence_works(lengths));
  if (lengths.empty()) {
    if (count < 0)
      return fail(ErrorCode::kInvalidArgument, "micro-batches: {}, wanted 0 or more", count);
    return Partition(static_cast<std::size_t>(count));
  }
  Partition parts;
  if (count >= 1) {
    TROUPE_TRY(parts, karmarkar_karp(work, count, PartSizes::kFree));
    if (!keeps_budget(parts, lengths, tokens_max)) parts.clear();
  }
  if (parts.empty()) {
    parts = tightest(lengths, tokens_max);
    if (count < static_cast<std::int64_t>(parts.size()))
      return fail(ErrorCode::kInvalidArgument,
                  "micro-batches: {} of {} tokens cannot hold the sequences, wanted {} or more",
                  count, tokens_max, parts.size());
    split_up(parts, work, static_cast<std::size_t>(count));
  }
  put_in_order(parts, work);
  return parts;
}

}  // namespace troupe::actors
