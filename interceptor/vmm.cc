// Virtual memory management: physical memory lives as long as its handle or a mapping of it does,
// and a handle's value may come again while the old memory is still mapped.
#include <sys/mman.h>

#include <atomic>

#include "interceptor/account.h"
#include "interceptor/allocate.h"
#include "interceptor/devices.h"
#include "interceptor/elastic_backing.h"
#include "interceptor/hooks.h"
#include "interceptor/segments.h"
#include "interceptor/start.h"
#include "interceptor/turn.h"

namespace ravenstore::interceptor {
namespace {

constinit std::atomic<uint64_t> last_serial{0};

// What becomes of a handle's entry.
struct Outcome {
  bool is_unmapped = false;  // it holds nothing any more
  bool orphan = false;       // only mappings hold it now
  Entry entry;
};

bool DropReference(Entry* entry, void* argument) {
  auto* outcome = static_cast<Outcome*>(argument);
  if (--entry->refs > 0) return true;
  outcome->entry = *entry;
  outcome->orphan = entry->maps > 0;
  outcome->is_unmapped = entry->maps == 0;
  return false;
}

bool AddReference(Entry* entry, void*) {
  ++entry->refs;
  return true;
}

bool AddMapping(Entry* entry, void* argument) {
  ++entry->maps;
  *static_cast<Entry*>(argument) = *entry;
  return true;
}

struct Unmapping {
  uint64_t serial;
  bool found = false;
  Outcome outcome;
};

bool DropMapping(Entry* entry, void* argument) {
  auto* unmapping = static_cast<Unmapping*>(argument);
  if (entry->serial != unmapping->serial) return true;
  unmapping->found = true;
  if (--entry->maps > 0 || entry->refs > 0) return true;
  unmapping->outcome = {true, false, *entry};
  return false;
}

// The handle is about to be released; callers use the result after the driver agreed. True: it was
// the last reference, and *entry is the entry that was removed.
bool ReleaseHandle(CUmemGenericAllocationHandle handle, Entry* entry) {
  Outcome outcome;
  ledger.Change(Space::kHandle, handle, DropReference, &outcome);
  *entry = outcome.entry;
  if (outcome.is_unmapped) segments::End(outcome.entry);
  if (!outcome.orphan) return outcome.is_unmapped;
  outcome.entry.space = Space::kOrphan;
  outcome.entry.key = outcome.entry.serial;
  if (!ledger.Add(outcome.entry)) Uncharge(outcome.entry);
  return true;
}

// Of a handle of ours, which the driver does not know.
CUresult ReleaseOurs(CUmemGenericAllocationHandle handle, decltype(&cuMemRelease) real) {
  Entry entry;
  if (!ledger.Find(Space::kHandle, handle, &entry)) return CUDA_ERROR_INVALID_VALUE;
  const bool was_last = ReleaseHandle(handle, &entry);
  return was_last && entry.backing == nullptr ? real(reinterpret_cast<uint64_t>(entry.object))
                                              : CUDA_SUCCESS;
}

void NoteMapping(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle) {
  Entry owner;
  if (!ledger.Change(Space::kHandle, handle, AddMapping, &owner)) return;
  Entry mapping;
  mapping.space = Space::kMapping;
  mapping.key = address;
  mapping.bytes = bytes;
  mapping.row = owner.row;
  mapping.context = handle;
  mapping.serial = owner.serial;
  mapping.backing = owner.backing;
  mapping.object = owner.object;
  ledger.Add(mapping);
}

// A handle of ours: the engine maps it, or the driver what it turns into.
CUresult MapOurs(CUdeviceptr address, size_t bytes, size_t offset,
                 CUmemGenericAllocationHandle handle, unsigned long long flags,
                 decltype(&cuMemMap) real) {
  Entry entry;
  if (!ledger.Find(Space::kHandle, handle, &entry)) return CUDA_ERROR_INVALID_VALUE;
  const bool whole = offset == 0 && bytes == entry.bytes && flags == 0;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  if (entry.backing != nullptr && whole && elastic::MayBeOurs(address))
    result = elastic::MapSegment(entry, address);
  if (result == CUDA_ERROR_INVALID_VALUE) {
    CUmemGenericAllocationHandle own = 0;
    result = segments::DriverHandle(handle, &own);
    if (result == CUDA_SUCCESS) result = real(address, bytes, offset, own, flags);
  }
  if (result == CUDA_SUCCESS) NoteMapping(address, bytes, handle);
  return result;
}

CUresult RetainOurs(const Entry& mapping, CUmemGenericAllocationHandle* handle) {
  if (!ledger.Change(Space::kHandle, mapping.context, AddReference, nullptr))
    return CUDA_ERROR_NOT_SUPPORTED;
  *handle = mapping.context;
  return CUDA_SUCCESS;
}

void ForgetMapping(const Entry& mapping) {
  Unmapping unmapping{mapping.serial, false, {}};
  // `context` of a mapping is its handle: a mapping ends with no context.
  ledger.Change(Space::kHandle, mapping.context, DropMapping, &unmapping);
  if (!unmapping.found) ledger.Change(Space::kOrphan, mapping.serial, DropMapping, &unmapping);
  if (unmapping.outcome.is_unmapped) segments::End(unmapping.outcome.entry);
}

// The mappings of a range, out of the ledger while the driver ends them.
class TakenMappings {
 public:
  TakenMappings(CUdeviceptr address, size_t bytes) : most_(bytes / kStep + 1) {
    if (most_ > kFew) {
      void* pages = mmap(nullptr, most_ * sizeof(Entry), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      pages_ = pages == MAP_FAILED ? nullptr : static_cast<Entry*>(pages);
    }
    const size_t room = pages_ != nullptr ? most_ : kFew;
    for (CUdeviceptr at = address; at < address + bytes;) {
      Entry mapping;
      const bool known = ledger.Take(Space::kMapping, at, &mapping);
      at += known && mapping.bytes > 0 ? mapping.bytes : kStep;
      if (!known) continue;
      if (count_ < room) {
        entries()[count_++] = mapping;
      } else {
        // For want of memory it cannot be kept for a driver that refuses.
        if (mapping.backing != nullptr) elastic::UnmapSegment(mapping);
        ForgetMapping(mapping);
      }
    }
  }
  ~TakenMappings() {
    if (pages_ != nullptr) munmap(pages_, most_ * sizeof(Entry));
  }
  TakenMappings(const TakenMappings&) = delete;
  TakenMappings& operator=(const TakenMappings&) = delete;

  // Unmaps what is there, segments and the driver's.
  CUresult Unmap(CUdeviceptr address, size_t bytes, decltype(&cuMemUnmap) real) {
    CUdeviceptr done = address;
    for (size_t i = 0; i < count_; ++i) {
      const Entry& mapping = entries()[i];
      if (mapping.backing == nullptr) continue;
      CUresult result = mapping.key > done ? real(done, mapping.key - done) : CUDA_SUCCESS;
      if (result == CUDA_SUCCESS) result = elastic::UnmapSegment(mapping);
      if (result != CUDA_SUCCESS) return result;
      done = mapping.key + mapping.bytes;
    }
    return done < address + bytes ? real(done, address + bytes - done) : CUDA_SUCCESS;
  }
  void Forget() {
    for (size_t i = 0; i < count_; ++i) ForgetMapping(entries()[i]);
  }
  void PutBack() {
    for (size_t i = 0; i < count_; ++i) ledger.Add(entries()[i]);
  }

 private:
  static constexpr size_t kStep = size_t{2} << 20;  // no mapping is smaller
  static constexpr size_t kFew = 16;

  Entry* entries() { return pages_ != nullptr ? pages_ : few_; }

  size_t most_;
  size_t count_ = 0;
  Entry* pages_ = nullptr;
  Entry few_[kFew];
};

}  // namespace
}  // namespace ravenstore::interceptor

namespace interceptor = ravenstore::interceptor;
using interceptor::Entry;
using interceptor::ledger;
using interceptor::LegacyKind;
using interceptor::Space;

RAVEN_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                  const CUmemAllocationProp* properties, unsigned long long flags) {
  RAVEN_BEGIN(cuMemCreate);
  const interceptor::Within within;
  auto call = [&] { return real(handle, bytes, properties, flags); };
  if (!within.outermost() || handle == nullptr || properties == nullptr ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !interceptor::Start()) {
    return call();
  }
  Entry entry;
  entry.space = Space::kHandle;
  entry.kind = LegacyKind::kVmm;
  entry.row = static_cast<int16_t>(interceptor::RowOf(properties->location.id));
  entry.bytes = bytes;
  entry.refs = 1;
  entry.serial = ++interceptor::last_serial;
  // It needs no context.
  if (!interceptor::turn::Await(entry.row)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (interceptor::segments::Create(entry, *properties, flags, handle)) return CUDA_SUCCESS;
  return interceptor::Allocate(entry, call, [&] { return *handle; });
}

RAVEN_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  RAVEN_BEGIN(cuMemRelease);
  const interceptor::Within within;
  if (!within.outermost()) return real(handle);
  if (interceptor::segments::IsOurs(handle)) return interceptor::ReleaseOurs(handle, real);
  // The reference goes first: the value may come again immediately. A driver that refuses leaves
  // the handle as it was: a caller's mistake with a handle that the ledger does not know.
  Entry entry;
  const bool known = ledger.Find(Space::kHandle, handle, &entry);
  if (known) interceptor::ReleaseHandle(handle, &entry);
  return real(handle);
}

