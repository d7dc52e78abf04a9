#pragma once

// Strong integer types, so that a rank cannot be passed where a node is meant.
//
// **Threads:** value types.

#include <compare>
#include <cstdint>
#include <functional>

namespace troupe {

/// An integer with a name. `Tag` is an empty struct that only tells types apart.
template <class Tag, class Value>
struct StrongId {
  Value value{};
  constexpr auto operator<=>(const StrongId&) const = default;
};

using RankId = StrongId<struct RankTag, std::int32_t>;      ///< rank inside one worker group
using NodeId = StrongId<struct NodeTag, std::int32_t>;      ///< host
using DeviceId = StrongId<struct DeviceTag, std::int32_t>;  ///< device on a host
using BlockId = StrongId<struct BlockTag, std::int32_t>;    ///< KV cache block
using SequenceId = StrongId<struct SequenceTag, std::int64_t>;
using CallId = StrongId<struct CallTag, std::uint64_t>;
using ColumnId = StrongId<struct ColumnTag, std::uint64_t>;
/// Counts publications of weights; 0 is the initial checkpoint.
using WeightVersion = StrongId<struct WeightVersionTag, std::int64_t>;

}  // namespace troupe

template <class Tag, class Value>
struct std::hash<troupe::StrongId<Tag, Value>> {
  std::size_t operator()(const troupe::StrongId<Tag, Value>& id) const noexcept {
    return std::hash<Value>{}(id.value);
  }
};
