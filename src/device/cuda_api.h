// What sluice calls of the CUDA driver, declared anew: types and signatures of libcuda.so.1 as
// its documentation ("CUDA Driver API", virtual memory management) has them. No toolkit is needed
// to build this, and no driver to start it: cuda_driver.h binds the functions at run time.
#pragma once

#include <cstddef>

namespace sluice::cuda {

using Status = int;                  // CUresult
using Device = int;                  // CUdevice
using Context = void*;               // CUcontext
using Stream = void*;                // CUstream
using Pointer = unsigned long long;  // CUdeviceptr
using Handle = unsigned long long;   // CUmemGenericAllocationHandle

inline constexpr Status kSuccess = 0;
inline constexpr Status kInvalidValue = 1;
inline constexpr Status kOutOfMemory = 2;
inline constexpr Status kNoDevice = 100;

// CUdevice_attribute
inline constexpr int kHasVirtualMemory = 102;
inline constexpr int kHasFileHandles = 103;

inline constexpr int kPinned = 1;          // CUmemAllocationType
inline constexpr int kOnDevice = 1;        // CUmemLocationType
inline constexpr int kFileDescriptor = 1;  // CUmemAllocationHandleType
inline constexpr int kReadWrite = 3;       // CUmemAccess_flags
inline constexpr int kMinimum = 0;         // CUmemAllocationGranularity_flags

struct Location {
  int type = kOnDevice;
  int id = 0;
};

struct AllocationFlags {
  unsigned char compression = 0;
  unsigned char gpu_direct_rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};

struct Allocation {  // CUmemAllocationProp
  int type = kPinned;
  int handle_types = kFileDescriptor;
  Location location;
  void* win32 = nullptr;
  AllocationFlags flags;
};
static_assert(sizeof(Allocation) == 32 && offsetof(Allocation, win32) == 16);

struct Access {  // CUmemAccessDesc
  Location location;
  int flags = kReadWrite;
};
static_assert(sizeof(Access) == 12);

// One member a function, named after it.
struct Api {
  Status (*init)(unsigned flags);
  Status (*driver_version)(int* version);
  Status (*error_name)(Status status, const char** name);
  Status (*device_count)(int* count);
  Status (*device_get)(Device* device, int ordinal);
  Status (*device_name)(char* name, int bytes, Device device);
  Status (*device_total)(std::size_t* bytes, Device device);
  Status (*device_attribute)(int* value, int attribute, Device device);
  Status (*context_retain)(Context* context, Device device);
  Status (*context_release)(Device device);
  Status (*context_set)(Context context);
  Status (*memory_info)(std::size_t* free, std::size_t* total);
  Status (*granularity)(std::size_t* bytes, const Allocation* allocation, int option);
  Status (*reserve)(Pointer* address, std::size_t bytes, std::size_t alignment, Pointer wish,
                    unsigned long long flags);
  Status (*free_address)(Pointer address, std::size_t bytes);
  Status (*create)(Handle* handle, std::size_t bytes, const Allocation* allocation,
                   unsigned long long flags);
  Status (*release)(Handle handle);
  Status (*map)(Pointer address, std::size_t bytes, std::size_t offset, Handle handle,
                unsigned long long flags);
  Status (*unmap)(Pointer address, std::size_t bytes);
  Status (*set_access)(Pointer address, std::size_t bytes, const Access* access, std::size_t count);
  Status (*export_handle)(void* shareable, Handle handle, int type, unsigned long long flags);
  Status (*import_handle)(Handle* handle, void* shareable, int type);
  Status (*copy_to_host)(void* host, Pointer device, std::size_t bytes);
  Status (*copy_to_device)(Pointer device, const void* host, std::size_t bytes);
  Status (*copy_on_device)(Pointer to, Pointer from, std::size_t bytes);
  Status (*fill)(Pointer device, unsigned char value, std::size_t bytes);
  Status (*synchronize)(Stream stream);
};

}  // namespace sluice::cuda
