#pragma once

// Nodes and the tree they hang in: rack > NVLink domain > node > socket > device.
//
// **Threads:** value types and pure functions; `load_topology` reads a file.
// **Invariants:** names are ordered naturally (node7 before node66), so that neighbours by name are
// neighbours in a placement whatever order nodes joined in.

#include "placement/resources.hpp"
#include "runtime/base/result.hpp"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::placement {

/// From coarse to fine; the numbers are part of the wire format.
enum class Level : std::uint8_t { kRack = 0, kDomain = 1, kNode = 2, kSocket = 3, kDevice = 4 };

std::string_view level_name(Level level);
/// `rack`, `domain`, `node`, `socket`, `device`; kInvalidArgument lists them.
result<Level> parse_level(std::string_view text);

/// Orders texts with runs of digits compared as numbers; equal only for equal texts.
std::strong_ordering natural_order(std::string_view a, std::string_view b);

struct NaturalLess {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const { return natural_order(a, b) < 0; }
};

struct DeviceSpec {
  std::int32_t socket = 0;
  std::string nic = {};  ///< nearest network card, e.g. `mlx5_0`; empty when unknown
  bool failed = false;   ///< takes no new bundles

  bool operator==(const DeviceSpec&) const = default;
};

/// One host. Cores are numbered 0..cores-1 and split over the sockets in equal runs, the first
/// sockets taking what does not divide.
struct NodeSpec {
  std::string name;
  std::string rack = {};    ///< nodes without a rack share the rack named ""
  std::string domain = {};  ///< NVLink domain inside the rack; empty: the node is its own domain
  std::int32_t sockets = 1;
  std::vector<DeviceSpec> devices = {};
  std::int32_t cores = 1;
  Bytes memory = {};
  std::map<std::string, Amount> named = {};
  Labels labels = {};
  bool draining = false;  ///< keeps its bundles, takes no new ones

  bool operator==(const NodeSpec&) const = default;
};

inline constexpr std::int32_t kSocketsMax = 64;
inline constexpr std::size_t kDevicesPerNodeMax = 256;
inline constexpr std::int32_t kCoresMax = 16'384;
inline constexpr std::size_t kNodesMax = 65'536;
inline constexpr std::size_t kNameBytesMax = 256;
inline constexpr std::size_t kTopologyFileBytesMax = std::size_t{64} << 20;

/// kInvalidArgument names the node, the field and its value.
result<void> validate(const NodeSpec& node);

/// The socket a core belongs to.
std::int32_t socket_of_core(const NodeSpec& node, std::int32_t core);

/// JSON `{"nodes": [{"name", "rack", "domain", "sockets", "devices": 8 | [{"socket","nic"}],
/// "cores", "memory": bytes, "named": {}, "labels": {}, "draining", "count"}]}`; docs/placement.md
/// has the format. `count` repeats an entry whose name holds `{}`. Errors name source and place.
result<std::vector<NodeSpec>> parse_topology(std::string_view json, std::string_view source);
result<std::vector<NodeSpec>> load_topology(const std::string& path);
/// The same format; parsing it gives equal nodes.
std::string topology_json(const std::vector<NodeSpec>& nodes);

}  // namespace troupe::placement
