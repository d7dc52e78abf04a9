#pragma once

// Free resources during a search: the cluster's numbers, with a copy of each node that the search
// gave something from. Giving can be undone.
//
// **Ownership:** keeps a reference to the cluster until the next reset.
// **Threads:** belongs to one owner. For the .cpp files of this folder.
// **Cost:** a node is copied when first touched; `reset` costs the nodes touched.

#include "placement/problem.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::placement {

/// What one bundle got in a search; cores are chosen when the place is made real.
struct Given {
  std::int32_t position = 0;
  std::int32_t socket = -1;                ///< at socket level
  std::vector<std::int32_t> devices = {};  ///< ascending
};

class SearchState {
 public:
  /// What the kept bundles of the problem hold is taken from views that would show it free.
  void reset(const Problem& problem);
  void reset(const Cluster& cluster, View view);

  const NodeSummary& summary(std::size_t position) const {
    const std::int32_t copy = copy_of_[position];
    return copy < 0 ? base_[position] : copies_[static_cast<std::size_t>(copy)].summary;
  }
  const NodeFree& free(std::size_t position);
  bool is_touched(std::size_t position) const { return copy_of_[position] >= 0; }

  /// How many bundles fit on a node as a whole, at most `limit`. Devices, sockets aside.
  std::int32_t fits_node(const Demand& demand, std::size_t position, std::int32_t limit);
  /// How many fit at a site.
  std::int32_t fits(const Demand& demand, const Site& site, std::int32_t limit);

  /// Gives one bundle that fits; `device` forces the device of a fraction. Whole devices come from
  /// the socket that they fill best, adjacent ones first.
  Given give(const Demand& demand, const Site& site, std::int32_t device = -1);
  void undo(const Demand& demand, const Given& given);

 private:
  struct Copy {
    std::size_t position = 0;
    NodeFree free;
    NodeSummary summary;
  };
  Copy& touch(std::size_t position);
  bool holds_others(const Demand& demand, const Site& site, std::int32_t& limit);
  void take_kept(const BundlePlacement& bundle);

  const Cluster* cluster_ = nullptr;
  View view_ = View::kFree;
  std::span<const NodeSummary> base_;
  std::vector<std::int32_t> copy_of_;
  std::vector<Copy> copies_;
  std::size_t copies_used_ = 0;
};

/// `count` of the wholly free devices: of the socket with fewest that has enough, a run without
/// gaps when there is one, the lowest otherwise. `socket` ≥ 0 allows that socket only.
std::vector<std::int32_t> choose_whole_devices(std::span<const std::int32_t> free,
                                               std::span<const DeviceSpec> devices,
                                               std::int32_t count, std::int32_t socket);

/// The device with least room that has room for `fraction`; -1 when none has.
std::int32_t choose_shared_device(std::span<const std::int32_t> free,
                                  std::span<const DeviceSpec> devices, std::int32_t fraction,
                                  std::int32_t socket);

}  // namespace troupe::placement
