// The memory that backs ranges: parts of device memory and of pinned host memory. Each is made by
// one cuMemCreate and mapped for good at an address of its own, by which it is copied. At a
// range's addresses a part is mapped a second time, and goes from there without its bytes.
//
// A part that is given back is kept for the next taker of its size; of other sizes it is released
// when the limit leaves no room for one.
//
// Owns: the parts that are free; who has taken one keeps it, mapped, for good. Threads: any.
// Nothing here waits for the GPU.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "elastic/driver.h"

namespace ravenstore::elastic {

enum class Place : uint8_t { kDevice, kHost };
inline size_t Index(Place place) {
  return static_cast<size_t>(place);
}

struct Part {
  Place place;
  core::Bytes size;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr copy;  // where it is mapped for good
};

// How many bytes of a place may be held, and the functions that charge the job's ledger.
struct PlaceLimits {
  core::Bytes most;
  // Charges bytes to the job's ledger, false: over a budget; and uncharges them. May be empty.
  std::function<bool(core::Bytes)> take;
  std::function<void(core::Bytes)> give;
};

class Parts {
 public:
  // Devices' parts are made on `device`, the host's on its NUMA node `node`.
  Parts(const Driver* driver, CUdevice device, int node, PlaceLimits on_device,
        PlaceLimits on_host);
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // A part of that size, whatever it held before. Where there is room for none that is new, one
  // that is being added is waited for. Errors: kOutOfMemory within the limit or for the driver,
  // kDevice.
  core::Result<Part*> Take(Place place, core::Bytes size);
  // Of those that are free; null: none is.
  Part* TakeFree(Place place, core::Bytes size);
  void Give(Part* part);
  // Adds one free part, if no other has to be released for it. Errors: as Take.
  core::Status Add(Place place, core::Bytes size);

  // Releases free parts until the new limit is met or none is left. What is taken stays.
  void SetLimit(Place place, core::Bytes most);
  core::Bytes limit(Place place) const;
  // Of all parts, and of those that are free.
  core::Bytes held(Place place) const;
  core::Bytes free(Place place) const;

  // Maps the part at `address` too, readable and writable by the device, and takes it from there.
  core::Status Map(CUdeviceptr address, const Part& part) const;
  core::Status Unmap(CUdeviceptr address, const Part& part) const;
  // What is beneath an address: a part that may be reached there, or not yet.
  struct There {
    Part* part = nullptr;
    bool is_mapped = false;
  };
  // `to` takes the place of what is there, and with `maps` is mapped. The part that is not there
  // afterwards is given back. Errors: kDevice: what was there still is, mapped if that can be.
  struct Replaced {
    There there;
    core::Status status = core::Ok();
  };
  Replaced Replace(CUdeviceptr address, There from, Part* to, bool maps);

 private:
  struct Pool {
    PlaceLimits limits;
    core::Bytes held;
    core::Bytes free;
    std::map<core::Bytes, std::vector<std::unique_ptr<Part>>> idle;  // by size
    uint32_t adding = 0;
    uint64_t added = 0;  // attempts
  };

  Pool& PoolOf(Place place) { return pools_[Index(place)]; }
  const Pool& PoolOf(Place place) const { return pools_[Index(place)]; }
  core::Error NoRoom(Place place) const;
  // REQUIRES, for these: the mutex is held.
  std::unique_ptr<Part> TakeIdle(Pool& pool, core::Bytes size);
  // As Fits. Releases free parts of other sizes where the limit, or the ledger, which counts more
  // than the parts, needs that.
  bool MakeRoom(Pool& pool, core::Bytes size);
  // What the ledger has counted already. The mutex is free while it is made.
  core::Result<std::unique_ptr<Part>> MakeCounted(Place place, core::Bytes size,
                                                  std::unique_lock<std::mutex>& lock);
  core::Result<std::unique_ptr<Part>> Make(Place place, core::Bytes size) const;
  void Release(std::unique_ptr<Part> part);
  // Takes the size of the ledger, if the limit allows it.
  static bool Fits(const Pool& pool, core::Bytes size);
  // Releases free parts until at most `most` is held or none is left. REQUIRES: the mutex is held.
  void ShrinkTo(Pool& pool, core::Bytes most);

  const Driver* const driver_;
  const CUdevice device_;
  const int node_;
  mutable std::mutex mutex_;
  std::condition_variable added_;
  Pool pools_[2];                                 // guarded by mutex_
  std::map<Part*, std::unique_ptr<Part>> taken_;  // guarded by mutex_
};

}  // namespace ravenstore::elastic
