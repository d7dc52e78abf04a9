#include "reshard/plan.hpp"

#include "reshard/plan_assign.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace troupe::reshard {
namespace {

/// Where a draft stands in the order of execution, and which it is.
struct OrderKey {
  std::uint64_t stage = 0;  ///< layer, depth
  std::uint64_t turn = 0;   ///< rotation step, sender
  std::int32_t cell = 0;
  std::int32_t draft = 0;
  bool operator<(const OrderKey& other) const {
    if (stage != other.stage) return stage < other.stage;
    if (turn != other.turn) return turn < other.turn;
    return cell != other.cell ? cell < other.cell : draft < other.draft;
  }
};

/// Position of each rank among those of one side; others have −1.
std::vector<std::int64_t> positions(const PlanInput& input, const RankLayout* PlanRank::*layout) {
  std::vector<std::int64_t> position(input.ranks.size(), -1);
  std::int64_t next = 0;
  for (std::size_t r = 0; r < position.size(); ++r) {
    if (input.ranks[r].*layout != nullptr) position[r] = next++;
  }
  return position;
}

/// The layers that tensors name, numbered from 0 in order; tensors are sorted by layer.
std::vector<std::uint64_t> layer_numbers(const std::vector<TensorInfo>& tensors) {
  std::vector<std::uint64_t> numbers(tensors.size(), 0);
  for (std::size_t t = 1; t < tensors.size(); ++t)
    numbers[t] = numbers[t - 1] + (tensors[t].layer != tensors[t - 1].layer ? 1 : 0);
  return numbers;
}

/// By layer; what others wait for first; sender i begins at receiver i and goes round, so that no
/// receiver sees all senders at once.
std::vector<OrderKey> execution_order(const PlanInput& input, const CellList& cells,
                                      const Assignment& assignment) {
  const auto layer_of = layer_numbers(input.tensors);
  const auto source_at = positions(input, &PlanRank::source);
  const auto target_at = positions(input, &PlanRank::target);
  const std::int64_t receivers = *std::max_element(target_at.begin(), target_at.end()) + 1;
  std::vector<OrderKey> order;
  order.reserve(assignment.drafts.size());
  for (std::size_t d = 0; d < assignment.drafts.size(); ++d) {
    const Draft& draft = assignment.drafts[d];
    const auto sender = static_cast<std::size_t>(draft.source);
    const std::int64_t from = draft.after >= 0 ? target_at[sender] : source_at[sender];
    const std::int64_t to = target_at[static_cast<std::size_t>(draft.target)];
    const auto step = static_cast<std::uint64_t>(((to - from) % receivers + receivers) % receivers);
    const Cell& cell = cells.cells[static_cast<std::size_t>(draft.cell)];
    const std::uint64_t layer = layer_of[static_cast<std::size_t>(cell.tensor)];
    order.push_back({.stage = layer << 32 | static_cast<std::uint32_t>(draft.depth),
                     .turn = step << 32 | static_cast<std::uint32_t>(draft.source),
                     .cell = draft.cell,
                     .draft = static_cast<std::int32_t>(d)});
  }
  std::sort(order.begin(), order.end());
  return order;
}

void write_ops(const PlanInput& input, const CellList& cells, const Assignment& assignment,
               Plan& plan) {
  const auto order = execution_order(input, cells, assignment);
  std::vector<std::int32_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    place[static_cast<std::size_t>(order[i].draft)] = static_cast<std::int32_t>(i);
  plan.ops.reserve(order.size());
  for (const OrderKey& key : order) {
    const Draft& draft = assignment.drafts[static_cast<std::size_t>(key.draft)];
    const Cell& cell = cells.cells[static_cast<std::size_t>(draft.cell)];
    plan.ops.push_back(
        {.tensor = cell.tensor,
         .row_begin = cell.row_begin,
         .row_end = cell.row_end,
         .col_begin = cell.col_begin,
         .col_end = cell.col_end,
         .source_rank = input.ranks[static_cast<std::size_t>(draft.source)].rank,
         .target_rank = input.ranks[static_cast<std::size_t>(draft.target)].rank,
         .source_segment = draft.source_segment,
         .target_segment = draft.target_segment,
         .after = draft.after < 0 ? -1 : place[static_cast<std::size_t>(draft.after)],
         .kind = draft.kind});
  }
}

std::size_t traffic_index(const std::vector<RankTraffic>& traffic, std::int32_t rank) {
  const auto found = std::lower_bound(
      traffic.begin(), traffic.end(), rank,
      [](const RankTraffic& entry, std::int32_t wanted) { return entry.rank < wanted; });
  return static_cast<std::size_t>(found - traffic.begin());
}

/// Lists of operations by rank, one after the other. `rank_of` gives the place of an operation's
/// rank, or one past the last to leave it out.
template <class RankOf>
void list_by_rank(const Plan& plan, RankOf rank_of, std::vector<std::int32_t>& list,
                  std::vector<std::int32_t>& begin) {
  const std::size_t ranks = plan.traffic.size();
  begin.assign(ranks + 2, 0);
  for (const Op& op : plan.ops) ++begin[rank_of(op) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  list.resize(static_cast<std::size_t>(begin[ranks]));
  std::vector<std::int32_t> next(begin.begin(), begin.end() - 1);
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const std::size_t rank = rank_of(plan.ops[i]);
    if (rank < ranks) list[static_cast<std::size_t>(next[rank]++)] = static_cast<std::int32_t>(i);
  }
  begin.pop_back();
}

void write_slices(Plan& plan) {
  std::sort(plan.traffic.begin(), plan.traffic.end(),
            [](const RankTraffic& a, const RankTraffic& b) { return a.rank < b.rank; });
  list_by_rank(
      plan,
      [&plan](const Op& op) {
        if (op.kind == OpKind::kLocal) return plan.traffic.size();
        return traffic_index(plan.traffic, op.source_rank);
      },
      plan.send_list, plan.send_begin);
  list_by_rank(
      plan, [&plan](const Op& op) { return traffic_index(plan.traffic, op.target_rank); },
      plan.receive_list, plan.receive_begin);
}

std::span<const std::int32_t> slice_of(const Plan& plan, const std::vector<std::int32_t>& list,
                                       const std::vector<std::int32_t>& begin, std::int32_t rank) {
  const std::size_t index = traffic_index(plan.traffic, rank);
  if (index == plan.traffic.size() || plan.traffic[index].rank != rank) return {};
  return std::span(list).subspan(static_cast<std::size_t>(begin[index]),
                                 static_cast<std::size_t>(begin[index + 1] - begin[index]));
}

const Segment& segment_of(const RankLayout& own, std::int32_t rank, std::int32_t segment) {
  TROUPE_CHECK(own.rank == rank, "plan: layout of rank {} for an operation of rank {}", own.rank,
               rank);
  TROUPE_CHECK(segment >= 0 && static_cast<std::size_t>(segment) < own.segments.size(),
               "plan: segment {} of {} on rank {}", segment, own.segments.size(), rank);
  return own.segments[static_cast<std::size_t>(segment)];
}

}  // namespace

