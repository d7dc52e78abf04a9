#include "reshard/plan_assign.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace troupe::reshard {
namespace {

/// Takers of one cell on one node, and the holders there.
struct NodeGroup {
  std::span<const Holding> takers;
  std::span<const Holding> holders;
};

class Assigner {
 public:
  Assigner(const PlanInput& input, const CellList& cells) : input_(input), cells_(cells) {
    for (const PlanRank& rank : input.ranks)
      out_.traffic.push_back({.rank = rank.rank,
                              .node = rank.node,
                              .is_source = rank.source != nullptr,
                              .is_target = rank.target != nullptr});
    std::size_t drafts = 0;
    for (const Cell& cell : cells.cells) drafts += static_cast<std::size_t>(cell.takers);
    out_.drafts.reserve(drafts);
  }

  Assignment run(RelayMode mode) {
    out_.relays = mode == RelayMode::kAlways || (mode == RelayMode::kAuto && sources_are_few());
    for (const std::int32_t id : cell_order()) place(id);
    return std::move(out_);
  }

 private:
  const Cell& cell(std::int32_t id) const { return cells_.cells[static_cast<std::size_t>(id)]; }
  std::int32_t node(const Holding& holding) const { return input_.rank(holding).node; }
  RankTraffic& traffic(const Holding& holding) {
    return out_.traffic[static_cast<std::size_t>(holding.rank)];
  }
  std::int64_t bytes(const Cell& cell) const {
    return cell.elements() *
           element_bytes(input_.tensors[static_cast<std::size_t>(cell.tensor)].dtype);
  }

  /// Calls `visit` for each node with takers of `cell`; lists are grouped by node already.
  template <class Visit>
  void for_each_node(const Cell& cell, Visit visit) const {
    const auto takers = cells_.takers_of(cell);
    const auto holders = cells_.holders_of(cell);
    std::size_t h = 0;
    for (std::size_t t = 0; t < takers.size();) {
      const std::int32_t here = node(takers[t]);
      std::size_t t_end = t;
      while (t_end < takers.size() && node(takers[t_end]) == here) ++t_end;
      while (h < holders.size() && node(holders[h]) < here) ++h;
      std::size_t h_end = h;
      while (h_end < holders.size() && node(holders[h_end]) == here) ++h_end;
      visit(NodeGroup{takers.subspan(t, t_end - t), holders.subspan(h, h_end - h)});
      t = t_end;
      h = h_end;
    }
  }

  /// Fewer ranks can send over the network than must be fed over it, and some cell goes to several
  /// nodes, so that these can feed each other.
  bool sources_are_few() const {
    std::vector<bool> sends(input_.ranks.size(), false);
    std::vector<bool> takes(input_.ranks.size(), false);
    bool shared = false;
    for (const Cell& each : cells_.cells) {
      int remote_nodes = 0;
      for_each_node(each, [&](const NodeGroup& group) {
        if (!group.holders.empty()) return;
        ++remote_nodes;
        for (const Holding& taker : group.takers)
          takes[static_cast<std::size_t>(taker.rank)] = true;
      });
      shared = shared || remote_nodes > 1;
      if (remote_nodes == 0) continue;
      for (const Holding& holder : cells_.holders_of(each))
        sends[static_cast<std::size_t>(holder.rank)] = true;
    }
    return shared && std::count(sends.begin(), sends.end(), true) <
                         std::count(takes.begin(), takes.end(), true);
  }

