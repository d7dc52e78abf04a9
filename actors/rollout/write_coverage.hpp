#pragma once

// Which numbers of an update were written: one bit each.
//
// Boxes arrive in any order and cut, so counting alone would miss a number written twice in place
// of another.
// **Ownership:** owns its bits, allocated once (1/32 of the weights' bytes).
// **Threads:** one thread.
// **Invariants:** `claim` marks all of a box or, when any of it was marked, nothing.
// **Cost:** whole words at a time; a box as wide as what is held is one run of bits.

#include "actors/rollout/weight_slot.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troupe::actors {

class WriteCoverage {
 public:
  explicit WriteCoverage(std::span<const WeightSlot> slots);

  void clear();
  /// `box` is inside the slot's `held`; both in coordinates of the tensor. Gives the place of a
  /// number that was marked before, as a box of one number; empty when all of it was new.
  std::optional<reshard::Box> claim(std::size_t slot, const reshard::Box& box);
  /// Numbers of the slot that were not marked.
  std::int64_t missing(std::size_t slot) const;
  /// The first number that was not marked, as a box of one number; `missing(slot)` is not 0.
  reshard::Box first_missing(std::size_t slot) const;

 private:
  struct Area {
    reshard::Box held;
    std::int64_t first_bit = 0;  // row-major from here
    std::int64_t marked = 0;
  };
  template <class Visit>
  void for_each_run(const Area& area, const reshard::Box& box, Visit visit) const;
  std::optional<std::int64_t> first_set(std::int64_t begin, std::int64_t end) const;
  void set(std::int64_t begin, std::int64_t end);
  static reshard::Box number_at(const Area& area, std::int64_t bit);

  std::vector<Area> areas_;
  std::vector<std::uint64_t> words_;
};

}  // namespace troupe::actors
