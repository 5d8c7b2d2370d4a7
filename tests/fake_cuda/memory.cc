// Virtual memory management, host registration, and the way from an address to its bytes.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

constexpr size_t kGranularity = size_t{2} << 20;
// Registered memory is seen by devices at its address with this bit, which no address of a process
// has. So a missing call of cuMemHostGetDevicePointer is found.
constexpr CUdeviceptr kAlias = CUdeviceptr{1} << 60;

struct Allocation {
  ~Allocation() {
    close(file);
    if (created && !on_host) Charged(device) -= bytes;
  }
  int file = -1;
  size_t bytes = 0;
  int device = 0;
  bool on_host = false;
  bool created = false;
};

struct Mapping {
  size_t bytes;
  std::shared_ptr<Allocation> allocation;
  // Null until a device may access it.
  std::shared_ptr<Shadow> shadow;
  bool seen_by_host;  // at the address itself
};

struct Memory {
  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Allocation>> handles;
  CUmemGenericAllocationHandle next_handle = 1;
  std::map<CUdeviceptr, size_t> reserved;
  std::map<CUdeviceptr, Mapping> mapped;
  std::map<CUdeviceptr, size_t> registered;
  void (*after_unmap)() = nullptr;
  std::atomic<int> torn{0};
};

Memory& memory() {
  static Memory* instance = new Memory;
  return *instance;
}

// The entry of `ranges` (by begin) that holds `address`, or the end.
template <typename Map>
auto Holding(Map& ranges, CUdeviceptr address, size_t (*size)(const typename Map::mapped_type&)) {
  auto entry = ranges.upper_bound(address);
  if (entry == ranges.begin()) return ranges.end();
  --entry;
  return address < entry->first + size(entry->second) ? entry : ranges.end();
}

size_t SizeOf(const size_t& bytes) {
  return bytes;
}
size_t SizeOfMapping(const Mapping& mapping) {
  return mapping.bytes;
}

bool Overlaps(const std::map<CUdeviceptr, size_t>& ranges, CUdeviceptr begin, size_t bytes) {
  for (const auto& [at, size] : ranges) {
    if (at < begin + bytes && begin < at + size) return true;
  }
  return false;
}

void* Pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

