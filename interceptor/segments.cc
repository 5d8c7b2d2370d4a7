#include "interceptor/segments.h"

#include <pthread.h>

#include <algorithm>

#include "interceptor/account.h"
#include "interceptor/allocate.h"
#include "interceptor/devices.h"
#include "interceptor/elastic_backing.h"
#include "interceptor/hooks.h"
#include "interceptor/settings.h"
#include "interceptor/start.h"

namespace ravenstore::interceptor::segments {
namespace {

// Held while a segment turns into the driver's own.
constinit pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// In an entry's object, above the segment's number: what the driver's own handle is made with.
constexpr int kTypesShift = 32;
constexpr int kRdmaShift = 62;

uint64_t Word(const Entry& entry) {
  return reinterpret_cast<uintptr_t>(entry.object);
}

void SetWord(Entry* entry, uint64_t word) {
  entry->object = reinterpret_cast<void*>(static_cast<uintptr_t>(word));
}

// Ordinary memory of the device, as the engine's.
bool IsOrdinary(const CUmemAllocationProp& properties) {
  return properties.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties.win32HandleMetaData == nullptr && properties.allocFlags.compressionType == 0 &&
         properties.allocFlags.usage == 0;
}

CUmemAllocationProp PropertiesOf(const Entry& entry) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(Word(entry) >> kTypesShift & 0xffff);
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, DeviceOf(entry.row)};
  properties.allocFlags.gpuDirectRDMACapable =
      static_cast<unsigned char>(Word(entry) >> kRdmaShift & 1);
  return properties;
}

bool MakeDrivers(Entry* entry, void*) {
  entry->backing = nullptr;
  return true;
}

// REQUIRES mutex; the entry has a backing.
CUresult TurnLocked(Entry entry, CUmemGenericAllocationHandle* own) {
  auto* create = RAVEN_REAL(cuMemCreate);
  auto* release = RAVEN_REAL(cuMemRelease);
  if (create == nullptr || release == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const CUmemAllocationProp properties = PropertiesOf(entry);
  if (!ReserveForDriver(entry.row, entry.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = CallAndReclaim(entry.row, entry.bytes,
                                   [&] { return create(own, entry.bytes, &properties, 0); });
  CUdeviceptr address = 0;
  if (result == CUDA_SUCCESS) {
    result = elastic::HandOver(entry, *own, &address);
    if (result != CUDA_SUCCESS) release(*own);
  }
  if (result != CUDA_SUCCESS) {
    Unreserve(entry.row, entry.bytes);
    return result;
  }
  ledger.Take(entry.space, entry.key, &entry);
  entry.backing = nullptr;
  entry.context = 0;
  SetWord(&entry, *own);
  Commit(entry);
  if (address != 0) ledger.Change(Space::kMapping, address, MakeDrivers, nullptr);
  // No handle is left: the mapping alone holds it.
  if (entry.space == Space::kOrphan) release(*own);
  return CUDA_SUCCESS;
}

CUresult Turn(Space space, uint64_t key, CUmemGenericAllocationHandle* own) {
  pthread_mutex_lock(&mutex);
  Entry entry;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  if (ledger.Find(space, key, &entry)) {
    *own = Word(entry);
    result = entry.backing == nullptr ? CUDA_SUCCESS : TurnLocked(entry, own);
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

}  // namespace

bool Create(Entry entry, const CUmemAllocationProp& properties, unsigned long long flags,
            CUmemGenericAllocationHandle* handle) {
  if (Asked().mode != Mode::kElastic || flags != 0 || !IsOrdinary(properties)) return false;
  entry.key = kOurs | entry.serial;
  if (elastic::CreateSegment(&entry) != CUDA_SUCCESS) return false;
  SetWord(&entry,
          Word(entry) |
              static_cast<uint64_t>(properties.requestedHandleTypes & 0xffff) << kTypesShift |
              (properties.allocFlags.gpuDirectRDMACapable != 0 ? uint64_t{1} << kRdmaShift : 0));
  if (!ledger.Add(entry)) {
    elastic::DestroySegment(entry);
    return false;
  }
  *handle = entry.key;
  return true;
}

CUresult DriverHandle(CUmemGenericAllocationHandle handle, CUmemGenericAllocationHandle* own) {
  *own = handle;
  return IsOurs(handle) ? Turn(Space::kHandle, handle, own) : CUDA_SUCCESS;
}

CUresult TurnMapped(const Entry& mapping) {
  CUmemGenericAllocationHandle own = 0;
  Entry entry;
  const bool has_handle = ledger.Find(Space::kHandle, mapping.context, &entry);
  return has_handle ? Turn(Space::kHandle, mapping.context, &own)
                    : Turn(Space::kOrphan, mapping.serial, &own);
}

void End(const Entry& entry) {
  if (entry.backing != nullptr) {
    elastic::DestroySegment(entry);
  } else {
    Uncharge(entry);
  }
}

}  // namespace ravenstore::interceptor::segments

namespace interceptor = ravenstore::interceptor;
namespace segments = interceptor::segments;
using interceptor::Entry;
using interceptor::ledger;
using interceptor::Space;

RAVEN_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                                          CUdeviceptr wanted, unsigned long long flags) {
  RAVEN_BEGIN(cuMemAddressReserve);
  const interceptor::Within within;
  constexpr size_t kGranule = size_t{2} << 20;
  const bool any_will_do = address != nullptr && alignment <= kGranule && wanted == 0 && flags == 0;
  if (within.outermost() && any_will_do && interceptor::Start() &&
      interceptor::elastic::ReserveAddresses(bytes, address)) {
    return CUDA_SUCCESS;
  }
  return real(address, bytes, alignment, wanted, flags);
}

RAVEN_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  RAVEN_BEGIN(cuMemAddressFree);
  const interceptor::Within within;
  CUresult result = CUDA_SUCCESS;
  if (within.outermost() && interceptor::elastic::FreeAddresses(address, bytes, &result))
    return result;
  return real(address, bytes);
}

namespace {

bool IsOwnAccess(const Entry& mapping, const CUmemAccessDesc* access, size_t count) {
  return std::all_of(access, access + count, [&](const CUmemAccessDesc& each) {
    return each.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           each.location.id == interceptor::DeviceOf(mapping.row) &&
           each.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  });
}

}  // namespace

RAVEN_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes,
                                     const CUmemAccessDesc* access, size_t count) {
  RAVEN_BEGIN(cuMemSetAccess);
  const interceptor::Within within;
  constexpr size_t kMost = size_t{1} << 47;
  if (!interceptor::elastic::On() || !within.outermost() || access == nullptr || bytes >= kMost)
    return real(address, bytes, access, count);
  return segments::ForEachMapping(
      address, bytes,
      [&](const Entry& mapping, CUresult* result) {
        if (mapping.backing == nullptr) return false;
        // The device may read and write it as it is.
        if (IsOwnAccess(mapping, access, count)) return true;
        *result = segments::TurnMapped(mapping);
        return false;
      },
      [&](CUdeviceptr begin, uint64_t size) { return real(begin, size, access, count); });
}

