#include "reshard/plan.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace troupe::reshard {
namespace {

/// Changes whenever the same input would give another plan.
constexpr std::uint64_t kPlannerVersion = 1;

/// A running 64-bit hash; equal values in equal order give equal digests.
class Hasher {
 public:
  void add(std::uint64_t value) {
    // The finaliser of SplitMix64: each bit of the input reaches each bit of the state.
    std::uint64_t z = state_ * 0x9E3779B97F4A7C15ULL + value + 0x632BE59BD9B4E019ULL;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    state_ = z ^ (z >> 31U);
  }
  void add(std::int64_t value) { add(static_cast<std::uint64_t>(value)); }
  void add(std::int32_t value) { add(static_cast<std::int64_t>(value)); }
  void add(std::string_view text) {
    add(static_cast<std::uint64_t>(text.size()));
    for (std::size_t i = 0; i < text.size(); i += 8) {
      std::uint64_t word = 0;
      for (std::size_t j = i; j < std::min(i + 8, text.size()); ++j)
        word = word << 8U | static_cast<unsigned char>(text[j]);
      add(word);
    }
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

template <class Items, class Less>
std::vector<std::int32_t> order_of(const Items& items, Less less) {
  std::vector<std::int32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&items, &less](std::int32_t a, std::int32_t b) {
    return less(items[static_cast<std::size_t>(a)], items[static_cast<std::size_t>(b)]);
  });
  return order;
}

/// Segments stay in the order given, since a plan points at them by index.
void add_rank(const RankLayout& rank, const std::vector<std::int32_t>& tensor_number,
              Hasher& hasher) {
  hasher.add(rank.rank);
  hasher.add(rank.node);
  hasher.add(static_cast<std::uint64_t>(rank.buffer_elements.size()));
  for (const std::int64_t elements : rank.buffer_elements) hasher.add(elements);
  hasher.add(static_cast<std::uint64_t>(rank.segments.size()));
  for (const Segment& segment : rank.segments) {
    const auto tensor = static_cast<std::size_t>(segment.tensor);
    // A malformed roster has a digest too; `plan` refuses it later.
    hasher.add(tensor < tensor_number.size() ? tensor_number[tensor] : -1);
    hasher.add(segment.box.row_begin);
    hasher.add(segment.box.row_end);
    hasher.add(segment.box.col_begin);
    hasher.add(segment.box.col_end);
    hasher.add(segment.buffer);
    hasher.add(segment.offset);
    hasher.add(segment.row_stride);
  }
}

void add_roster(const Roster& roster, Hasher& hasher) {
  const auto tensors = order_of(
      roster.tensors, [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  std::vector<std::int32_t> number(tensors.size());
  hasher.add(static_cast<std::uint64_t>(tensors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    number[static_cast<std::size_t>(tensors[i])] = static_cast<std::int32_t>(i);
    const TensorInfo& tensor = roster.tensors[static_cast<std::size_t>(tensors[i])];
    hasher.add(tensor.name);
    hasher.add(static_cast<std::uint64_t>(tensor.dtype));
    hasher.add(tensor.rows);
    hasher.add(tensor.cols);
    hasher.add(tensor.layer);
  }
  hasher.add(static_cast<std::uint64_t>(roster.ranks.size()));
  for (const std::int32_t r : order_of(
           roster.ranks, [](const RankLayout&a, const RankLayout&b) { return a.rank < b.rank; }))
    add_rank(roster.ranks[static_cast<std::size_t>(r)], number, hasher);
}

void add_names(std::vector<std::string> names, Hasher& hasher) {
  std::sort(names.begin(), names.end());
  hasher.add(static_cast<std::uint64_t>(names.size()));
  for (const std::string& name : names) hasher.add(std::string_view(name));
}

}  // namespace

std::uint64_t plan_digest(const Roster& source, const Roster& target, const PlanOptions& options) {
  Hasher hasher;
  hasher.add(kPlannerVersion);
  hasher.add(options.cell_bytes_max);
  hasher.add(static_cast<std::uint64_t>(options.relay));
  std::vector<std::string> aliases;
  for (const TensorAlias& alias : options.aliases)
    aliases.push_back(fmt::format("{}\n{}", alias.target, alias.source));
  add_names(std::move(aliases), hasher);
  add_names(options.source_only, hasher);
  add_names(options.target_only, hasher);
  add_roster(source, hasher);
  add_roster(target, hasher);
  return hasher.value();
}

}  // namespace troupe::reshard
