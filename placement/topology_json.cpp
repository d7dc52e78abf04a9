// The JSON form of nodes, for topology files and tests. Everything from outside is checked.

#include "placement/json_read.hpp"
#include "placement/topology.hpp"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <utility>

namespace troupe::placement {
namespace {

/// `nodes: 8` spreads eight devices over the sockets in equal runs.
std::vector<DeviceSpec> counted_devices(std::int64_t count, std::int32_t sockets) {
  std::vector<DeviceSpec> devices(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    devices[static_cast<std::size_t>(i)].socket = static_cast<std::int32_t>(i * sockets / count);
  return devices;
}

result<DeviceSpec> parse_device(const Json& value, const std::string& place) {
  ObjectReader reader(value, place);
  DeviceSpec device;
  device.socket = static_cast<std::int32_t>(reader.integer("socket", 0, 0, kSocketsMax - 1));
  device.nic = reader.text("nic");
  device.failed = reader.boolean("failed", false);
  TROUPE_TRY_VOID(reader.finish());
  return device;
}

result<std::vector<DeviceSpec>> parse_devices(ObjectReader& reader, std::int32_t sockets) {
  const Json* value = reader.find("devices");
  if (value == nullptr) return std::vector<DeviceSpec>{};
  if (value->is_number())
    return counted_devices(
        reader.integer("devices", 0, 0, static_cast<std::int64_t>(kDevicesPerNodeMax)), sockets);
  std::vector<DeviceSpec> devices;
  reader.for_each("devices", [&](const Json& element, const std::string& place) -> result<void> {
    TROUPE_TRY(DeviceSpec device, parse_device(element, place));
    devices.push_back(std::move(device));
    return {};
  });
  return devices;
}

/// One entry, its `count` not yet applied.
result<std::pair<NodeSpec, std::int64_t>> parse_node(const Json& value, const std::string& place) {
  ObjectReader reader(value, place);
  NodeSpec node;
  node.name = reader.text("name");
  node.rack = reader.text("rack");
  node.domain = reader.text("domain");
  node.sockets = static_cast<std::int32_t>(reader.integer("sockets", 1, 1, kSocketsMax));
  node.cores = static_cast<std::int32_t>(reader.integer("cores", 1, 0, kCoresMax));
  node.memory = reader.bytes("memory");
  node.named = reader.amounts("named");
  node.labels = reader.texts("labels");
  node.draining = reader.boolean("draining", false);
  const std::int64_t count = reader.integer("count", 0, 1, static_cast<std::int64_t>(kNodesMax));
  TROUPE_TRY(node.devices, parse_devices(reader, node.sockets));
  TROUPE_TRY_VOID(reader.finish());
  if (count > 0 && node.name.find("{}") == std::string::npos)
    return fail(ErrorCode::kInvalidArgument, "{}.name: '{}' has count {} but no {{}}", place,
                node.name, count);
  return std::pair{std::move(node), count};
}

result<void> append(std::vector<NodeSpec>& nodes, NodeSpec node, const std::string& place) {
  if (nodes.size() >= kNodesMax)
    return fail(ErrorCode::kResourceExhausted, "{}: more than {} nodes", place, kNodesMax);
  if (auto checked = validate(node); !checked)
    return fail(checked.error().code, "{}: {}", place, checked.error().message);
  nodes.push_back(std::move(node));
  return {};
}

Json node_json(const NodeSpec& node) {
  Json devices = Json::array();
  for (const DeviceSpec& device : node.devices) {
    Json entry{{"socket", device.socket}};
    if (!device.nic.empty()) entry["nic"] = device.nic;
    if (device.failed) entry["failed"] = true;
    devices.push_back(std::move(entry));
  }
  Json out{{"name", node.name},
           {"sockets", node.sockets},
           {"devices", std::move(devices)},
           {"cores", node.cores},
           {"memory", node.memory.value}};
  if (!node.rack.empty()) out["rack"] = node.rack;
  if (!node.domain.empty()) out["domain"] = node.domain;
  if (!node.labels.empty()) out["labels"] = node.labels;
  if (node.draining) out["draining"] = true;
  for (const auto& [name, amount] : node.named) out["named"][name] = amount.value();
  return out;
}

}  // namespace

result<std::vector<NodeSpec>> parse_topology(std::string_view json, std::string_view source) {
  TROUPE_TRY(const Json root, parse_json_text(json, source));
  ObjectReader reader(root, std::string(source));
  std::vector<NodeSpec> nodes;
  reader.for_each("nodes", [&nodes](const Json& value, const std::string& place) -> result<void> {
    TROUPE_TRY(auto entry, parse_node(value, place));
    auto& [node, count] = entry;
    if (count == 0) return append(nodes, std::move(node), place);
    const std::string pattern = node.name;
    for (std::int64_t i = 0; i < count; ++i) {
      node.name = pattern;
      node.name.replace(pattern.find("{}"), 2, fmt::format("{}", i));
      TROUPE_TRY_VOID(append(nodes, node, place));
    }
    return {};
  });
  TROUPE_TRY_VOID(reader.finish());
  if (nodes.empty()) return fail(ErrorCode::kInvalidArgument, "{}: no nodes", source);
  return nodes;
}

result<std::vector<NodeSpec>> load_topology(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return fail(ErrorCode::kNotFound, "{}: cannot open", path);
  const auto bytes = static_cast<std::int64_t>(file.tellg());
  if (bytes < 0) return fail(ErrorCode::kIo, "{}: not a regular file", path);
  if (static_cast<std::size_t>(bytes) > kTopologyFileBytesMax)
    return fail(ErrorCode::kResourceExhausted, "{}: {} bytes, at most {}", path, bytes,
                kTopologyFileBytesMax);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.seekg(0);
  if (!file.read(text.data(), bytes)) return fail(ErrorCode::kIo, "{}: cannot read", path);
  return parse_topology(text, path);
}

std::string topology_json(const std::vector<NodeSpec>& nodes) {
  Json list = Json::array();
  for (const NodeSpec& node : nodes) list.push_back(node_json(node));
  return Json{{"nodes", std::move(list)}}.dump(1) + "\n";
}

}  // namespace troupe::placement
