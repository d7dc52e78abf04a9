#pragma once

// What ranks and controller tell each other before weights are published: where weights lie, and
// with whom they are exchanged; and what is asked after it.
//
// **Threads:** plain values.
// **Invariants:** rank ids of layouts are numbers of devices.

#include "actors/rollout/rollout_engine.hpp"
#include "reshard/layout.hpp"
#include "runtime/base/units.hpp"
#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::runtime {

template <>
struct WireFields<reshard::TensorInfo> {
  static constexpr auto fields() {
    using T = reshard::TensorInfo;
    return std::tuple{field("name", &T::name), field("dtype", &T::dtype), field("rows", &T::rows),
                      field("cols", &T::cols), field("layer", &T::layer)};
  }
};

template <>
struct WireFields<reshard::Box> {
  static constexpr auto fields() {
    using T = reshard::Box;
    return std::tuple{field("row_begin", &T::row_begin), field("row_end", &T::row_end),
                      field("col_begin", &T::col_begin), field("col_end", &T::col_end)};
  }
};

template <>
struct WireFields<reshard::Segment> {
  static constexpr auto fields() {
    using T = reshard::Segment;
    return std::tuple{field("tensor", &T::tensor), field("box", &T::box),
                      field("buffer", &T::buffer), field("offset", &T::offset),
                      field("row_stride", &T::row_stride)};
  }
};

template <>
struct WireFields<reshard::RankLayout> {
  static constexpr auto fields() {
    using T = reshard::RankLayout;
    return std::tuple{field("rank", &T::rank), field("node", &T::node),
                      field("segments", &T::segments),
                      field("buffer_elements", &T::buffer_elements)};
  }
};

template <>
struct WireFields<reshard::Roster> {
  static constexpr auto fields() {
    using T = reshard::Roster;
    return std::tuple{field("tensors", &T::tensors), field("ranks", &T::ranks)};
  }
};

template <>
struct WireFields<actors::CanaryAnswer> {
  static constexpr auto fields() {
    using T = actors::CanaryAnswer;
    return std::tuple{field("tokens", &T::tokens), field("log_probs", &T::log_probs),
                      field("version", &T::version)};
  }
};

}  // namespace troupe::runtime

namespace troupe::actors {

/// What a rank says of its weights.
struct WeightLayout {
  std::vector<reshard::TensorInfo> tensors;  ///< the table that the layout points into
  reshard::RankLayout layout;
  std::string host;  ///< equal for ranks that share a host

  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("tensors", &WeightLayout::tensors),
                      field("layout", &WeightLayout::layout), field("host", &WeightLayout::host)};
  }
};

/// What a rank must know to take part in publications.
struct PublicationSetup {
  reshard::Roster source;
  reshard::Roster target;
  Bytes bucket;
  std::vector<std::uint8_t> key;  ///< of the ports of this job's processes; never logged
  /// Where the ranks of this group begin in `target.ranks`; several groups may be targets.
  std::int32_t target_first = 0;
  /// What becomes of samples that are under way.
  WeightUpdate update = WeightUpdate::kDrain;

  static constexpr auto fields() {
    using runtime::field;
    using T = PublicationSetup;
    return std::tuple{field("source", &T::source), field("target", &T::target),
                      field("bucket", &T::bucket), field("key", &T::key),
                      field("target_first", &T::target_first), field("update", &T::update)};
  }
};

/// Generates `tokens` greedily after `prompt`.
struct CanaryRequest {
  std::vector<std::int32_t> prompt;
  std::int32_t tokens = 0;

  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("prompt", &CanaryRequest::prompt),
                      field("tokens", &CanaryRequest::tokens)};
  }
};

}  // namespace troupe::actors
