#pragma once

// What a user asks for (bundles, a group of them) and what a placement answers (which devices,
// cores and network card of which node each bundle has).
//
// **Threads:** value types and pure functions.
// **Invariants:** a request that passed `validate` is well formed; whether a cluster can hold it is
// another question (scheduler.hpp).

#include "placement/resources.hpp"
#include "placement/strategy.hpp"
#include "placement/topology.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::placement {

/// The resources of one rank. GPUs: a fraction of one device, or a whole number of devices.
struct Bundle {
  Resources resources;
  std::vector<LabelSelector> selectors = {};  ///< all must hold on the node

  bool operator==(const Bundle&) const = default;
};

/// A wish or condition about where another group lies.
struct Affinity {
  std::string group;
  bool apart = false;          ///< false: only in domains that hold bundles of it; true: in none
  Level level = Level::kNode;  ///< rack, domain or node
  bool strict = true;          ///< false: kept where that costs no feasibility

  bool operator==(const Affinity&) const = default;
};

/// What each whole GPU of a bundle brings with it; fractions bring their share, rounded up.
struct GpuReserve {
  Amount cpu = {};
  Bytes memory = {};

  bool operator==(const GpuReserve&) const = default;
};

/// A gang: all bundles are placed, or none.
struct GroupRequest {
  std::string name;
  std::vector<Bundle> bundles;
  Strategy strategy = Strategy::kPack;
  Level level = Level::kNode;
  /// At most this many bundles in one domain of `level`; 0: no limit (STRICT_SPREAD: 1).
  std::int32_t per_domain_max = 0;
  /// Exactly this many bundles in each domain of `level` that is used, e.g. one tensor-parallel
  /// group per NVLink domain; 0: any number. Must divide the number of bundles.
  std::int32_t per_domain_exact = 0;
  std::int32_t priority = 0;  ///< higher goes first
  GpuReserve reserve_per_gpu = {};
  std::vector<Affinity> affinities = {};
  bool movable = true;  ///< may stand in a defragmentation suggestion

  bool operator==(const GroupRequest&) const = default;
};

inline constexpr std::size_t kBundlesMax = 16'384;
inline constexpr std::size_t kSelectorsMax = 64;
inline constexpr std::size_t kAffinitiesMax = 64;
inline constexpr std::size_t kNamedResourcesMax = 64;
inline constexpr std::int32_t kPriorityMax = 1'000'000;

/// Each kind of bad request has its own message; all are kInvalidArgument and name the group, the
/// bundle and the field with its value: no bundles, too many, a negative amount, more than one GPU
/// that is not a whole number, unknown strategy, level or operator (values from a wire), per-domain
/// numbers that contradict each other or the strategy, a bundle that the level cannot hold.
result<void> validate(const GroupRequest& request);

/// What bundle `index` takes, the reserve of its GPUs included.
Resources needs_of(const GroupRequest& request, std::size_t index);

struct DeviceShare {
  std::int32_t device = 0;  ///< index on the node
  Amount amount = {};

  auto operator<=>(const DeviceShare&) const = default;
};

struct CoreShare {
  std::int32_t core = 0;
  Amount amount = {};  ///< below one: the core is shared

  auto operator<=>(const CoreShare&) const = default;
};

/// Where one bundle lies and what it owns there.
struct BundlePlacement {
  std::int32_t bundle = 0;  ///< index in the request
  NodeId node = {};
  std::string node_name = {};
  std::int32_t socket = 0;                ///< of its first device, else of its first core
  std::vector<DeviceShare> devices = {};  ///< ascending
  std::vector<CoreShare> cores = {};      ///< ascending; the set of cores to run on
  std::string nic = {};                   ///< nearest to its first device
  Bytes memory = {};
  std::map<std::string, Amount> named = {};

  bool operator==(const BundlePlacement&) const = default;
};

/// One line: `bundle 3: gpu-1 socket 0 devices 2,3 cores 16-31 nic mlx5_0`.
std::string to_string(const BundlePlacement& placement);

/// JSON of one request: `{"name", "strategy", "level", "bundles": [{"gpu", "cpu", "memory",
/// "named", "selectors": [{"label","op","values"}], "count"}], …}`; docs/placement.md has the
/// format. The result passed `validate`.
result<GroupRequest> parse_group_request(std::string_view json, std::string_view source);

}  // namespace troupe::placement
