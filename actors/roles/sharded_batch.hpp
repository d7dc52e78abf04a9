#pragma once

// Pieces of a train engine's state as a batch, as tensor_batch.hpp for whole tensors.
//
// One row a piece: `name` text, `shape` jagged i64 (of the whole tensor), `box` jagged i64 (row
// begin, row end, column begin, column end), `data` jagged f32. A batch without `box` has whole
// tensors.
// **Ownership:** `piece_batch` copies nothing: the batch views the pieces, and keeps what it is
// given to keep. `PieceRows` holds the batch that its views point into.
// **Threads:** values.
// **Invariants:** a piece's box lies in its tensor and its numbers are those of the box (kCorrupt).

#include "actors/train/sharded_state.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/batch/batch.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace troupe::actors {

inline constexpr std::string_view kTensorBox = "box";

result<runtime::Batch> piece_batch(std::span<const StatePiece> pieces,
                                   std::shared_ptr<const void> keep);

class PieceRows {
 public:
  /// Decides by name, shape and box; `data` is not there yet.
  using Wanted = std::function<bool(const StatePiece&)>;

  /// Pulls what is elsewhere of the pieces that `wanted` takes, all of it before it returns.
  /// Blocks. A null function takes all.
  static result<PieceRows> open(const runtime::Batch& batch, const Wanted& wanted,
                                std::optional<Deadline> deadline = std::nullopt);
  std::span<const StatePiece> pieces() const { return pieces_; }

 private:
  runtime::Batch batch_;
  std::vector<StatePiece> pieces_;
};

}  // namespace troupe::actors
