#include "runtime/cluster/topology_file.hpp"

#include "runtime/cluster/small_file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace troupe::runtime {
namespace {

using Json = nlohmann::json;

/// One object of the file; remembers which keys were asked for.
class Section {
 public:
  Section(std::string place, const Json& json) : place_(std::move(place)), json_(json) {}

  result<void> check_object() const {
    if (json_.is_object()) return {};
    return fail(ErrorCode::kConfig, "{}: wanted an object, not {}", place_, json_.type_name());
  }
  result<void> text(const char* key, std::string& value) {
    const Json* found = find(key);
    if (found == nullptr) return {};
    if (!found->is_string()) return wrong(key, "a text", *found);
    value = found->get<std::string>();
    if (value.size() > 256)
      return fail(ErrorCode::kConfig, "{}.{}: {} bytes, at most 256", place_, key, value.size());
    return {};
  }
  template <class T>
  result<void> whole(const char* key, T& value, std::int64_t low, std::int64_t high) {
    const Json* found = find(key);
    if (found == nullptr) return {};
    if (!found->is_number_integer()) return wrong(key, "a whole number", *found);
    const auto number = found->get<std::int64_t>();
    if (number < low || number > high)
      return fail(ErrorCode::kConfig, "{}.{}: {}, wanted {}..{}", place_, key, number, low, high);
    value = static_cast<T>(number);
    return {};
  }
  result<void> real(const char* key, double& value) {
    const Json* found = find(key);
    if (found == nullptr) return {};
    if (!found->is_number()) return wrong(key, "a number", *found);
    const auto number = found->get<double>();
    if (!(number > 0 && number <= 8192))
      return wrong(key, "a number above 0, at most 8192", *found);
    value = number;
    return {};
  }
  /// Null when the file does not have it.
  const Json* find(const char* key) {
    known_.emplace_back(key);
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  result<void> no_other_keys() const {
    for (const auto& item : json_.items()) {
      if (std::find(known_.begin(), known_.end(), item.key()) == known_.end())
        return fail(ErrorCode::kConfig, "{}: unknown key {}", place_, item.key());
    }
    return {};
  }
  tl::unexpected<Error> wrong(const char* key, const char* wanted, const Json& found) const {
    return fail(ErrorCode::kConfig, "{}.{}: wanted {}, not {}", place_, key, wanted,
                found.dump().substr(0, 80));
  }
  const std::string& place() const { return place_; }

 private:
  std::string place_;
  const Json& json_;
  std::vector<std::string> known_;
};

result<void> read_device(Section& section, HostDevice& device) {
  TROUPE_TRY_VOID(section.check_object());
  TROUPE_TRY_VOID(section.text("model", device.model));
  TROUPE_TRY_VOID(section.whole("memory_bytes", device.memory_bytes, 1, std::int64_t{1} << 50));
  TROUPE_TRY_VOID(section.whole("socket", device.socket, -1, 4096));
  TROUPE_TRY_VOID(section.whole("numa_node", device.numa_node, -1, 4096));
  TROUPE_TRY_VOID(section.text("fabric", device.fabric));
  TROUPE_TRY_VOID(section.text("uuid", device.uuid));
  return section.no_other_keys();
}

/// Entry i changes device i; entries beyond those that were found are refused.
result<void> read_devices(Section& top, HostInventory& host) {
  const Json* list = top.find("devices");
  if (list == nullptr) return {};
  if (!list->is_array()) return top.wrong("devices", "a list", *list);
  if (list->size() > host.devices.size())
    return fail(ErrorCode::kConfig, "{}.devices: {} entries, this host has {} devices", top.place(),
                list->size(), host.devices.size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    Section section(fmt::format("{}.devices[{}]", top.place(), i), (*list)[i]);
    TROUPE_TRY_VOID(read_device(section, host.devices[i]));
  }
  return {};
}

/// The list replaces what was found.
result<void> read_nics(Section& top, HostInventory& host) {
  const Json* list = top.find("nics");
  if (list == nullptr) return {};
  if (!list->is_array() || list->size() > 256)
    return top.wrong("nics", "a list of at most 256", *list);
  host.nics.clear();
  for (std::size_t i = 0; i < list->size(); ++i) {
    Section section(fmt::format("{}.nics[{}]", top.place(), i), (*list)[i]);
    HostNic nic{.name = {}, .kind = "ethernet"};
    TROUPE_TRY_VOID(section.check_object());
    TROUPE_TRY_VOID(section.text("name", nic.name));
    TROUPE_TRY_VOID(section.text("kind", nic.kind));
    TROUPE_TRY_VOID(section.whole("numa_node", nic.numa_node, -1, 4096));
    TROUPE_TRY_VOID(
        section.whole("megabits_per_second", nic.megabits_per_second, 0, std::int64_t{1} << 40));
    TROUPE_TRY_VOID(section.no_other_keys());
    if (nic.name.empty()) return fail(ErrorCode::kConfig, "{}: name is missing", section.place());
    host.nics.push_back(std::move(nic));
  }
  return {};
}

result<void> read_labels(Section& top, HostInventory& host) {
  const Json* labels = top.find("labels");
  if (labels == nullptr) return {};
  if (!labels->is_object() || labels->size() > 256)
    return top.wrong("labels", "an object of at most 256 texts", *labels);
  for (const auto& item : labels->items()) {
    if (!item.value().is_string() || item.key().empty())
      return top.wrong("labels", "an object of texts", *labels);
    host.labels[item.key()] = item.value().get<std::string>();
  }
  return {};
}

}  // namespace

result<void> apply_topology_text(const std::string& path, const std::string& text,
                                 HostInventory& host) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return fail(ErrorCode::kConfig, "{}: not JSON", path);
  Section top(path, json);
  TROUPE_TRY_VOID(top.check_object());
  HostInventory changed = host;
  TROUPE_TRY_VOID(top.text("host", changed.host));
  TROUPE_TRY_VOID(top.text("rack", changed.rack));
  TROUPE_TRY_VOID(top.real("cpus", changed.cpus));
  TROUPE_TRY_VOID(top.whole("memory_bytes", changed.memory_bytes, 1, std::int64_t{1} << 50));
  TROUPE_TRY_VOID(read_devices(top, changed));
  TROUPE_TRY_VOID(read_nics(top, changed));
  TROUPE_TRY_VOID(read_labels(top, changed));
  TROUPE_TRY_VOID(top.no_other_keys());
  host = std::move(changed);
  return {};
}

result<void> apply_topology_file(const std::string& path, HostInventory& host) {
  const auto text = read_small_file(path);
  if (!text) return fail(ErrorCode::kNotFound, "topology file {}: cannot be read", path);
  return apply_topology_text(path, *text, host);
}

}  // namespace troupe::runtime
