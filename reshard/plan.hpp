#pragma once

// The plan of one weight move: which rank sends which box of which tensor to which rank.
//
// `plan` is a pure function of both rosters and the options: each rank works it out alone and gets
// the same operations, so there is no leader; `digest` lets them check that before a byte moves.
// Every box that a target rank holds arrives exactly once. A rank that holds it itself copies; else
// a source on the same node gives it; else one copy per (cell, target node) crosses the network and
// is handed on inside the node. When the sources are too few to feed all nodes, nodes relay to each
// other and each byte leaves the sources once.
// **Threads:** value types and pure functions.
// **Invariants:** `ops` are in execution order: by layer, within a layer rotated so that senders
// begin at different receivers. `after` is always a smaller index. Operations between one pair of
// ranks run in this order. Segment indices point into the layouts as they were given to `plan`.
// **Cost:** O(S log S + operations · holders); at most 64 bytes per operation.

#include "reshard/layout.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::reshard {

enum class OpKind : std::uint8_t {
  kLocal,    ///< source and target are one rank
  kNode,     ///< from a holder on the same node
  kNetwork,  ///< from a holder on another node
  kRelay,    ///< from a target rank of another node, which got it by operation `after`
  kFanOut,   ///< from a target rank of the same node, which got it by operation `after`
};

std::string_view op_kind_name(OpKind kind);

/// One box from one rank to another. Small on purpose: large plans have 300,000 of them.
struct Op {
  std::int32_t tensor = 0;  ///< index into Plan::tensors
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int32_t col_begin = 0;
  std::int32_t col_end = 0;
  std::int32_t source_rank = 0;
  std::int32_t target_rank = 0;
  /// Of the source rank's *source* layout; of its *target* layout when `hands_on()`.
  std::int32_t source_segment = 0;
  std::int32_t target_segment = 0;  ///< of the target rank's target layout
  std::int32_t after = -1;  ///< the operation that brings the bytes to `source_rank`, or −1
  OpKind kind = OpKind::kLocal;
  bool operator==(const Op&) const = default;

  Box box() const { return {row_begin, row_end, col_begin, col_end}; }
  std::int64_t elements() const {
    return static_cast<std::int64_t>(row_end - row_begin) * (col_end - col_begin);
  }
  /// The sender passes on what it received, and does not read weights of its own.
  bool hands_on() const { return kind == OpKind::kRelay || kind == OpKind::kFanOut; }
  bool crosses_network() const { return kind == OpKind::kNetwork || kind == OpKind::kRelay; }
};

enum class RelayMode : std::uint8_t {
  kAuto,  ///< when fewer ranks can send than must be fed over the network
  kNever,
  kAlways,
};

/// `target` is fed from the source tensor `source`, which has the same shape and dtype.
struct TensorAlias {
  std::string target = {};
  std::string source = {};
  bool operator==(const TensorAlias&) const = default;
};

struct PlanOptions {
  std::int64_t cell_bytes_max = std::int64_t{16} << 20;  ///< larger cells that travel are split
  RelayMode relay = RelayMode::kAuto;
  std::vector<TensorAlias> aliases = {};      ///< e.g. a stored lm_head fed from a tied embedding
  std::vector<std::string> source_only = {};  ///< tensors that the target declares to lack
  std::vector<std::string> target_only = {};  ///< tensors that the target keeps as they are
  std::int64_t ops_max = std::int64_t{1} << 24;  ///< bound on the plan's length
};

/// Bytes of one rank, counted from the operations.
struct RankTraffic {
  std::int32_t rank = 0;
  std::int32_t node = 0;
  bool is_source = false;
  bool is_target = false;
  std::int64_t local_bytes = 0;     ///< copied inside the rank
  std::int64_t node_out_bytes = 0;  ///< to ranks of the same node
  std::int64_t node_in_bytes = 0;
  std::int64_t network_out_bytes = 0;  ///< to other nodes
  std::int64_t network_in_bytes = 0;
  bool operator==(const RankTraffic&) const = default;
};

struct Plan {
  std::uint64_t digest = 0;  ///< of both rosters, the options and the version of the planner
  std::vector<TensorInfo> tensors = {};  ///< of the target, by (layer, name)
  std::vector<Op> ops = {};
  std::vector<RankTraffic> traffic = {};  ///< every rank of either side, by id
  bool relays = false;                    ///< whether target nodes feed each other
  std::int64_t cells = 0;

  std::int64_t bytes_of(const Op& op) const {
    return op.elements() * element_bytes(tensors[static_cast<std::size_t>(op.tensor)].dtype);
  }
  /// Indices into `ops`, ascending: what `rank` sends to others, and what it gets, local copies
  /// included. Empty for a rank that takes no part.
  std::span<const std::int32_t> sends_of(std::int32_t rank) const;
  std::span<const std::int32_t> receives_of(std::int32_t rank) const;
  /// Bytes that cross the network, or of one kind of operation.
  std::int64_t network_bytes() const;
  std::int64_t bytes_of_kind(OpKind kind) const;
  /// Bytes of the operations and of the lists by rank; the table of tensors is not counted.
  std::int64_t operation_memory_bytes() const;

  // Operations of each rank of `traffic`, one list after the other; filled by `plan`.
  std::vector<std::int32_t> send_list = {}, receive_list = {};
  std::vector<std::int32_t> send_begin = {}, receive_begin = {};
};

/// Checks both rosters and their agreement, and plans the move. Errors name tensor, box, rank and
/// both values: kInvalidArgument (a roster is malformed, see `validate`), kConflict (shapes or
/// dtypes differ; a node id differs between the sides), kNotFound (a tensor that one side lacks, or
/// a box that nobody holds), kUnsupported (sizes past 2^31 rows or columns), kResourceExhausted
/// (more than `ops_max` operations).
result<Plan> plan(const Roster& source, const Roster& target, const PlanOptions& options = {});

/// The digest alone, independent of the order of ranks and tensors in the rosters.
std::uint64_t plan_digest(const Roster& source, const Roster& target,
                          const PlanOptions& options = {});

/// Where `op` reads in the sender's buffers. `own` is the sender's source layout, or its target
/// layout when `op.hands_on()` (an executor may as well forward the bytes as they arrived).
Region source_region(const Op& op, const RankLayout& own);
/// Where `op` writes in the receiver's buffers; `own` is its target layout.
Region target_region(const Op& op, const RankLayout& own);

}  // namespace troupe::reshard
