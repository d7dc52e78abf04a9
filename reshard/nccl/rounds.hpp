#pragma once

// Cuts a plan into rounds that all ranks walk through in the same order.
//
// NCCL matches sends with receives by order alone, and a rank that waits in one group cannot serve
// another. So the whole plan is dealt out to numbered rounds, by every rank alone from the same
// plan and bucket size: a round is one group on each rank that takes part in it. Since whoever is
// in a round has done all its earlier ones first, no circle of waits can arise. In a round a pair
// of ranks exchanges one *message*: a run of cuts (rectangles of operations) in plan order, packed
// densely.
// **Threads:** pure functions.
// **Invariants:** the cuts of all rounds are the plan's operations between different ranks, exactly
// once; between one pair they come in plan order; a rank sends and receives at most `bucket_bytes`
// per round; what is handed on arrives two rounds earlier at least, so that packing may run one
// round ahead.
// **Cost:** O(cuts · rounds that are nearly full); every rank deals for all, and keeps its own.

#include "reshard/execution/publication_plan.hpp"

#include <cstdint>
#include <vector>

namespace troupe::reshard::nccl {

/// A rectangle of an operation's box.
struct Cut {
  std::int32_t op = 0;
  Box box;
  bool operator==(const Cut&) const = default;
};

struct Message {
  std::int32_t source = 0;  ///< ranks of the plan
  std::int32_t target = 0;
  std::vector<Cut> cuts;
  std::int64_t bytes = 0;
  bool operator==(const Message&) const = default;
};

struct Round {
  std::int32_t index = 0;         ///< the same on every rank
  std::vector<Message> sends;     ///< ascending by target
  std::vector<Message> receives;  ///< ascending by source
  /// The last round that brings something that this one's sends hand on, or −1.
  std::int32_t hands_on = -1;
  bool operator==(const Round&) const = default;
};

/// The rounds that `rank` takes part in, ascending. kInvalidArgument when `bucket_bytes` cannot
/// hold one element.
result<std::vector<Round>> cut_rounds(const PublicationPlan& plan, std::int32_t rank,
                                      std::int64_t bucket_bytes);

}  // namespace troupe::reshard::nccl
