#pragma once

// The weights that serve, and the update that is being written: begin → writes → commit.
//
// Double-buffered, an update goes to the other of two sets while the active one serves; a commit
// swaps a pointer. In place, there is one set, which serves nothing between the first write and
// the commit.
// **Ownership:** owns both sets. They are allocated when first needed and then kept: addresses are
// stable over any number of updates, until `drop`.
// **Threads:** one thread; double-buffered, one other may call `write` between begin and commit,
// since it touches nothing that serves.
// **Invariants:** `active` never shows a set that was only partly written; every number of an
// update is written exactly once before it is committed.

#include "actors/rollout/packed_weights.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "actors/rollout/write_coverage.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::actors {

class WeightStore {
 public:
  enum class State {
    kEmpty,    ///< nothing was loaded yet, or all was dropped
    kServing,  ///< `active` is whole
    kAsleep,   ///< dropped until `wake`
    kAwake,    ///< memory is back, numbers are not
    kTorn,     ///< in place, an update was begun and not committed
  };

  WeightStore(const ModelConfig& config, const ModelShare& share, WeightMemory memory);

  State state() const { return state_; }
  /// Null unless kServing.
  const PackedWeights* active() const {
    return state_ == State::kServing ? sets_[active_].get() : nullptr;
  }
  WeightVersion version() const { return version_; }  ///< of the active set
  bool in_place() const { return memory_ == WeightMemory::kInPlace; }
  /// kConflict saying why nothing serves, for `what`: `step`, `canary`, ….
  result<void> check_serving(std::string_view what) const;

  const std::vector<WeightSlot>& slots() const { return slots_; }
  const ModelShare& share() const { return share_; }

  result<void> begin(WeightVersion version);
  result<void> write(std::string_view tensor, const reshard::Box& box, const float* data,
                     std::int64_t row_stride);
  std::optional<WeightVersion> pending() const { return pending_; }
  /// All numbers of the open update were written; kConflict names what is missing.
  result<void> check_complete() const;
  /// After `check_complete`.
  void commit();
  void abort() { pending_.reset(); }

  /// Frees all sets and forgets an open update; `state` is kEmpty or kAsleep.
  void drop(State state);
  /// From kAsleep: allocates the set that the next update fills.
  result<void> wake();

  Bytes bytes() const;  ///< of all sets that are allocated
  /// Addresses of the sets, null where none is allocated; for tests.
  std::array<const PackedWeights*, 2> sets() const { return {sets_[0].get(), sets_[1].get()}; }

 private:
  std::size_t target() const { return in_place() ? active_ : 1 - active_; }
  void allocate_target();

  const ModelShare share_;
  const WeightMemory memory_;
  const std::vector<WeightSlot> slots_;
  std::unordered_map<std::string_view, std::size_t> slot_of_;  // names live in slots_
  std::array<std::unique_ptr<PackedWeights>, 2> sets_;
  std::size_t active_ = 0;
  State state_ = State::kEmpty;
  WeightVersion version_;
  std::optional<WeightVersion> pending_;
  WeightVersion torn_by_;  // the update that began to overwrite, in state kTorn
  std::optional<WriteCoverage> coverage_;
};

}  // namespace troupe::actors
