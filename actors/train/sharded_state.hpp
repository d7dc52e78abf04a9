#pragma once

// An engine's state as boxes of canonical tensors, so that it can be cut anew for any other mesh.
//
// A rank of a sharded engine holds runs of numbers; a run is at most three boxes: the end of a row,
// whole rows, the start of a row. A *piece* is one such box of `weights/…`, `adam_m/…` or
// `adam_v/…`. What all ranks of one copy give covers every tensor exactly once, and a rank that
// loads takes from any such cover the parts that it needs.
// **Ownership:** pieces view the engine's buffers. **Threads:** pure functions of their arguments.
// **Invariants:** a piece's numbers lie together, row-major.

#include "actors/model/flat_parameters.hpp"
#include "reshard/layout.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::actors {

inline constexpr std::string_view kWeightPrefix = "weights/";
inline constexpr std::string_view kFirstMomentPrefix = "adam_m/";
inline constexpr std::string_view kSecondMomentPrefix = "adam_v/";

/// One box of one state tensor.
struct StatePiece {
  std::string name;                  ///< `weights/` + canonical name, …
  std::vector<std::int64_t> whole;   ///< shape of the tensor
  reshard::Box box;                  ///< a vector of n numbers is n × 1
  std::span<const float> data = {};  ///< row-major
};

/// A box inside a run, and where its numbers begin in it.
struct RunBox {
  reshard::Box box;  ///< of the canonical tensor
  std::int64_t begin = 0;
};
/// Numbers [begin, begin + count) of the box that `tensor` is, row-major, as 1–3 canonical boxes
/// (none when count is 0).
std::vector<RunBox> boxes_of(const LocalTensor& tensor, std::int64_t begin, std::int64_t count);

/// All of a tensor of this shape.
reshard::Box whole_box(std::span<const std::int64_t> shape);
/// One or two positive sizes, whose product is at most 2^40.
bool is_state_shape(std::span<const std::int64_t> shape);

/// Copies the numbers that both boxes have; each box is row-major and dense in its memory.
void copy_common(const reshard::Box& source_box, std::span<const float> source,
                 const reshard::Box& target_box, std::span<float> target);

/// The pieces that view `buffer`, where each run begins at the offset that `offset` names.
/// Tensors that another rank owns are left out when `owned` is set.
std::vector<StatePiece> pieces_of(std::string_view prefix,
                                  std::span<const ParameterSegment> segments,
                                  std::span<const ParameterRun> runs,
                                  std::int64_t ParameterRun::*offset, std::span<const float> buffer,
                                  bool owned);

/// A piece of a buffer that is to be filled.
struct StateTarget {
  StatePiece piece;
  std::span<float> data = {};
};
/// The same pieces of a buffer that may be written, whoever owns them.
std::vector<StateTarget> targets_of(std::string_view prefix,
                                    std::span<const ParameterSegment> segments,
                                    std::span<const ParameterRun> runs,
                                    std::int64_t ParameterRun::*offset, std::span<float> buffer);

/// Fills every target from `source`, which must cover each of them exactly once. All or nothing.
/// Errors name tensor, box and both values: kNotFound (missing numbers), kCorrupt (given twice;
/// numbers that do not fit the box), kConflict (another shape).
result<void> fill_pieces(std::span<const StateTarget> targets, std::span<const StatePiece> source);

}  // namespace troupe::actors
