// A library that looks like libnvidia-ml.so.1, for tests of device discovery on machines without
// one. FAKE_NVML says what it has: a count of devices, or `no-driver`, `broken`.

#include "runtime/cluster/nvml_abi.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace nvml = troupe::runtime::nvml;

namespace {

std::string mode() {
  const char* text = std::getenv("FAKE_NVML");
  return text != nullptr ? text : "0";
}

unsigned index_of(nvml::Device device) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device)) - 1;
}

nvml::Status copy(char* target, unsigned size, const std::string& text) {
  if (text.size() + 1 > size) return 7;
  std::memcpy(target, text.c_str(), text.size() + 1);
  return nvml::kSuccess;
}

}  // namespace

extern "C" {

nvml::Status nvmlInit_v2() {
  if (mode() == "no-driver") return nvml::kDriverNotLoaded;
  return mode() == "broken" ? 999 : nvml::kSuccess;
}
nvml::Status nvmlShutdown() { return nvml::kSuccess; }
const char* nvmlErrorString(nvml::Status) { return "made up"; }
nvml::Status nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(std::strtoul(mode().c_str(), nullptr, 10));
  return nvml::kSuccess;
}
nvml::Status nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml::Device* device) {
  if (mode().find("lost") != std::string::npos && index == 0) return nvml::kGpuIsLost;
  *device = reinterpret_cast<nvml::Device>(std::uintptr_t{index} + 1);
  return nvml::kSuccess;
}
nvml::Status nvmlDeviceGetName(nvml::Device, char* name, unsigned size) {
  return copy(name, size, "Fake GPU 80GB");
}
nvml::Status nvmlDeviceGetUUID(nvml::Device device, char* uuid, unsigned size) {
  return copy(uuid, size, "GPU-0000000" + std::to_string(index_of(device)));
}
nvml::Status nvmlDeviceGetMemoryInfo(nvml::Device, nvml::Memory* memory) {
  memory->total = 80ULL << 30U;
  return nvml::kSuccess;
}
nvml::Status nvmlDeviceGetPciInfo_v3(nvml::Device device, nvml::Pci* pci) {
  std::snprintf(pci->address.data(), pci->address.size(), "00000000:%02X:00.0",
                0x3A + index_of(device));
  return nvml::kSuccess;
}
nvml::Status nvmlDeviceGetNvLinkState(nvml::Device, unsigned link, unsigned* active) {
  *active = link == 3 ? 1 : 0;
  return nvml::kSuccess;
}
nvml::Status nvmlDeviceGetGpuFabricInfo(nvml::Device device, nvml::Fabric* fabric) {
  if (index_of(device) < 2) return nvml::kNotSupported;
  fabric->cluster.fill(0xAB);
  fabric->clique = 7;
  fabric->state = nvml::kFabricCompleted;
  return nvml::kSuccess;
}
}
