#pragma once

// The seam between receiving and how bytes travel between processes.
//
// A target asks a lane for parts of one member's pieces and says where each goes; the lane brings
// them all or ends with one error. `transport_lane` is for `runtime::Transport`; a lane whose
// senders must act too (NCCL) drives them itself, from the same plan.
// Ownership: `keep` stays alive until nothing can write to `into` any more, also after an error.
// **Threads:** one; the pendings complete on any.
// **Invariants:** every fetch ends, at the latest at its deadline.

#include "reshard/execution/messages.hpp"
#include "reshard/execution/piece_columns.hpp"
#include "reshard/execution/weight_port.hpp"
#include "runtime/task/pending.hpp"

#include <cstddef>
#include <memory>
#include <span>

namespace troupe::reshard {

/// One thing about one piece; for kProgress `piece.op` is `progress_op` and `piece.first` what was
/// taken.
struct LanePart {
  ColumnKind kind = ColumnKind::kBytes;
  OpPiece piece;
  std::span<std::byte> into;  ///< as many bytes as it has
};

class PieceLane {
 public:
  virtual ~PieceLane() = default;
  /// Parts of what `from` gives out under `epoch`; at most kLanePartsMax. The watch may be told of
  /// bytes as they land, or not.
  virtual runtime::pending<void> fetch(std::uint64_t epoch, const MemberAddress& from,
                                       std::span<const LanePart> parts,
                                       std::shared_ptr<const void> keep, Deadline deadline,
                                       std::shared_ptr<runtime::LandingWatch> watch = nullptr) = 0;
};

inline constexpr std::size_t kLanePartsMax = 448;

/// Over the port's transport, which must be there.
std::unique_ptr<PieceLane> transport_lane(WeightPort& port);

}  // namespace troupe::reshard