RAVEN_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                     CUdeviceptr address) {
  RAVEN_BEGIN(cuMemGetAccess);
  interceptor::elastic::Allocation at;
  if (flags == nullptr || location == nullptr || !interceptor::elastic::Find(address, &at))
    return real(flags, location, address);
  const bool own = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == at.device;
  *flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

RAVEN_EXPORT CUresult cuMemExportToShareableHandle(void* shareable,
                                                   CUmemGenericAllocationHandle handle,
                                                   CUmemAllocationHandleType type,
                                                   unsigned long long flags) {
  RAVEN_BEGIN(cuMemExportToShareableHandle);
  const interceptor::Within within;
  CUmemGenericAllocationHandle own = 0;
  const CUresult turned = segments::DriverHandle(handle, &own);
  return turned == CUDA_SUCCESS ? real(shareable, own, type, flags) : turned;
}

RAVEN_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                             CUmemGenericAllocationHandle handle) {
  RAVEN_BEGIN(cuMemGetAllocationPropertiesFromHandle);
  Entry entry;
  if (!segments::IsOurs(handle)) return real(properties, handle);
  if (properties == nullptr || !ledger.Find(Space::kHandle, handle, &entry))
    return CUDA_ERROR_INVALID_VALUE;
  if (entry.backing == nullptr) return real(properties, segments::Word(entry));
  *properties = segments::PropertiesOf(entry);
  return CUDA_SUCCESS;
}

RAVEN_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset,
                                         CUmemGenericAllocationHandle handle, size_t from,
                                         size_t bytes, unsigned long long flags) {
  RAVEN_BEGIN(cuMulticastBindMem);
  const interceptor::Within within;
  CUmemGenericAllocationHandle own = 0;
  const CUresult turned = segments::DriverHandle(handle, &own);
  return turned == CUDA_SUCCESS ? real(multicast, offset, own, from, bytes, flags) : turned;
}

RAVEN_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset,
                                          CUdeviceptr address, size_t bytes,
                                          unsigned long long flags) {
  RAVEN_BEGIN(cuMulticastBindAddr);
  const interceptor::Within within;
  interceptor::elastic::Allocation at;
  Entry mapping;
  while (interceptor::elastic::Find(address, &at) &&
         ledger.Find(Space::kMapping, at.begin, &mapping) && mapping.backing != nullptr) {
    const CUresult turned = segments::TurnMapped(mapping);
    if (turned != CUDA_SUCCESS) return turned;
  }
  return real(multicast, offset, address, bytes, flags);
}

namespace {

// Sparse arrays: one call for each, with the driver's handles.
template <typename Call>
CUresult MapArrays(const CUarrayMapInfo* maps, unsigned int count, Call call) {
  for (unsigned int i = 0; i < count; ++i) {
    CUarrayMapInfo map = maps[i];
    CUmemGenericAllocationHandle own = 0;
    const CUresult turned = segments::DriverHandle(map.memHandle.memHandle, &own);
    if (turned != CUDA_SUCCESS) return turned;
    map.memHandle.memHandle = own;
    const CUresult result = call(&map);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

RAVEN_EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo* maps, unsigned int count,
                                         CUstream stream) {
  RAVEN_BEGIN(cuMemMapArrayAsync);
  const interceptor::Within within;
  if (!interceptor::elastic::On() || maps == nullptr) return real(maps, count, stream);
  return MapArrays(maps, count, [&](CUarrayMapInfo* map) { return real(map, 1, stream); });
}

RAVEN_EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* maps, unsigned int count,
                                              CUstream stream) {
  RAVEN_BEGIN(cuMemMapArrayAsync_ptsz);
  const interceptor::Within within;
  if (!interceptor::elastic::On() || maps == nullptr) return real(maps, count, stream);
  return MapArrays(maps, count, [&](CUarrayMapInfo* map) { return real(map, 1, stream); });
}
