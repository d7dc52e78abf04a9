#pragma once

// Ranks with real buffers, to run plans in memory, and the slow reference beside them: gather every
// tensor whole, then slice it. Shared by the tests of the planner.
// **Threads:** one.

#include "reshard/plan.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::reshard::testing {

using Bytes = std::vector<std::uint8_t>;

inline constexpr std::uint8_t kSentinel = 0xA5;

inline std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// Number (r, c) of a tensor in publication `round`: any bits, a function of where it stands.
inline std::uint64_t bits_of(std::string_view tensor, std::int64_t row, std::int64_t col,
                             std::uint64_t round) {
  std::uint64_t hash = round;
  for (const char c : tensor) hash = hash * 131 + static_cast<unsigned char>(c);
  return mix_seed(hash, static_cast<std::uint64_t>(row * 1'000'003 + col));
}

/// `roster` with only the tensors that `keep` names.
template <class Keep>
Roster only_tensors(const Roster& roster, Keep keep) {
  Roster kept;
  std::vector<std::int32_t> number(roster.tensors.size(), -1);
  for (std::size_t t = 0; t < roster.tensors.size(); ++t) {
    if (!keep(roster.tensors[t])) continue;
    number[t] = static_cast<std::int32_t>(kept.tensors.size());
    kept.tensors.push_back(roster.tensors[t]);
  }
  for (RankLayout rank : roster.ranks) {
    std::erase_if(rank.segments, [&number](const Segment& s) { return number[at(s.tensor)] < 0; });
    for (Segment& s : rank.segments) s.tensor = number[at(s.tensor)];
    kept.ranks.push_back(std::move(rank));
  }
  return kept;
}

/// The boxes of one tensor on the `index`-th rank, in order of the layout.
inline std::vector<Box> boxes_of(const Roster& roster, std::size_t index, std::string_view tensor) {
  std::vector<Box> boxes;
  for (const Segment& s : roster.ranks[index].segments) {
    if (roster.tensors[at(s.tensor)].name == tensor) boxes.push_back(s.box);
  }
  return boxes;
}

/// The buffers of every rank of one side.
struct Memory {
  const Roster* roster = nullptr;
  std::map<std::int32_t, std::vector<Bytes>> buffers;  // by rank
  std::map<std::int32_t, const RankLayout*> layouts;
};

inline std::int64_t item_bytes(const Roster& roster, const RankLayout& rank, std::size_t buffer) {
  for (const Segment& segment : rank.segments) {
    if (at(segment.buffer) == buffer)
      return element_bytes(roster.tensors[at(segment.tensor)].dtype);
  }
  return 1;  // nothing but padding
}

/// Every buffer full of the sentinel.
inline Memory empty_memory(const Roster& roster) {
  Memory side{.roster = &roster, .buffers = {}, .layouts = {}};
  for (const RankLayout& rank : roster.ranks) {
    side.layouts[rank.rank] = &rank;
    for (std::size_t b = 0; b < rank.buffer_elements.size(); ++b)
      side.buffers[rank.rank].emplace_back(
          at(rank.buffer_elements[b] * item_bytes(roster, rank, b)), kSentinel);
  }
  return side;
}

/// Calls `visit(tensor, row, col, bytes of the number)` for each number of each segment.
template <class Visit>
void for_each_number(Memory& side, Visit visit) {
  for (const RankLayout& rank : side.roster->ranks) {
    for (const Segment& s : rank.segments) {
      const TensorInfo& tensor = side.roster->tensors[at(s.tensor)];
      const std::int64_t size = element_bytes(tensor.dtype);
      for (std::int64_t r = s.box.row_begin; r < s.box.row_end; ++r) {
        for (std::int64_t c = s.box.col_begin; c < s.box.col_end; ++c) {
          const std::int64_t element =
              s.offset + (r - s.box.row_begin) * s.row_stride + (c - s.box.col_begin);
          visit(tensor, r, c, side.buffers[rank.rank][at(s.buffer)].data() + element * size);
        }
      }
    }
  }
}

/// The source after an optimizer step: values in segments, sentinels everywhere else.
inline void fill(Memory& side, std::uint64_t round) {
  for_each_number(
      side, [round](const TensorInfo& tensor, std::int64_t r, std::int64_t c, std::uint8_t* out) {
        const std::uint64_t bits = bits_of(tensor.name, r, c, round);
        std::memcpy(out, &bits, at(element_bytes(tensor.dtype)));
      });
}

