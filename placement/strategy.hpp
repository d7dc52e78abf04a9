#pragma once

// How the bundles of a group lie relative to each other.
//
// **Threads:** value types and pure functions.

#include "placement/topology.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <string_view>

namespace troupe::placement {

/// PACK and SPREAD are wishes that never make a group wait; the STRICT ones are conditions. The
/// numbers are part of the wire format.
enum class Strategy : std::uint8_t {
  kPack = 0,          ///< as few domains of the level as possible
  kSpread = 1,        ///< as many domains as possible, then as evenly as possible
  kStrictPack = 2,    ///< one domain
  kStrictSpread = 3,  ///< at most one bundle per domain, or `per_domain_max` when that is given
};

std::string_view strategy_name(Strategy strategy);
/// `PACK`, `SPREAD`, `STRICT_PACK`, `STRICT_SPREAD`; kInvalidArgument lists them.
result<Strategy> parse_strategy(std::string_view text);

constexpr bool is_pack(Strategy s) { return s == Strategy::kPack || s == Strategy::kStrictPack; }

}  // namespace troupe::placement
