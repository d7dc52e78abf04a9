#include "runtime/base/log.hpp"
#include "runtime/cluster/host_inventory.hpp"
#include "runtime/cluster/nvml_abi.hpp"
#include "runtime/cluster/small_file.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <utility>

namespace troupe::runtime {
namespace {

struct CloseLibrary {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

template <class Function>
void find(const Library& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library.get(), name));
}

nvml::Functions functions_of(const Library& library) {
  nvml::Functions all;
  find(library, "nvmlInit_v2", all.init);
  find(library, "nvmlShutdown", all.shutdown);
  find(library, "nvmlDeviceGetCount_v2", all.count);
  find(library, "nvmlDeviceGetHandleByIndex_v2", all.device_at);
  find(library, "nvmlDeviceGetName", all.name);
  find(library, "nvmlDeviceGetUUID", all.uuid);
  find(library, "nvmlDeviceGetMemoryInfo", all.memory);
  find(library, "nvmlDeviceGetPciInfo_v3", all.pci);
  find(library, "nvmlDeviceGetNvLinkState", all.link_state);
  find(library, "nvmlDeviceGetGpuFabricInfo", all.fabric);
  find(library, "nvmlErrorString", all.error_text);
  return all;
}

/// An initialised NVML; shut down with it.
class Nvml {
 public:
  Nvml(const InventoryOptions& options, const nvml::Functions& call)
      : options_(options), call_(call) {}
  ~Nvml() { call_.shutdown(); }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  result<std::vector<HostDevice>> devices() const {
    unsigned count = 0;
    TROUPE_TRY_VOID(check(call_.count(&count), "count of devices"));
    std::vector<HostDevice> devices;
    for (unsigned i = 0; i < count; ++i) {
      nvml::Device handle = nullptr;
      const nvml::Status status = call_.device_at(i, &handle);
      if (status == nvml::kGpuIsLost) {
        log::warn("device {}: the driver has lost it; left out", i);
        continue;
      }
      TROUPE_TRY_VOID(check(status, "handle"));
      TROUPE_TRY(HostDevice device, describe(handle));
      device.index = static_cast<int>(i);
      devices.push_back(std::move(device));
    }
    return devices;
  }

 private:
  result<void> check(nvml::Status status, const char* what) const {
    if (status == nvml::kSuccess) return {};
    const char* text = call_.error_text != nullptr ? call_.error_text(status) : "";
    return fail(ErrorCode::kIo, "{}: {}: error {} {}", options_.nvml_library, what, status, text);
  }

  result<HostDevice> describe(nvml::Device handle) const {
    HostDevice device;
    std::array<char, nvml::kNameBytes> text{};
    TROUPE_TRY_VOID(check(call_.name(handle, text.data(), nvml::kNameBytes - 1), "name"));
    device.model = text.data();
    text.fill('\0');
    TROUPE_TRY_VOID(check(call_.uuid(handle, text.data(), nvml::kNameBytes - 1), "uuid"));
    device.uuid = text.data();
    nvml::Memory memory;
    TROUPE_TRY_VOID(check(call_.memory(handle, &memory), "memory"));
    device.memory_bytes = static_cast<std::int64_t>(memory.total);
    nvml::Pci pci;
    if (call_.pci != nullptr && call_.pci(handle, &pci) == nvml::kSuccess) {
      pci.address.back() = '\0';
      device.pci_address = pci.address.data();
      device.numa_node = numa_node_of(device.pci_address);
    }
    device.fabric = fabric_of(handle);
    return device;
  }

  /// sysfs writes the domain with four digits and in lower case.
  int numa_node_of(std::string address) const {
    std::transform(address.begin(), address.end(), address.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    if (address.starts_with("0000")) address = address.substr(4);
    const auto node =
        read_number_file(options_.sysfs_folder + "/bus/pci/devices/" + address + "/numa_node");
    return node && *node >= 0 ? static_cast<int>(*node) : -1;
  }

  /// Devices of one fabric cluster and clique reach each other over NVLink, across hosts too.
  std::string fabric_of(nvml::Device handle) const {
    nvml::Fabric fabric;
    if (call_.fabric != nullptr && call_.fabric(handle, &fabric) == nvml::kSuccess &&
        fabric.state == nvml::kFabricCompleted &&
        std::any_of(fabric.cluster.begin(), fabric.cluster.end(), [](auto b) { return b != 0; })) {
      std::string name;
      for (const unsigned char byte : fabric.cluster) name += fmt::format("{:02x}", byte);
      return fmt::format("{}.{}", name, fabric.clique);
    }
    if (call_.link_state == nullptr) return {};
    for (unsigned link = 0; link < nvml::kLinksMax; ++link) {
      unsigned active = 0;
      if (call_.link_state(handle, link, &active) == nvml::kSuccess && active == 1)
        return "nvlink";  // within this host
    }
    return {};
  }

  const InventoryOptions& options_;
  const nvml::Functions& call_;
};

/// Those that CUDA would show, in its order: entries up to the first that names no device.
result<std::vector<HostDevice>> visible_of(std::vector<HostDevice> devices,
                                           const std::string& visible) {
  std::vector<HostDevice> shown;
  std::istringstream in(visible);
  for (std::string entry; std::getline(in, entry, ',');) {
    if (entry.starts_with("MIG-"))
      return fail(ErrorCode::kUnsupported,
                  "CUDA_VISIBLE_DEVICES: {}: slices of a device are not supported", entry);
    const auto number = parse_whole(entry);
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const HostDevice& device) {
      if (number) return device.index == *number;
      return entry.starts_with("GPU-") && device.uuid.starts_with(entry);
    });
    const bool twice = found != devices.end() &&
                       std::any_of(shown.begin(), shown.end(), [&found](const HostDevice& one) {
                         return one.uuid == found->uuid;
                       });
    if (found == devices.end() || twice) break;
    shown.push_back(*found);
  }
  for (std::size_t i = 0; i < shown.size(); ++i) shown[i].index = static_cast<int>(i);
  return shown;
}

}  // namespace

result<std::vector<HostDevice>> discover_devices(const InventoryOptions& options) {
  const Library library(::dlopen(options.nvml_library.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!library) return std::vector<HostDevice>();
  const nvml::Functions call = functions_of(library);
  if (call.init == nullptr || call.shutdown == nullptr || call.count == nullptr ||
      call.device_at == nullptr || call.name == nullptr || call.uuid == nullptr ||
      call.memory == nullptr)
    return fail(ErrorCode::kUnsupported, "{}: not NVML, or older than its version 2 functions",
                options.nvml_library);
  const nvml::Status status = call.init();
  if (status == nvml::kDriverNotLoaded) return std::vector<HostDevice>();
  if (status != nvml::kSuccess)
    return fail(ErrorCode::kIo, "{}: init: error {} {}", options.nvml_library, status,
                call.error_text != nullptr ? call.error_text(status) : "");
  TROUPE_TRY(auto devices, Nvml(options, call).devices());
  std::optional<std::string> visible = options.visible_devices;
  if (!visible) {
    if (const char* own = std::getenv("CUDA_VISIBLE_DEVICES")) visible = own;
  }
  return visible ? visible_of(std::move(devices), *visible) : std::move(devices);
}

}  // namespace troupe::runtime
