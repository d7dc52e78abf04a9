#include "placement/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::placement {
namespace {

constexpr std::array<std::string_view, 5> kLevels{"rack", "domain", "node", "socket", "device"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The run of digits at `at`, without leading zeros.
std::string_view digits_at(std::string_view text, std::size_t& at) {
  const std::size_t begin = at;
  while (at < text.size() && is_digit(text[at])) ++at;
  std::string_view run = text.substr(begin, at - begin);
  while (run.size() > 1 && run.front() == '0') run.remove_prefix(1);
  return run;
}

result<void> check_name(const std::string& node, std::string_view field, const std::string& name) {
  if (name.size() > kNameBytesMax)
    return fail(ErrorCode::kInvalidArgument, "node {}: {} has {} bytes, at most {}",
                node.substr(0, 40), field, name.size(), kNameBytesMax);
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  if (control) return fail(ErrorCode::kInvalidArgument, "node: {} has a control character", field);
  return {};
}

result<void> check_devices(const NodeSpec& node) {
  if (node.devices.size() > kDevicesPerNodeMax)
    return fail(ErrorCode::kInvalidArgument, "node {}: {} devices, at most {}", node.name,
                node.devices.size(), kDevicesPerNodeMax);
  for (std::size_t i = 0; i < node.devices.size(); ++i) {
    const DeviceSpec& device = node.devices[i];
    if (device.socket < 0 || device.socket >= node.sockets)
      return fail(ErrorCode::kInvalidArgument, "node {}: device {}: socket {} of {}", node.name, i,
                  device.socket, node.sockets);
    TROUPE_TRY_VOID(check_name(node.name, "nic", device.nic));
  }
  return {};
}

}  // namespace

std::string_view level_name(Level level) {
  const auto index = static_cast<std::size_t>(level);
  return index < kLevels.size() ? kLevels[index] : "unknown";
}

result<Level> parse_level(std::string_view text) {
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    if (kLevels[i] == text) return static_cast<Level>(i);
  }
  return fail(ErrorCode::kInvalidArgument,
              "unknown level '{}': want rack, domain, node, socket or device", text);
}

std::strong_ordering natural_order(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::string_view left = digits_at(a, i);
      const std::string_view right = digits_at(b, j);
      if (left.size() != right.size()) return left.size() <=> right.size();
      if (const int order = left.compare(right); order != 0) return order <=> 0;
      continue;
    }
    if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) <=> static_cast<unsigned char>(b[j]);
    ++i;
    ++j;
  }
  if (const auto rest = (a.size() - i) <=> (b.size() - j); rest != 0) return rest;
  return a.compare(b) <=> 0;  // `a01` and `a1` are told apart by their bytes
}

result<void> validate(const NodeSpec& node) {
  if (node.name.empty()) return fail(ErrorCode::kInvalidArgument, "node: the name is empty");
  TROUPE_TRY_VOID(check_name(node.name, "name", node.name));
  TROUPE_TRY_VOID(check_name(node.name, "rack", node.rack));
  TROUPE_TRY_VOID(check_name(node.name, "domain", node.domain));
  if (node.sockets < 1 || node.sockets > kSocketsMax)
    return fail(ErrorCode::kInvalidArgument, "node {}: {} sockets, want 1 to {}", node.name,
                node.sockets, kSocketsMax);
  if (node.cores < 0 || node.cores > kCoresMax)
    return fail(ErrorCode::kInvalidArgument, "node {}: {} cores, want 0 to {}", node.name,
                node.cores, kCoresMax);
  if (node.memory < Bytes{0} || node.memory > kMemoryMax)
    return fail(ErrorCode::kInvalidArgument, "node {}: memory {} bytes, want 0 to {}", node.name,
                node.memory.value, kMemoryMax.value);
  TROUPE_TRY_VOID(check_devices(node));
  for (const auto& [name, amount] : node.named) {
    if (name.empty())
      return fail(ErrorCode::kInvalidArgument, "node {}: a named resource has no name", node.name);
    TROUPE_TRY_VOID(check_name(node.name, "named resource", name));
    if (amount < Amount{} || amount > kAmountMax)
      return fail(ErrorCode::kInvalidArgument, "node {}: {} is {}, want 0 to {}", node.name, name,
                  to_string(amount), to_string(kAmountMax));
  }
  for (const auto& [label, value] : node.labels) {
    TROUPE_TRY_VOID(check_name(node.name, "label", label));
    TROUPE_TRY_VOID(check_name(node.name, "label value", value));
  }
  return {};
}

std::int32_t socket_of_core(const NodeSpec& node, std::int32_t core) {
  const std::int32_t each = node.cores / node.sockets;
  const std::int32_t longer = node.cores % node.sockets;  // sockets that have one core more
  const std::int32_t in_longer = longer * (each + 1);
  if (core < in_longer) return core / (each + 1);
  return longer + (core - in_longer) / each;
}

}  // namespace troupe::placement
