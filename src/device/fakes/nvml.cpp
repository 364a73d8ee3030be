// NVML with two devices, as many as a test needs: one of them does not tell how busy it is.
#include <cstdint>
#include <cstdio>

#include "device/nvml_api.h"

namespace sluice::nvml {
namespace {

// Fails from the n-th call on, counted from 1; 0: never. Calls are counted after nvmlInit.
int fail_at = 0;
int calls = 0;
int started = 0;

bool refused() {
  return fail_at != 0 && ++calls >= fail_at;
}

unsigned index_of(Device device) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device)) - 1;
}

}  // namespace

extern "C" {

void fake_nvml_fail_at(int call) {
  fail_at = call;
  calls = 0;
}

int fake_nvml_started() {
  return started;
}

Status nvmlInit_v2() {
  ++started;
  return kSuccess;
}

Status nvmlShutdown() {
  --started;
  return kSuccess;
}

const char* nvmlErrorString(Status status) {
  return status == kLost ? "GPU is lost" : "Unknown Error";
}

Status nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return refused() ? kLost : kSuccess;
}

Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  *device = reinterpret_cast<Device>(std::uintptr_t{index} + 1);
  return refused() ? kLost : kSuccess;
}

Status nvmlDeviceGetName(Device device, char* name, unsigned bytes) {
  std::snprintf(name, bytes, "Fake %u", index_of(device));
  return refused() ? kLost : kSuccess;
}

Status nvmlDeviceGetPciInfo_v3(Device device, Pci* pci) {
  *pci = {};
  pci->bus = 0xc1 + index_of(device);
  return refused() ? kLost : kSuccess;
}

Status nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  const unsigned long long gibibyte = 1ULL << 30;
  *memory = {.total = 80 * gibibyte,
             .free = (60 - index_of(device)) * gibibyte,
             .used = (20 + index_of(device)) * gibibyte};
  return refused() ? kLost : kSuccess;
}

Status nvmlDeviceGetUtilizationRates(Device device, Utilization* utilization) {
  if (refused()) return kLost;
  if (index_of(device) == 1) return kNotSupported;
  *utilization = {.gpu = 37, .memory = 5};
  return kSuccess;
}

}  // extern "C"

}  // namespace sluice::nvml