RAVEN_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                  void* address) {
  RAVEN_BEGIN(cuMemRetainAllocationHandle);
  const interceptor::Within within;
  interceptor::elastic::Allocation at;
  Entry mapping;
  if (handle != nullptr && interceptor::elastic::Find(reinterpret_cast<uint64_t>(address), &at) &&
      ledger.Find(Space::kMapping, at.begin, &mapping) && mapping.backing != nullptr) {
    return interceptor::RetainOurs(mapping, handle);
  }
  // Who has the handle may map it elsewhere, or give it to another process.
  interceptor::elastic::Pin(reinterpret_cast<uint64_t>(address));
  const CUresult result = real(handle, address);
  if (within.outermost() && result == CUDA_SUCCESS) {
    ledger.Change(Space::kHandle, *handle, interceptor::AddReference, nullptr);
  }
  return result;
}

RAVEN_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                               CUmemGenericAllocationHandle handle, unsigned long long flags) {
  RAVEN_BEGIN(cuMemMap);
  const interceptor::Within within;
  if (interceptor::segments::IsOurs(handle))
    return interceptor::MapOurs(address, bytes, offset, handle, flags, real);
  const CUresult result = real(address, bytes, offset, handle, flags);
  if (within.outermost() && result == CUDA_SUCCESS)
    interceptor::NoteMapping(address, bytes, handle);
  return result;
}

RAVEN_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  RAVEN_BEGIN(cuMemUnmap);
  const interceptor::Within within;
  // More than there are addresses: the driver refuses it, and to look for mappings takes hours.
  constexpr size_t kMost = size_t{1} << 47;
  if (!within.outermost() || bytes >= kMost) return real(address, bytes);
  // One call may unmap several neighbours. Their entries go first: the addresses may come again.
  interceptor::TakenMappings taken(address, bytes);
  const CUresult result = taken.Unmap(address, bytes, real);
  if (result == CUDA_SUCCESS) {
    taken.Forget();
  } else {
    taken.PutBack();
  }
  return result;
}