/// The reference: each tensor whole out of all segments of the source, then each segment of the
/// target cut out of it.
inline Memory gather_then_slice(Memory& source, const Roster& target, const PlanOptions& options) {
  std::map<std::string, Bytes> full;
  for (const TensorInfo& tensor : source.roster->tensors)
    full[tensor.name].assign(at(tensor.bytes()), kSentinel);
  for_each_number(source, [&full](const TensorInfo& tensor, std::int64_t r, std::int64_t c,
                                  const std::uint8_t* in) {
    const std::int64_t size = element_bytes(tensor.dtype);
    std::memcpy(full[tensor.name].data() + (r * tensor.cols + c) * size, in, at(size));
  });
  for (const TensorAlias& alias : options.aliases) full[alias.target] = full[alias.source];
  Memory sliced = empty_memory(target);
  for_each_number(
      sliced, [&full](const TensorInfo& tensor, std::int64_t r, std::int64_t c, std::uint8_t* out) {
        const std::int64_t size = element_bytes(tensor.dtype);
        const auto found = full.find(tensor.name);
        if (found == full.end()) return;  // target_only
        std::memcpy(out, found->second.data() + (r * tensor.cols + c) * size, at(size));
      });
  return sliced;
}

inline void copy_region(const Bytes& from, const Region& in, Bytes& to, const Region& out,
                        std::int64_t size) {
  ASSERT_EQ(in.rows, out.rows);
  ASSERT_EQ(in.cols, out.cols);
  for (std::int64_t r = 0; r < in.rows; ++r) {
    const std::int64_t begin = (in.offset + r * in.row_stride) * size;
    const std::int64_t place = (out.offset + r * out.row_stride) * size;
    ASSERT_LE(begin + in.cols * size, static_cast<std::int64_t>(from.size()));
    ASSERT_LE(place + in.cols * size, static_cast<std::int64_t>(to.size()));
    std::memcpy(to.data() + place, from.data() + begin, at(in.cols * size));
  }
}

/// Runs the operations in their order. Who hands on reads what has already arrived at it.
inline void execute(const Plan& plan, Memory& source, Memory& target) {
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    ASSERT_EQ(op.hands_on(), op.after >= 0);
    if (op.hands_on()) {
      ASSERT_LT(at(op.after), i) << "an operation before what it needs";
      const Op& first = plan.ops[at(op.after)];
      ASSERT_EQ(first.target_rank, op.source_rank);
      ASSERT_EQ(first.box(), op.box());
      ASSERT_EQ(first.target_segment, op.source_segment);
    }
    Memory& from = op.hands_on() ? target : source;
    const RankLayout& sender = *from.layouts.at(op.source_rank);
    const RankLayout& receiver = *target.layouts.at(op.target_rank);
    const Region in = source_region(op, sender);
    const Region out = target_region(op, receiver);
    copy_region(from.buffers[op.source_rank][at(in.buffer)], in,
                target.buffers[op.target_rank][at(out.buffer)], out,
                element_bytes(plan.tensors[at(op.tensor)].dtype));
  }
}

/// Bytes that must cross the network at least: each number once to each node that has a taker and
/// no holder. Counted number by number.
inline std::int64_t network_lower_bound(const Roster& source, const Roster& target,
                                        const PlanOptions& options = {}) {
  // For each number of each tensor the nodes that hold it, as a set of bits.
  const auto nodes_of = [](const Roster& roster) {
    std::map<std::string, std::vector<std::uint64_t>> nodes;
    for (const TensorInfo& tensor : roster.tensors)
      nodes[tensor.name].resize(at(tensor.elements()));
    for (const RankLayout& rank : roster.ranks) {
      EXPECT_LT(rank.node, 64);
      for (const Segment& s : rank.segments) {
        const TensorInfo& tensor = roster.tensors[at(s.tensor)];
        std::vector<std::uint64_t>& held = nodes[tensor.name];
        for (std::int64_t r = s.box.row_begin; r < s.box.row_end; ++r)
          for (std::int64_t c = s.box.col_begin; c < s.box.col_end; ++c)
            held[at(r * tensor.cols + c)] |= std::uint64_t{1} << at(rank.node);
      }
    }
    return nodes;
  };
  std::map<std::string, std::string> feeder;
  for (const TensorAlias& alias : options.aliases) feeder[alias.target] = alias.source;
  const auto holders = nodes_of(source);
  const auto takers = nodes_of(target);
  std::int64_t bytes = 0;
  for (const TensorInfo& tensor : target.tensors) {
    const auto fed = feeder.contains(tensor.name) ? feeder.at(tensor.name) : tensor.name;
    const auto found = holders.find(fed);
    if (found == holders.end()) continue;  // target_only
    const std::vector<std::uint64_t>& wanted = takers.at(tensor.name);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      bytes += std::popcount(wanted[i] & ~found->second[i]) * element_bytes(tensor.dtype);
  }
  return bytes;
}

/// Runs `plan` and compares every byte of every target buffer, padding included, with the
/// reference.
inline void expect_same_as_gathering(const Plan& plan, const Roster& source, const Roster& target,
                                     const PlanOptions& options = {}, std::uint64_t round = 1) {
  Memory from = empty_memory(source);
  fill(from, round);
  Memory to = empty_memory(target);
  execute(plan, from, to);
  const Memory wanted = gather_then_slice(from, target, options);
  for (const auto& [rank, buffers] : wanted.buffers)
    EXPECT_EQ(to.buffers.at(rank), buffers) << "target rank " << rank;
}

}  // namespace troupe::reshard::testing
