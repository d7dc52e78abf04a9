#pragma once

// The few types and functions of NVIDIA's management library that discovery calls, as its binary
// interface defines them; the library itself is loaded at run time where it is present.
//
// **Threads:** declarations only.
// **Invariants:** layouts and names are those of `libnvidia-ml.so.1`; a function that a driver does
// not have is null, and all but the first seven may be.

#include <array>

namespace troupe::runtime::nvml {

using Status = int;
using Device = void*;

inline constexpr Status kSuccess = 0;
inline constexpr Status kNotSupported = 3;
inline constexpr Status kDriverNotLoaded = 9;
inline constexpr Status kGpuIsLost = 15;

inline constexpr unsigned kNameBytes = 96;
inline constexpr unsigned kLinksMax = 18;
inline constexpr unsigned char kFabricCompleted = 3;

struct Memory {
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

struct Pci {
  std::array<char, 16> address_legacy{};
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  unsigned device_id = 0;
  unsigned subsystem_id = 0;
  std::array<char, 32> address{};  ///< `00000000:3B:00.0`
};

struct Fabric {
  std::array<unsigned char, 16> cluster{};
  Status status = 0;
  unsigned clique = 0;
  unsigned char state = 0;
};

/// nvmlInit_v2, nvmlShutdown, nvmlDeviceGetCount_v2, …
struct Functions {
  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  Status (*count)(unsigned*) = nullptr;
  Status (*device_at)(unsigned, Device*) = nullptr;
  Status (*name)(Device, char*, unsigned) = nullptr;
  Status (*uuid)(Device, char*, unsigned) = nullptr;
  Status (*memory)(Device, Memory*) = nullptr;
  Status (*pci)(Device, Pci*) = nullptr;
  Status (*link_state)(Device, unsigned, unsigned*) = nullptr;
  Status (*fabric)(Device, Fabric*) = nullptr;
  const char* (*error_text)(Status) = nullptr;
};

}  // namespace troupe::runtime::nvml
