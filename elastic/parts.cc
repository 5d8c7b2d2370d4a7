#include "elastic/parts.h"

#include <string>
#include <utility>

namespace ravenstore::elastic {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

Parts::Parts(const Driver* driver, CUdevice device, int node, PlaceLimits on_device,
             PlaceLimits on_host)
    : driver_(driver), device_(device), node_(node) {
  PoolOf(Place::kDevice).limits = std::move(on_device);
  PoolOf(Place::kHost).limits = std::move(on_host);
}

Parts::~Parts() {
  for (Pool& pool : pools_) ShrinkTo(pool, Bytes{0});
}

std::unique_ptr<Part> Parts::TakeIdle(Pool& pool, Bytes size) {
  const auto idle = pool.idle.find(size);
  if (idle == pool.idle.end()) return nullptr;
  std::unique_ptr<Part> part = std::move(idle->second.back());
  idle->second.pop_back();
  if (idle->second.empty()) pool.idle.erase(idle);
  pool.free -= size;
  return part;
}

bool Parts::MakeRoom(Pool& pool, Bytes size) {
  bool fits = Fits(pool, size);
  while (!fits && pool.free > Bytes{0}) {
    ShrinkTo(pool, pool.held - Bytes{1});
    fits = Fits(pool, size);
  }
  return fits;
}

Error Parts::NoRoom(Place place) const {
  return {ErrorCode::kOutOfMemory,
          "the budget of " + std::to_string(PoolOf(place).limits.most.count()) + " bytes " +
              (place == Place::kDevice ? "of the device" : "of pinned host memory") +
              " is used up"};
}

Result<std::unique_ptr<Part>> Parts::MakeCounted(Place place, Bytes size,
                                                 std::unique_lock<std::mutex>& lock) {
  Pool& pool = PoolOf(place);
  pool.held += size;
  // Pinning takes milliseconds: others go on meanwhile.
  lock.unlock();
  auto made = Make(place, size);
  lock.lock();
  if (made.ok()) return made;
  pool.held -= size;
  if (pool.limits.give) pool.limits.give(size);
  return made;
}

Result<Part*> Parts::Take(Place place, Bytes size) {
  std::unique_lock lock(mutex_);
  Pool& pool = PoolOf(place);
  std::unique_ptr<Part> part;
  while ((part = TakeIdle(pool, size)) == nullptr) {
    if (MakeRoom(pool, size)) {
      RAVEN_ASSIGN_OR_RETURN(part, MakeCounted(place, size, lock));
      break;
    }
    if (pool.adding == 0) return NoRoom(place);
    added_.wait(lock, [&, before = pool.added] { return pool.added != before; });
  }
  Part* taken = part.get();
  taken_.emplace(taken, std::move(part));
  return taken;
}

Part* Parts::TakeFree(Place place, Bytes size) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Part> part = TakeIdle(PoolOf(place), size);
  Part* taken = part.get();
  if (taken != nullptr) taken_.emplace(taken, std::move(part));
  return taken;
}

Status Parts::Add(Place place, Bytes size) {
  std::unique_lock lock(mutex_);
  Pool& pool = PoolOf(place);
  if (!Fits(pool, size)) return NoRoom(place);
  ++pool.adding;
  auto made = MakeCounted(place, size, lock);
  --pool.adding;
  ++pool.added;
  added_.notify_all();
  if (!made.ok()) return made.error();
  pool.free += size;
  pool.idle[size].push_back(std::move(made).value());
  ShrinkTo(pool, pool.limits.most);
  return core::Ok();
}

void Parts::Give(Part* part) {
  const std::lock_guard lock(mutex_);
  Pool& pool = PoolOf(part->place);
  pool.free += part->size;
  pool.idle[part->size].push_back(std::move(taken_.extract(part).mapped()));
  ShrinkTo(pool, pool.limits.most);
}

void Parts::SetLimit(Place place, Bytes most) {
  const std::lock_guard lock(mutex_);
  PoolOf(place).limits.most = most;
  ShrinkTo(PoolOf(place), most);
}

Bytes Parts::limit(Place place) const {
  const std::lock_guard lock(mutex_);
  return PoolOf(place).limits.most;
}

Bytes Parts::held(Place place) const {
  const std::lock_guard lock(mutex_);
  return PoolOf(place).held;
}

Bytes Parts::free(Place place) const {
  const std::lock_guard lock(mutex_);
  return PoolOf(place).free;
}

Result<std::unique_ptr<Part>> Parts::Make(Place place, Bytes size) const {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type =
      place == Place::kDevice ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST_NUMA;
  prop.location.id = place == Place::kDevice ? device_ : node_;
  auto part = std::make_unique<Part>(Part{place, size, 0, 0});
  CUresult result = driver_->mem_create(&part->handle, size.count(), &prop, 0);
  if (result != CUDA_SUCCESS) return DriverError("cuMemCreate", result);
  result = driver_->address_reserve(&part->copy, size.count(), 0, 0, 0);
  if (result != CUDA_SUCCESS) {
    driver_->mem_release(part->handle);
    return DriverError("cuMemAddressReserve", result);
  }
  if (const Status mapped = Map(part->copy, *part); !mapped.ok()) {
    driver_->address_free(part->copy, size.count());
    driver_->mem_release(part->handle);
    return mapped.error();
  }
  return part;
}

void Parts::Release(std::unique_ptr<Part> part) {
  driver_->mem_unmap(part->copy, part->size.count());
  driver_->address_free(part->copy, part->size.count());
  driver_->mem_release(part->handle);
}

bool Parts::Fits(const Pool& pool, Bytes size) {
  return pool.held + size <= pool.limits.most && (!pool.limits.take || pool.limits.take(size));
}

void Parts::ShrinkTo(Pool& pool, Bytes most) {
  while (pool.held > most && !pool.idle.empty()) {
    const auto largest = std::prev(pool.idle.end());
    std::unique_ptr<Part> part = std::move(largest->second.back());
    largest->second.pop_back();
    if (largest->second.empty()) pool.idle.erase(largest);
    pool.held -= part->size;
    pool.free -= part->size;
    if (pool.limits.give) pool.limits.give(part->size);
    Release(std::move(part));
  }
}

Status Parts::Map(CUdeviceptr address, const Part& part) const {
  const size_t size = part.size.count();
  CUresult result = driver_->mem_map(address, size, 0, part.handle, 0);
  if (result != CUDA_SUCCESS) return DriverError("cuMemMap", result);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  result = driver_->set_access(address, size, &access, 1);
  if (result == CUDA_SUCCESS) return core::Ok();
  driver_->mem_unmap(address, size);
  return DriverError("cuMemSetAccess", result);
}

Status Parts::Unmap(CUdeviceptr address, const Part& part) const {
  const CUresult result = driver_->mem_unmap(address, part.size.count());
  if (result != CUDA_SUCCESS) return DriverError("cuMemUnmap", result);
  return core::Ok();
}

Parts::Replaced Parts::Replace(CUdeviceptr address, There from, Part* to, bool maps) {
  Status status = from.is_mapped ? Unmap(address, *from.part) : core::Ok();
  if (status.ok()) {
    const bool was_mapped = std::exchange(from.is_mapped, false);
    if (maps) status = Map(address, *to);
    if (status.ok()) {
      if (from.part != nullptr) Give(from.part);
      return {{to, maps}, status};
    }
    from.is_mapped = was_mapped && Map(address, *from.part).ok();
  }
  Give(to);
  return {from, status};
}

}  // namespace ravenstore::elastic