bool NoAccess(CUdeviceptr at, size_t bytes) {
  return mmap(Pointer(at), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

CUresult Keep(std::shared_ptr<Allocation> allocation, CUmemGenericAllocationHandle* handle) {
  std::lock_guard lock(memory().mutex);
  *handle = memory().next_handle++;
  memory().handles[*handle] = std::move(allocation);
  return CUDA_SUCCESS;
}

// Gives `mapping` the bytes of its allocation, for devices and, at its address, for the host.
bool Show(CUdeviceptr at, Mapping* mapping, bool to_device, bool to_host) {
  const int file = mapping->allocation->file;
  if (to_host && mmap(Pointer(at), mapping->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      file, 0) == MAP_FAILED) {
    return false;
  }
  mapping->seen_by_host = mapping->seen_by_host || to_host;
  if (!to_device || mapping->shadow != nullptr) return true;
  void* shadow = mmap(nullptr, mapping->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shadow == MAP_FAILED) return false;
  mapping->shadow = std::make_shared<Shadow>();
  mapping->shadow->at = static_cast<char*>(shadow);
  mapping->shadow->bytes = mapping->bytes;
  return true;
}

bool Unmap(CUdeviceptr at, const Mapping& mapping) {
  if (mapping.shadow != nullptr && mapping.shadow->users > 0) ++memory().torn;
  return !mapping.seen_by_host || NoAccess(at, mapping.bytes);
}

// The mappings that make up [at, at + bytes) exactly, one or several, without a gap; an empty run:
// none do.
auto WholeMappings(CUdeviceptr at, size_t bytes) {
  auto& mapped = memory().mapped;
  const auto first = mapped.find(at);
  auto end = first;
  CUdeviceptr reached = at;
  while (end != mapped.end() && end->first == reached && reached < at + bytes) {
    reached += (end++)->second.bytes;
  }
  return bytes > 0 && reached == at + bytes ? std::pair(first, end) : std::pair(first, first);
}

std::shared_ptr<Allocation> Behind(CUmemGenericAllocationHandle handle) {
  const auto known = memory().handles.find(handle);
  return known == memory().handles.end() ? nullptr : known->second;
}

}  // namespace

Shadow::~Shadow() {
  if (at != nullptr) munmap(at, bytes);
}

std::shared_ptr<Shadow> MakeShadow(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto shadow = std::make_shared<Shadow>();
  shadow->at = static_cast<char*>(at);
  shadow->bytes = bytes;
  return shadow;
}

Resolved::~Resolved() {
  for (const auto& shadow : shadows_) --shadow->users;
}

void Resolved::Add(char* begin, size_t bytes, std::shared_ptr<Shadow> shadow) {
  spans_.push_back({begin, bytes});
  if (shadow == nullptr) return;
  ++shadow->users;
  shadows_.push_back(std::move(shadow));
}

bool Resolve(CUdeviceptr address, size_t bytes, Reach reach, Resolved* found) {
  std::lock_guard lock(memory().mutex);
  while (bytes > 0) {
    CUdeviceptr begin = 0;
    std::shared_ptr<Shadow> shadow;
    const auto mapping = Holding(memory().mapped, address, SizeOfMapping);
    if (mapping != memory().mapped.end()) {
      begin = mapping->first;
      shadow = mapping->second.shadow;
      if (shadow == nullptr) return false;
    } else {
      shadow = ShadowOfPiece(address, &begin);
    }
    if (shadow == nullptr) {
      if (Holding(memory().reserved, address, SizeOf) != memory().reserved.end()) return false;
      const CUdeviceptr on_host = address & ~kAlias;
      const auto registered = Holding(memory().registered, on_host, SizeOf);
      const bool known = address != on_host && registered != memory().registered.end() &&
                         on_host + bytes <= registered->first + registered->second;
      if (!known && reach == Reach::kDevice) return false;
      found->Add(static_cast<char*>(Pointer(on_host)), bytes, nullptr);
      return true;
    }
    const size_t offset = address - begin;
    const size_t part = std::min(bytes, shadow->bytes - offset);
    found->Add(shadow->at + offset, part, shadow);
    address += part;
    bytes -= part;
  }
  return true;
}

bool Locate(CUdeviceptr address, Place* place) {
  if (LocatePiece(address, place)) return true;
  std::lock_guard lock(memory().mutex);
  const auto mapping = Holding(memory().mapped, address, SizeOfMapping);
  if (mapping != memory().mapped.end()) {
    const Allocation& allocation = *mapping->second.allocation;
    *place = {mapping->first, mapping->second.bytes, allocation.device, allocation.on_host, false};
    return true;
  }
  const auto registered = Holding(memory().registered, address & ~kAlias, SizeOf);
  if (registered == memory().registered.end()) return false;
  *place = {registered->first | (address & kAlias), registered->second, 0, true, false};
  return true;
}

std::atomic<uint64_t>* ResolveWord(CUdeviceptr address) {
  if ((address & kAlias) == 0 || address % sizeof(uint64_t) != 0) return nullptr;
  std::lock_guard lock(memory().mutex);
  address &= ~kAlias;
  if (Holding(memory().registered, address, SizeOf) == memory().registered.end()) return nullptr;
  return static_cast<std::atomic<uint64_t>*>(Pointer(address));
}

}  // namespace fake_cuda

using fake_cuda::memory;
using fake_cuda::Pointer;

int FakeCudaTornKernels() {
  return memory().torn;
}