  /// Least choice first, then largest first: what is placed last can level the load best.
  std::vector<std::int32_t> cell_order() const {
    std::vector<std::int32_t> order(cells_.cells.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::int64_t> size;
    for (const Cell& each : cells_.cells) size.push_back(bytes(each));
    std::sort(order.begin(), order.end(), [this, &size](std::int32_t a, std::int32_t b) {
      if (cell(a).holders != cell(b).holders) return cell(a).holders < cell(b).holders;
      const std::int64_t size_a = size[static_cast<std::size_t>(a)];
      const std::int64_t size_b = size[static_cast<std::size_t>(b)];
      return size_a != size_b ? size_a > size_b : a < b;
    });
    return order;
  }

  /// The one with least of `load` so far; the first of equals.
  const Holding& least(std::span<const Holding> candidates, std::int64_t RankTraffic::*load) {
    return *std::min_element(candidates.begin(), candidates.end(),
                             [this, load](const Holding& a, const Holding& b) {
                               return traffic(a).*load < traffic(b).*load;
                             });
  }

  void place(std::int32_t id) {
    remote_.clear();
    for_each_node(cell(id), [this, id](const NodeGroup& group) {
      if (group.holders.empty())
        remote_.push_back(group);
      else
        place_near(id, group);
    });
    if (remote_.empty()) return;
    if (out_.relays && remote_.size() > 1) return place_chain(id);
    for (const NodeGroup& group : remote_) {
      const Holding sender = least(cells_.holders_of(cell(id)), &RankTraffic::network_out_bytes);
      const Holding entry = least(group.takers, &RankTraffic::network_in_bytes);
      enter_node(id, group, sender, entry, {.kind = OpKind::kNetwork});
    }
  }

  /// Somebody on the node holds the cell.
  void place_near(std::int32_t id, const NodeGroup& group) {
    std::size_t h = 0;
    for (const Holding& taker : group.takers) {
      while (h < group.holders.size() && group.holders[h].rank < taker.rank) ++h;
      const bool is_own = h < group.holders.size() && group.holders[h].rank == taker.rank;
      if (is_own)
        add(id, group.holders[h], taker, {.kind = OpKind::kLocal});
      else
        add(id, least(group.holders, &RankTraffic::node_out_bytes), taker, {.kind = OpKind::kNode});
    }
  }

  /// Source to node to node: each byte leaves the sources once. The last of a chain sends nothing,
  /// so the nodes that have sent most come last.
  void place_chain(std::int32_t id) {
    chain_.clear();
    for (const NodeGroup& group : remote_)
      chain_.emplace_back(least(group.takers, &RankTraffic::network_in_bytes), group);
    std::stable_sort(chain_.begin(), chain_.end(), [this](const auto& a, const auto& b) {
      return traffic(a.first).network_out_bytes < traffic(b.first).network_out_bytes;
    });
    Holding sender = least(cells_.holders_of(cell(id)), &RankTraffic::network_out_bytes);
    Draft like{.kind = OpKind::kNetwork};
    for (const auto& [entry, group] : chain_) {
      const std::int32_t arrived = enter_node(id, group, sender, entry, like);
      sender = entry;
      like = {.after = arrived, .depth = like.depth + 1, .kind = OpKind::kRelay};
    }
  }

  /// One copy to `entry`, which hands it on to the other takers of its node. Returns the draft that
  /// brings it there.
  std::int32_t enter_node(std::int32_t id, const NodeGroup& group, const Holding& sender,
                          const Holding& entry, const Draft& like) {
    const std::int32_t arrived = add(id, sender, entry, like);
    for (const Holding& taker : group.takers) {
      if (taker.rank == entry.rank) continue;
      add(id, entry, taker, {.after = arrived, .depth = like.depth + 1, .kind = OpKind::kFanOut});
    }
    return arrived;
  }

  std::int32_t add(std::int32_t id, const Holding& source, const Holding& target, Draft draft) {
    draft.cell = id;
    draft.source = source.rank;
    draft.target = target.rank;
    draft.source_segment = source.segment;
    draft.target_segment = target.segment;
    out_.drafts.push_back(draft);
    const std::int64_t size = bytes(cell(id));
    if (draft.kind == OpKind::kLocal) {
      traffic(target).local_bytes += size;
    } else if (draft.kind == OpKind::kNode || draft.kind == OpKind::kFanOut) {
      traffic(source).node_out_bytes += size;
      traffic(target).node_in_bytes += size;
    } else {
      traffic(source).network_out_bytes += size;
      traffic(target).network_in_bytes += size;
    }
    return static_cast<std::int32_t>(out_.drafts.size()) - 1;
  }

  const PlanInput& input_;
  const CellList& cells_;
  Assignment out_;
  std::vector<NodeGroup> remote_;                     // of the current cell
  std::vector<std::pair<Holding, NodeGroup>> chain_;  // entry and node, in order
};

}  // namespace

Assignment assign_cells(const PlanInput& input, const CellList& cells, RelayMode relay) {
  return Assigner(input, cells).run(relay);
}

}  // namespace troupe::reshard