std::string_view op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::kLocal:
      return "local";
    case OpKind::kNode:
      return "node";
    case OpKind::kNetwork:
      return "network";
    case OpKind::kRelay:
      return "relay";
    case OpKind::kFanOut:
      return "fan-out";
  }
  return "unknown";
}

std::span<const std::int32_t> Plan::sends_of(std::int32_t rank) const {
  return slice_of(*this, send_list, send_begin, rank);
}

std::span<const std::int32_t> Plan::receives_of(std::int32_t rank) const {
  return slice_of(*this, receive_list, receive_begin, rank);
}

std::int64_t Plan::network_bytes() const {
  return bytes_of_kind(OpKind::kNetwork) + bytes_of_kind(OpKind::kRelay);
}

std::int64_t Plan::bytes_of_kind(OpKind kind) const {
  std::int64_t total = 0;
  for (const Op& op : ops) {
    if (op.kind == kind) total += bytes_of(op);
  }
  return total;
}

std::int64_t Plan::operation_memory_bytes() const {
  const std::size_t lists =
      send_list.size() + receive_list.size() + send_begin.size() + receive_begin.size();
  return static_cast<std::int64_t>(ops.size() * sizeof(Op) + lists * sizeof(std::int32_t));
}

Region source_region(const Op& op, const RankLayout& own) {
  return region_of(segment_of(own, op.source_rank, op.source_segment), op.box());
}

Region target_region(const Op& op, const RankLayout& own) {
  return region_of(segment_of(own, op.target_rank, op.target_segment), op.box());
}

result<Plan> plan(const Roster& source, const Roster& target, const PlanOptions& options) {
  if (options.cell_bytes_max < 1)
    return fail(ErrorCode::kInvalidArgument, "plan: cells of at most {} bytes",
                options.cell_bytes_max);
  if (options.ops_max < 1 || options.ops_max > (std::int64_t{1} << 30))
    return fail(ErrorCode::kInvalidArgument, "plan: at most {} operations, wanted 1 to 2^30",
                options.ops_max);
  TROUPE_TRY(PlanInput input, match_rosters(source, target, options));
  TROUPE_TRY(const CellList cells, make_cells(input, options));
  Assignment assignment = assign_cells(input, cells, options.relay);
  Plan out;
  out.digest = plan_digest(source, target, options);
  out.relays = assignment.relays;
  out.cells = static_cast<std::int64_t>(cells.cells.size());
  write_ops(input, cells, assignment, out);
  out.tensors = std::move(input.tensors);
  out.traffic = std::move(assignment.traffic);
  write_slices(out);
  return out;
}

}  // namespace troupe::reshard