void FakeCudaAfterUnmap(void (*call)()) {
  std::lock_guard lock(memory().mutex);
  memory().after_unmap = call;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  FAKE_CUDA_CONTEXT("cuMemGetInfo");
  *total = fake_cuda::DeviceBytes();
  *free = *total - fake_cuda::Charged(context->device);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  FAKE_CUDA_ENTER("cuMemGetAllocationGranularity");
  *granularity = fake_cuda::kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* base, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  FAKE_CUDA_ENTER("cuMemAddressReserve");
  if (bytes == 0 || bytes % fake_cuda::kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *base = reinterpret_cast<CUdeviceptr>(at);
  std::lock_guard lock(memory().mutex);
  memory().reserved[*base] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes) {
  FAKE_CUDA_ENTER("cuMemAddressFree");
  std::lock_guard lock(memory().mutex);
  const auto range = memory().reserved.find(base);
  if (range == memory().reserved.end() || range->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = memory().mapped.lower_bound(base);
  if (mapping != memory().mapped.end() && mapping->first < base + bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  memory().reserved.erase(range);
  munmap(Pointer(base), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* prop, unsigned long long) {
  FAKE_CUDA_ENTER("cuMemCreate");
  if (bytes == 0 || bytes % fake_cuda::kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = std::make_shared<fake_cuda::Allocation>();
  allocation->on_host = prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (allocation->on_host && !fake_cuda::HasHostNuma()) return CUDA_ERROR_NOT_SUPPORTED;
  allocation->device = allocation->on_host ? 0 : prop->location.id;
  if (allocation->device < 0 || allocation->device >= fake_cuda::DeviceCount()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  // An importer in another process reads the kind and the device from the name.
  const std::string name = "fakecuda." + std::string(allocation->on_host ? "host" : "device") +
                           "." + std::to_string(allocation->device);
  allocation->file = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (allocation->file < 0 || ftruncate(allocation->file, static_cast<off_t>(bytes)) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  allocation->bytes = bytes;
  if (!allocation->on_host) {
    auto& used = fake_cuda::Charged(allocation->device);
    if ((used += bytes) > fake_cuda::DeviceBytes()) {
      used -= bytes;
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  allocation->created = true;
  return fake_cuda::Keep(std::move(allocation), handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  FAKE_CUDA_ENTER("cuMemRelease");
  std::lock_guard lock(memory().mutex);
  return memory().handles.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType, unsigned long long) {
  FAKE_CUDA_ENTER("cuMemExportToShareableHandle");
  std::lock_guard lock(memory().mutex);
  const auto allocation = fake_cuda::Behind(handle);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Not closed on exec, as the driver's.
  const int copy = dup(allocation->file);
  if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  memcpy(shareable, &copy, sizeof(copy));
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType) {
  FAKE_CUDA_ENTER("cuMemImportFromShareableHandle");
  const int file = static_cast<int>(reinterpret_cast<intptr_t>(os_handle));
  char name[64] = "";
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  if (readlink(link.c_str(), name, sizeof(name) - 1) < 0) return CUDA_ERROR_INVALID_VALUE;
  char place[16] = "";
  int device = 0;
  if (sscanf(name, "/memfd:fakecuda.%15[a-z].%d", place, &device) != 2) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct stat status;
  if (fstat(file, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = std::make_shared<fake_cuda::Allocation>();
  allocation->file = fcntl(file, F_DUPFD_CLOEXEC, 0);
  allocation->bytes = static_cast<size_t>(status.st_size);
  allocation->device = device;
  allocation->on_host = strcmp(place, "host") == 0;
  return fake_cuda::Keep(std::move(allocation), handle);
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  FAKE_CUDA_ENTER("cuMemMap");
  std::lock_guard lock(memory().mutex);
  const auto allocation = fake_cuda::Behind(handle);
  if (allocation == nullptr || offset != 0 || bytes == 0 || bytes > allocation->bytes ||
      at % fake_cuda::kGranularity % 4096 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto range = fake_cuda::Holding(memory().reserved, at, fake_cuda::SizeOf);
  if (range == memory().reserved.end() || at + bytes > range->first + range->second) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const auto& [begin, mapping] : memory().mapped) {
    if (begin < at + bytes && at < begin + mapping.bytes) return CUDA_ERROR_INVALID_VALUE;
  }
  memory().mapped[at] = {bytes, allocation, nullptr, false};
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  FAKE_CUDA_ENTER("cuMemSetAccess");
  std::lock_guard lock(memory().mutex);
  const auto [first, end] = fake_cuda::WholeMappings(at, bytes);
  if (first == end) return CUDA_ERROR_INVALID_VALUE;
  bool to_host = false;
  bool to_device = false;
  for (size_t i = 0; i < count; ++i) {
    const bool device = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    to_host = to_host || !device;
    to_device = to_device || device;
  }
  for (auto mapping = first; mapping != end; ++mapping) {
    if (to_host && !mapping->second.allocation->on_host) return CUDA_ERROR_INVALID_VALUE;
    if (!fake_cuda::Show(mapping->first, &mapping->second, to_device, to_host)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  FAKE_CUDA_ENTER("cuMemUnmap");
  std::unique_lock lock(memory().mutex);
  const auto [first, end] = fake_cuda::WholeMappings(at, bytes);
  if (first == end) return CUDA_ERROR_INVALID_VALUE;
  for (auto mapping = first; mapping != end; ++mapping) {
    if (!fake_cuda::Unmap(mapping->first, mapping->second)) return CUDA_ERROR_OPERATING_SYSTEM;
  }
  memory().mapped.erase(first, end);
  auto* const call = std::exchange(memory().after_unmap, nullptr);
  lock.unlock();
  if (call != nullptr) call();
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void* begin, size_t bytes, unsigned int) {
  FAKE_CUDA_CONTEXT("cuMemHostRegister");
  const auto at = reinterpret_cast<CUdeviceptr>(begin);
  std::lock_guard lock(memory().mutex);
  if (fake_cuda::Overlaps(memory().registered, at, bytes)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  memory().registered[at] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* begin) {
  FAKE_CUDA_CLEAN_UP("cuMemHostUnregister");
  fake_cuda::AwaitNoHeldStream();
  std::lock_guard lock(memory().mutex);
  const auto known = memory().registered.find(reinterpret_cast<CUdeviceptr>(begin));
  if (known == memory().registered.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  memory().registered.erase(known);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* on_device, void* pointer, unsigned int) {
  FAKE_CUDA_CONTEXT("cuMemHostGetDevicePointer");
  const auto at = reinterpret_cast<CUdeviceptr>(pointer);
  std::lock_guard lock(memory().mutex);
  if (fake_cuda::Holding(memory().registered, at, fake_cuda::SizeOf) == memory().registered.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *on_device = at | fake_cuda::kAlias;
  return CUDA_SUCCESS;
}
