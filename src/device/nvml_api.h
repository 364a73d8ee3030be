// What sluice calls of NVML, declared anew after its documentation.
#pragma once

namespace sluice::nvml {

using Status = int;    // nvmlReturn_t
using Device = void*;  // nvmlDevice_t

inline constexpr Status kSuccess = 0;
inline constexpr Status kNotSupported = 3;
inline constexpr Status kLost = 15;  // NVML_ERROR_GPU_IS_LOST

struct Memory {  // nvmlMemory_t, bytes
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};
struct Utilization {  // nvmlUtilization_t, per cent
  unsigned gpu = 0;
  unsigned memory = 0;
};

struct Pci {  // nvmlPciInfo_t
  char bus_id_legacy[16] = {};
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  unsigned device_id = 0;
  unsigned subsystem_id = 0;
  char bus_id[32] = {};
};

struct Api {
  Status (*init)();
  Status (*shutdown)();
  const char* (*error_string)(Status status);
  Status (*device_count)(unsigned* count);
  Status (*device_by_index)(unsigned index, Device* device);
  Status (*device_name)(Device device, char* name, unsigned bytes);
  Status (*pci)(Device device, Pci* pci);
  Status (*memory)(Device device, Memory* memory);
  Status (*utilization)(Device device, Utilization* utilization);
};

}  // namespace sluice::nvml
